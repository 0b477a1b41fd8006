package compat;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Requests that wait for a reply, and a listener that replies. */
final class Requests {
  private Requests() {}

  /** Send a request and return the reply; `how`: sync or async. */
  static Object request(DefaultMQProducer producer, Message message, String how, long timeoutMs)
      throws Throwable {
    if (how.equals("sync")) {
      return shown(producer.request(message, timeoutMs));
    }
    CompletableFuture<Message> reply = new CompletableFuture<>();
    producer.request(
        message,
        new RequestCallback() {
          @Override
          public void onSuccess(Message answer) {
            // The client calls back once the request is sent, too, with no reply.
            if (answer != null) {
              reply.complete(answer);
            }
          }

          @Override
          public void onException(Throwable failure) {
            reply.completeExceptionally(failure);
          }
        },
        timeoutMs);
    try {
      return shown(reply.get(2 * timeoutMs, TimeUnit.MILLISECONDS));
    } catch (ExecutionException failure) {
      throw failure.getCause();
    }
  }

  private static Map<String, Object> shown(Message reply) {
    Map<String, Object> shown = new HashMap<>();
    shown.put("topic", reply.getTopic());
    shown.put("body", Base64.getEncoder().encodeToString(reply.getBody()));
    return shown;
  }

  /** Reply to each message with its body behind `re: `; the word `mute` gets no reply. */
  static void replyTo(DefaultMQPushConsumer consumer, Deliveries seen, DefaultMQProducer producer) {
    MessageListenerConcurrently listener =
        (messages, context) -> {
          for (MessageExt message : messages) {
            List<MessageExt> one = new ArrayList<>();
            one.add(message);
            seen.concurrently(one, context);
            if (!"mute".equals(new String(message.getBody(), StandardCharsets.UTF_8))) {
              reply(producer, message);
            }
          }
          return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        };
    consumer.registerMessageListener(listener);
  }

  private static void reply(DefaultMQProducer producer, MessageExt message) {
    byte[] head = "re: ".getBytes(StandardCharsets.UTF_8);
    byte[] body = new byte[head.length + message.getBody().length];
    System.arraycopy(head, 0, body, 0, head.length);
    System.arraycopy(message.getBody(), 0, body, head.length, message.getBody().length);
    try {
      producer.send(MessageUtil.createReplyMessage(message, body));
    } catch (Exception failure) {
      // The requester runs into its time limit.
      failure.printStackTrace();
    }
  }
}
