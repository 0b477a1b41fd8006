package compat;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.Closeable;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.java.impl.producer.SendReceiptImpl;
import org.apache.rocketmq.client.java.message.MessageViewImpl;

/** The clients by name, and the messages received by reference number. */
final class Operations {
  private final ClientServiceProvider provider = ClientServiceProvider.loadService();
  private final ClientConfiguration configuration;
  private final Map<String, Closeable> clients = new ConcurrentHashMap<>();
  private final Map<String, ScriptedListener> listeners = new ConcurrentHashMap<>();
  private final Map<String, ScriptedChecker> checkers = new ConcurrentHashMap<>();
  private final Map<Integer, MessageView> messages = new ConcurrentHashMap<>();
  private final Map<Integer, Transaction> transactions = new ConcurrentHashMap<>();
  private final AtomicInteger lastRef = new AtomicInteger();

  Operations(JsonObject options) {
    var builder =
        ClientConfiguration.newBuilder()
            .setEndpoints(options.get("endpoint").getAsString())
            .enableSsl(options.get("tls").getAsBoolean())
            .setNamespace(options.get("namespace").getAsString())
            .setRequestTimeout(Duration.ofMillis(options.get("timeout_ms").getAsLong()));
    String accessKey = options.get("access_key").getAsString();
    if (!accessKey.isEmpty()) {
      String secretKey = options.get("secret_key").getAsString();
      builder.setCredentialProvider(new StaticSessionCredentialsProvider(accessKey, secretKey));
    }
    configuration = builder.build();
  }

  /** Runs one command and returns its result. */
  Map<String, ?> run(JsonObject command) throws Exception {
    String name = command.get("name").getAsString();
    return switch (command.get("op").getAsString()) {
      case "producer" -> producer(name, command);
      case "send" -> send(name, command);
      case "recall" -> recall(name, command);
      case "send_half" -> sendHalf(name, command);
      case "end" -> end(command);
      case "checked" ->
          Map.of(
              "message_ids",
              checkers
                  .get(name)
                  .await(command.get("count").getAsInt(), duration(command, "timeout_ms")));
      case "simple" -> simple(name, command);
      case "receive" -> receive(name, command);
      case "ack" -> {
        simpleConsumer(name).ack(message(command));
        yield Map.of();
      }
      case "change_invisible" -> {
        simpleConsumer(name)
            .changeInvisibleDuration(message(command), duration(command, "invisible_ms"));
        yield Map.of();
      }
      case "push" -> push(name, command);
      case "lite" -> lite(name, command);
      case "subscribe_lite" -> {
        liteConsumer(name).subscribeLite(command.get("lite_topic").getAsString());
        yield Map.of();
      }
      case "unsubscribe_lite" -> {
        liteConsumer(name).unsubscribeLite(command.get("lite_topic").getAsString());
        yield Map.of();
      }
      case "lite_topics" ->
          Map.of("lite_topics", liteConsumer(name).getLiteTopicSet().stream().sorted().toList());
      case "delivered" ->
          Map.of(
              "messages",
              listeners
                  .get(name)
                  .await(command.get("count").getAsInt(), duration(command, "timeout_ms")));
      case "close" -> {
        clients.remove(name).close();
        yield Map.of();
      }
      default -> throw new IllegalArgumentException("unknown op " + command.get("op"));
    };
  }

  private Map<String, ?> producer(String name, JsonObject command) throws Exception {
    List<String> topics = strings(command.get("topics"));
    ProducerBuilder builder =
        provider
            .newProducerBuilder()
            .setClientConfiguration(configuration)
            .setTopics(topics.toArray(String[]::new));
    if (present(command, "checker")) {
      ScriptedChecker checker = new ScriptedChecker(command.get("checker").getAsString());
      checkers.put(name, checker);
      builder.setTransactionChecker(checker);
    }
    clients.put(name, builder.build());
    return Map.of();
  }

  private Map<String, ?> send(String name, JsonObject command) throws Exception {
    SendReceipt receipt = producer(name).send(built(command));
    return Map.of(
        "message_id", receipt.getMessageId().toString(),
        "recall_handle", receipt.getRecallHandle());
  }

  private Map<String, ?> recall(String name, JsonObject command) throws Exception {
    String topic = command.get("topic").getAsString();
    String handle = command.get("handle").getAsString();
    return Map.of(
        "message_id", producer(name).recallMessage(topic, handle).getMessageId().toString());
  }

  private Map<String, ?> sendHalf(String name, JsonObject command) throws Exception {
    Transaction transaction = producer(name).beginTransaction();
    SendReceipt receipt = producer(name).send(built(command), transaction);
    int ref = lastRef.incrementAndGet();
    transactions.put(ref, transaction);
    return Map.of(
        "ref", ref,
        "message_id", receipt.getMessageId().toString(),
        "transaction_id", ((SendReceiptImpl) receipt).getTransactionId());
  }

  private Map<String, ?> end(JsonObject command) throws Exception {
    Transaction transaction = transactions.get(command.get("ref").getAsInt());
    if (command.get("resolution").getAsString().equals("commit")) {
      transaction.commit();
    } else {
      transaction.rollback();
    }
    return Map.of();
  }

