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

/** Messages that a listener saw; it fails the first deliveries of each message id. */
final class Deliveries {
  private final int failures;
  private final List<Map<String, Object>> seen = new ArrayList<>();
  private final Map<String, Integer> failed = new HashMap<>();

  Deliveries(int failures) {
    this.failures = failures;
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
    for (MessageExt message : messages) {
      seen.add(shown(message));
      int times = failed.getOrDefault(message.getMsgId(), 0);
      if (times < failures) {
        failed.put(message.getMsgId(), times + 1);
        good = false;
      }
    }
    notifyAll();
    return good;
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

  private static Map<String, Object> shown(MessageExt message) {
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
    shown.put("properties", message.getProperties());
    return shown;
  }
}
