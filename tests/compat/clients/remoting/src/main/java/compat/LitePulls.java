package compat;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/** Consumers that an application polls, each under a name. */
final class LitePulls {
  private static final long POLL_MS = 200;

  private final String nameserver;
  private final RPCHook hook;
  private final Map<String, DefaultLitePullConsumer> consumers = new ConcurrentHashMap<>();
  private final Map<String, String> topics = new ConcurrentHashMap<>();

  LitePulls(String nameserver, RPCHook hook) {
    this.nameserver = nameserver;
    this.hook = hook;
  }

  Object run(String name, JsonObject command) throws Exception {
    switch (RemotingOperations.text(command, "op")) {
      case "lite":
        return start(name, command);
      case "lite_poll":
        return poll(consumers.get(name), command);
      case "lite_seek":
        return seek(name, command);
      case "lite_commit":
        consumers.get(name).commitSync();
        return Map.of();
      case "lite_committed":
        return Map.of("offset", consumers.get(name).committed(queue(name, command)));
      case "lite_time":
        long timeMs = command.get("time_ms").getAsLong();
        return Map.of(
            "offset", consumers.get(name).offsetForTimestamp(queue(name, command), timeMs));
      case "lite_pause":
        consumers.get(name).pause(queues(name, command));
        return Map.of();
      case "lite_resume":
        consumers.get(name).resume(queues(name, command));
        return Map.of();
      default:
        throw new IllegalArgumentException(command.toString());
    }
  }

  void close(String name) {
    DefaultLitePullConsumer consumer = consumers.remove(name);
    if (consumer != null) {
      consumer.shutdown();
    }
  }

  private Object start(String name, JsonObject command) throws Exception {
    DefaultLitePullConsumer consumer =
        new DefaultLitePullConsumer(RemotingOperations.text(command, "group"), hook);
    String topic = RemotingOperations.text(command, "topic");
    consumer.setNamesrvAddr(nameserver);
    consumer.setInstanceName(name);
    consumer.setAutoCommit(command.get("auto_commit").getAsBoolean());
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    consumers.put(name, consumer);
    topics.put(name, topic);
    if (command.has("queues")) {
      consumer.start();
      consumer.assign(queues(name, command));
    } else {
      consumer.subscribe(topic, RemotingOperations.text(command, "expression"));
      consumer.start();
    }
    return Map.of();
  }

  private static Object poll(DefaultLitePullConsumer consumer, JsonObject command) {
    int count = command.get("count").getAsInt();
    long endMs = System.currentTimeMillis() + command.get("timeout_ms").getAsLong();
    List<Map<String, Object>> seen = new ArrayList<>();
    do {
      for (MessageExt message : consumer.poll(POLL_MS)) {
        seen.add(Deliveries.shown(message));
      }
    } while (seen.size() < count && System.currentTimeMillis() < endMs);
    return Map.of("messages", seen);
  }

  private Object seek(String name, JsonObject command) throws Exception {
    DefaultLitePullConsumer consumer = consumers.get(name);
    MessageQueue queue = queue(name, command);
    String where = RemotingOperations.text(command, "where");
    if (where.equals("begin")) {
      consumer.seekToBegin(queue);
    } else if (where.equals("end")) {
      consumer.seekToEnd(queue);
    } else {
      consumer.seek(queue, Long.parseLong(where));
    }
    return Map.of();
  }

  private MessageQueue queue(String name, JsonObject command) throws Exception {
    return queues(name, command).iterator().next();
  }

  private Collection<MessageQueue> queues(String name, JsonObject command) throws Exception {
    Set<Integer> wanted = new HashSet<>();
    for (JsonElement one : command.getAsJsonArray("queues")) {
      wanted.add(one.getAsInt());
    }
    Collection<MessageQueue> all = consumers.get(name).fetchMessageQueues(topics.get(name));
    List<MessageQueue> found = new ArrayList<>();
    for (MessageQueue one : all) {
      if (wanted.contains(one.getQueueId())) {
        found.add(one);
      }
    }
    return found;
  }
}