  private Message built(JsonObject command) {
    MessageBuilder builder =
        provider
            .newMessageBuilder()
            .setTopic(command.get("topic").getAsString())
            .setBody(body(command));
    if (present(command, "tag")) {
      builder.setTag(command.get("tag").getAsString());
    }
    if (present(command, "keys")) {
      builder.setKeys(strings(command.get("keys")).toArray(String[]::new));
    }
    if (present(command, "group")) {
      builder.setMessageGroup(command.get("group").getAsString());
    }
    if (present(command, "priority")) {
      builder.setPriority(command.get("priority").getAsInt());
    }
    if (present(command, "lite_topic")) {
      builder.setLiteTopic(command.get("lite_topic").getAsString());
    }
    if (present(command, "properties")) {
      for (Map.Entry<String, JsonElement> property :
          command.getAsJsonObject("properties").entrySet()) {
        builder.addProperty(property.getKey(), property.getValue().getAsString());
      }
    }
    if (present(command, "deliver_at_ms")) {
      builder.setDeliveryTimestamp(command.get("deliver_at_ms").getAsLong());
    }
    return builder.build();
  }

  private Map<String, ?> simple(String name, JsonObject command) throws Exception {
    clients.put(
        name,
        provider
            .newSimpleConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup(command.get("group").getAsString())
            .setSubscriptionExpressions(subscriptions(command))
            .setAwaitDuration(duration(command, "await_ms"))
            .build());
    return Map.of();
  }

  private Map<String, ?> receive(String name, JsonObject command) throws Exception {
    List<Map<String, Object>> received = new ArrayList<>();
    for (MessageView view :
        simpleConsumer(name)
            .receive(command.get("max_messages").getAsInt(), duration(command, "invisible_ms"))) {
      received.add(report(view));
    }
    return Map.of("messages", received);
  }

  private Map<String, ?> push(String name, JsonObject command) throws Exception {
    ScriptedListener listener =
        new ScriptedListener(command.get("failures").getAsInt(), this::report);
    listeners.put(name, listener);
    clients.put(
        name,
        provider
            .newPushConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup(command.get("group").getAsString())
            .setSubscriptionExpressions(subscriptions(command))
            .setMessageListener(listener)
            .build());
    return Map.of();
  }

  private Map<String, ?> lite(String name, JsonObject command) throws Exception {
    ScriptedListener listener =
        new ScriptedListener(command.get("failures").getAsInt(), this::report);
    listeners.put(name, listener);
    clients.put(
        name,
        provider
            .newLitePushConsumerBuilder()
            .bindTopic(command.get("topic").getAsString())
            .setClientConfiguration(configuration)
            .setConsumerGroup(command.get("group").getAsString())
            .setMessageListener(listener)
            .build());
    return Map.of();
  }

  /** What the client shows of a received message; the offset needs its implementation class. */
  private Map<String, Object> report(MessageView view) {
    int ref = lastRef.incrementAndGet();
    messages.put(ref, view);
    ByteBuffer buffer = view.getBody();
    byte[] body = new byte[buffer.remaining()];
    buffer.get(body);
    Map<String, Object> reported = new HashMap<>();
    reported.put("ref", ref);
    reported.put("message_id", view.getMessageId().toString());
    reported.put("topic", view.getTopic());
    reported.put("tag", view.getTag().orElse(null));
    reported.put("keys", view.getKeys().stream().sorted().toList());
    reported.put("group", view.getMessageGroup().orElse(null));
    reported.put("lite_topic", view.getLiteTopic().orElse(null));
    reported.put("body_sha256", sha256(body));
    reported.put("body_size", body.length);
    reported.put("properties", view.getProperties());
    reported.put("attempt", view.getDeliveryAttempt());
    reported.put("offset", ((MessageViewImpl) view).getOffset());
    return reported;
  }

  private Producer producer(String name) {
    return (Producer) clients.get(name);
  }

  private SimpleConsumer simpleConsumer(String name) {
    return (SimpleConsumer) clients.get(name);
  }

  private LitePushConsumer liteConsumer(String name) {
    return (LitePushConsumer) clients.get(name);
  }

  private MessageView message(JsonObject command) {
    return messages.get(command.get("ref").getAsInt());
  }

  private static byte[] body(JsonObject command) {
    byte[] pattern = Base64.getDecoder().decode(command.get("body").getAsString());
    if (!present(command, "size")) {
      return pattern;
    }
    byte[] body = new byte[command.get("size").getAsInt()];
    for (int filled = 0; filled < body.length; filled += pattern.length) {
      System.arraycopy(pattern, 0, body, filled, Math.min(pattern.length, body.length - filled));
    }
    return body;
  }

  private static Map<String, FilterExpression> subscriptions(JsonObject command) {
    Map<String, FilterExpression> expressions = new HashMap<>();
    FilterExpressionType type =
        present(command, "sql") && command.get("sql").getAsBoolean()
            ? FilterExpressionType.SQL92
            : FilterExpressionType.TAG;
    for (Map.Entry<String, JsonElement> entry :
        command.getAsJsonObject("subscriptions").entrySet()) {
      expressions.put(
          entry.getKey(), new FilterExpression(entry.getValue().getAsString(), type));
    }
    return expressions;
  }

  private static Duration duration(JsonObject command, String field) {
    return Duration.ofMillis(command.get(field).getAsLong());
  }

  private static boolean present(JsonObject command, String field) {
    return command.has(field) && !command.get(field).isJsonNull();
  }

  private static List<String> strings(JsonElement array) {
    return array.getAsJsonArray().asList().stream().map(JsonElement::getAsString).toList();
  }

  private static String sha256(byte[] body) {
    try {
      return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(body));
    } catch (java.security.NoSuchAlgorithmException impossible) {
      throw new IllegalStateException(impossible);
    }
  }
}
