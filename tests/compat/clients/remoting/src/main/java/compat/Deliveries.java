package compat;

import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages that a listener saw; it fails, or takes too long for, the first deliveries of each id. */
final class Deliveries {
  private final int failures;
  private final List<Map<String, Object>> seen = new ArrayList<>();
  private final Map<String, Integer> failed = new HashMap<>();

  private final long stallMs;

  Deliveries(int failures, long stallMs) {
    this.failures = failures;
    this.stallMs = stallMs;
  }

  ConsumeConcurrentlyStatus concurrently(
      List<MessageExt> messages, ConsumeConcurrentlyContext context) {
    return take(messages)
        ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
        : ConsumeConcurrentlyStatus.RECONSUME_LATER;
  }

  ConsumeOrderlyStatus orderly(List<MessageExt> messages, ConsumeOrderlyContext context) {
    return take(messages)
        ? ConsumeOrderlyStatus.SUCCESS
        : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
  }

  private synchronized boolean take(List<MessageExt> messages) {
    boolean good = true;
    boolean first = stallMs > 0 && messages.stream().noneMatch(one -> known(one.getMsgId()));
    for (MessageExt message : messages) {
      seen.add(shown(message));
      int times = failed.getOrDefault(message.getMsgId(), 0);
      if (times < failures) {
        failed.put(message.getMsgId(), times + 1);
        good = false;
      }
    }
    notifyAll();
    if (first) {
      stall();
    }
    return good;
  }

  private boolean known(String messageId) {
    return seen.stream().anyMatch(one -> one.get("message_id").equals(messageId));
  }

  /** Others may be delivered meanwhile. */
  private void stall() {
    long endMs = System.currentTimeMillis() + stallMs;
    long leftMs = stallMs;
    while (leftMs > 0) {
      try {
        wait(leftMs);
      } catch (InterruptedException ended) {
        Thread.currentThread().interrupt();
        return;
      }
      leftMs = endMs - System.currentTimeMillis();
    }
  }

  synchronized List<Map<String, Object>> waitFor(int count, long timeoutMs)
      throws InterruptedException {
    long endMs = System.currentTimeMillis() + timeoutMs;
    while (seen.size() < count) {
      long leftMs = endMs - System.currentTimeMillis();
      if (leftMs <= 0) {
        break;
      }
      wait(leftMs);
    }
    return new ArrayList<>(seen);
  }

  static Map<String, Object> shown(MessageExt message) {
    Map<String, Object> shown = new HashMap<>();
    shown.put("message_id", message.getMsgId());
    shown.put("topic", message.getTopic());
    shown.put("queue", message.getQueueId());
    shown.put("offset", message.getQueueOffset());
    shown.put("tag", message.getTags());
    shown.put("keys", message.getKeys());
    shown.put("body", Base64.getEncoder().encodeToString(message.getBody()));
    shown.put("reconsume_times", message.getReconsumeTimes());
    shown.put("born_host", String.valueOf(message.getBornHostString()));
    // An orderly consumer goes on to change them.
    shown.put("properties", new HashMap<>(message.getProperties()));
    return shown;
  }
}
