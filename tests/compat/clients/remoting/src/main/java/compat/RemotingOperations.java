package compat;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.RPCHook;

/** Carries commands out with clients, each under a name. */
final class RemotingOperations {
  private static final long TIMEOUT_MS = 10_000;
  private static final long SHUTDOWN_MS = 3_000;

  private final String nameserver;
  private final RPCHook hook;
  private final boolean tls;
  private final int routeMs;
  private final Map<String, DefaultMQProducer> producers = new ConcurrentHashMap<>();
  private final Map<String, DefaultMQPushConsumer> consumers = new ConcurrentHashMap<>();
  private final Map<String, Deliveries> deliveries = new ConcurrentHashMap<>();
  private final LitePulls litePulls;

  RemotingOperations(JsonObject options) {
    nameserver = options.get("nameserver").getAsString();
    hook =
        options.has("access_key")
            ? new AclClientRPCHook(
                new SessionCredentials(text(options, "access_key"), text(options, "secret_key")))
            : null;
    tls = options.has("tls");
    routeMs = options.has("route_ms") ? options.get("route_ms").getAsInt() : 30_000;
    litePulls = new LitePulls(nameserver, hook);
  }

  Object run(JsonObject command) throws Throwable {
    String name = text(command, "name");
    switch (text(command, "op")) {
      case "producer":
        return startProducer(name, new DefaultMQProducer(text(command, "group"), hook));
      case "transactions":
        TransactionMQProducer producer = new TransactionMQProducer(text(command, "group"), hook);
        producer.setTransactionListener(new Decisions());
        return startProducer(name, producer);
      case "send":
        return send(producers.get(name), command);
      case "request":
        return Requests.request(
            producers.get(name),
            message(command, Base64.getDecoder().decode(text(command, "body"))),
            text(command, "how"),
            command.get("timeout_ms").getAsLong());
      case "recall":
        return recall(producers.get(name), text(command, "topic"), text(command, "handle"));
      case "push":
        return startConsumer(name, command);
      case "delivered":
        return delivered(name, command);
      case "broker_of":
        return Map.of("address", brokerOf(command));
      case "request_mode":
        return setMode(producers.get(name), command);
      case "close":
        return close(name);
      default:
        return litePulls.run(name, command);
    }
  }

  private Object startProducer(String name, DefaultMQProducer producer) throws Exception {
    producer.setNamesrvAddr(nameserver);
    producer.setUseTLS(tls);
    producer.setInstanceName(name);
    producer.setPollNameServerInterval(routeMs);
    producer.setSendMsgTimeout((int) TIMEOUT_MS);
    producer.start();
    producers.put(name, producer);
    return Map.of();
  }

  private Object send(DefaultMQProducer producer, JsonObject command) throws Throwable {
    List<Message> messages = new ArrayList<>();
    for (JsonElement body : command.getAsJsonArray("bodies")) {
      messages.add(message(command, Base64.getDecoder().decode(body.getAsString())));
    }
    switch (text(command, "how")) {
      case "sync":
        return shown(producer.send(messages.get(0)));
      case "batch":
        return shown(producer.send(messages));
      case "transaction":
        return shown(
            ((TransactionMQProducer) producer).sendMessageInTransaction(messages.get(0), null));
      case "oneway":
        producer.sendOneway(messages.get(0));
        return Map.of();
      case "queue":
        int number = command.get("queue").getAsInt();
        return shown(
            producer.send(
                messages.get(0), (queues, sent, chosen) -> queues.get((int) chosen), number));
      case "async":
        CompletableFuture<SendResult> answer = new CompletableFuture<>();
        producer.send(
            messages.get(0),
            new SendCallback() {
              @Override
              public void onSuccess(SendResult result) {
                answer.complete(result);
              }

              @Override
              public void onException(Throwable failure) {
                answer.completeExceptionally(failure);
              }
            });
        return shown(answer.get(TIMEOUT_MS, TimeUnit.MILLISECONDS));
      default:
        throw new IllegalArgumentException(command.toString());
    }
  }

  private static Message message(JsonObject command, byte[] body) {
    Message message = new Message(text(command, "topic"), body);
    if (command.has("tag")) {
      message.setTags(text(command, "tag"));
    }
    if (command.has("keys")) {
      message.setKeys(text(command, "keys"));
    }
    if (command.has("delay_level")) {
      message.setDelayTimeLevel(command.get("delay_level").getAsInt());
    }
    if (command.has("properties")) {
      for (Map.Entry<String, JsonElement> one :
          command.getAsJsonObject("properties").entrySet()) {
        message.putUserProperty(one.getKey(), one.getValue().getAsString());
      }
    }
    return message;
  }

  private static Map<String, Object> shown(SendResult result) {
    Map<String, Object> shown = new HashMap<>();
    shown.put("status", result.getSendStatus().name());
    shown.put("message_id", result.getMsgId());
    shown.put("offset_message_id", result.getOffsetMsgId());
    shown.put("broker", result.getMessageQueue().getBrokerName());
    shown.put("queue", result.getMessageQueue().getQueueId());
    shown.put("offset", result.getQueueOffset());
    shown.put("recall_handle", ifKnown(result, "getRecallHandle"));
    return shown;
  }

  /** Older clients know no recall. */
  private static Object recall(DefaultMQProducer producer, String topic, String handle)
      throws Throwable {
    try {
      return DefaultMQProducer.class
          .getMethod("recallMessage", String.class, String.class)
          .invoke(producer, topic, handle);
    } catch (java.lang.reflect.InvocationTargetException failure) {
      throw failure.getCause();
    }
  }

  private static Object ifKnown(SendResult result, String getter) {
    try {
      return SendResult.class.getMethod(getter).invoke(result);
    } catch (ReflectiveOperationException unknown) {
      return null;
    }
  }

  private Object startConsumer(String name, JsonObject command) throws Exception {
    DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            text(command, "group"), hook, new AllocateMessageQueueAveragely());
    consumer.setNamesrvAddr(nameserver);
    consumer.setUseTLS(tls);
    consumer.setInstanceName(name);
    consumer.setPollNameServerInterval(routeMs);
    consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(text(command, "where")));
    consumer.setMaxReconsumeTimes(command.get("max_times").getAsInt());
    // Else a consumer that is closed stores no position for what its listener is about to answer.
    consumer.setAwaitTerminationMillisWhenShutdown(SHUTDOWN_MS);
    if (text(command, "model").equals("broadcast")) {
      // The package of this enumeration is not the same in all versions.
      setBroadcasting(consumer);
    }
    String expression = text(command, "expression");
    if (command.has("sql")) {
      consumer.subscribe(text(command, "topic"), MessageSelector.bySql(expression));
    } else {
      consumer.subscribe(text(command, "topic"), expression);
    }
    if (command.has("pop_invisible_ms")) {
      // Versions before 5.0 have no such mode.
      set(consumer, "setClientRebalance", boolean.class, false);
      set(consumer, "setPopInvisibleTime", long.class, command.get("pop_invisible_ms").getAsLong());
    }
    long stallMs = command.has("stall_ms") ? command.get("stall_ms").getAsLong() : 0;
    Deliveries seen = new Deliveries(command.get("failures").getAsInt(), stallMs);
    if (command.has("replies_by")) {
      // A producer of its own sends the replies.
      Requests.replyTo(consumer, seen, producers.get(text(command, "replies_by")));
    } else if (text(command, "model").equals("orderly")) {
      consumer.registerMessageListener((MessageListenerOrderly) seen::orderly);
    } else {
      consumer.registerMessageListener((MessageListenerConcurrently) seen::concurrently);
    }
    consumer.start();
    consumers.put(name, consumer);
    deliveries.put(name, seen);
    return Map.of();
  }

  /** The address behind a topic, as any producer that has started finds it. */
  private String brokerOf(JsonObject command) throws Exception {
    MQClientInstance client =
        producers.values().iterator().next().getDefaultMQProducerImpl().getMqClientFactory();
    client.updateTopicRouteInfoFromNameServer(text(command, "topic"));
    return client.findBrokerAddrByTopic(text(command, "topic"));
  }

  private static void set(Object consumer, String setter, Class<?> type, Object value)
      throws ReflectiveOperationException {
    consumer.getClass().getMethod(setter, type).invoke(consumer, value);
  }

  /** As operators' tools do it; older clients know no modes. */
  @SuppressWarnings({"unchecked", "rawtypes"})
  private static Object setMode(DefaultMQProducer producer, JsonObject command) throws Exception {
    MQClientInstance client = producer.getDefaultMQProducerImpl().getMqClientFactory();
    String topic = text(command, "topic");
    client.updateTopicRouteInfoFromNameServer(topic);
    for (java.lang.reflect.Method method : client.getMQClientAPIImpl().getClass().getMethods()) {
      if (method.getName().equals("setMessageRequestMode")) {
        Object mode =
            Enum.valueOf((Class<Enum>) method.getParameterTypes()[3], text(command, "mode"));
        method.invoke(
            client.getMQClientAPIImpl(),
            client.findBrokerAddrByTopic(topic),
            topic,
            text(command, "group"),
            mode,
            0,
            TIMEOUT_MS);
      }
    }
    return Map.of();
  }

  @SuppressWarnings({"unchecked", "rawtypes"})
  private static void setBroadcasting(DefaultMQPushConsumer consumer) throws Exception {
    for (java.lang.reflect.Method method : DefaultMQPushConsumer.class.getMethods()) {
      if (method.getName().equals("setMessageModel")) {
        Class<?> model = method.getParameterTypes()[0];
        method.invoke(consumer, Enum.valueOf((Class<Enum>) model, "BROADCASTING"));
      }
    }
  }

  private Object delivered(String name, JsonObject command) throws InterruptedException {
    return Map.of(
        "messages",
        deliveries
            .get(name)
            .waitFor(command.get("count").getAsInt(), command.get("timeout_ms").getAsLong()));
  }

  private Object close(String name) {
    DefaultMQProducer producer = producers.remove(name);
    if (producer != null) {
      producer.shutdown();
    }
    DefaultMQPushConsumer consumer = consumers.remove(name);
    if (consumer != null) {
      consumer.shutdown();
    }
    litePulls.close(name);
    return Map.of();
  }

  static String text(JsonObject command, String name) {
    return command.get(name).getAsString();
  }
}
