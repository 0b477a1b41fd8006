package compat;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.message.MessageView;

/** Fails the first deliveries of each message id, then succeeds; remembers every delivery. */
final class ScriptedListener implements MessageListener {
  private final int failures;
  private final Function<MessageView, Map<String, Object>> report;
  private final Map<String, Integer> seen = new HashMap<>();
  private final List<Map<String, Object>> deliveries = new ArrayList<>();

  ScriptedListener(int failures, Function<MessageView, Map<String, Object>> report) {
    this.failures = failures;
    this.report = report;
  }

  @Override
  public synchronized ConsumeResult consume(MessageView view) {
    int count = seen.merge(view.getMessageId().toString(), 1, Integer::sum);
    deliveries.add(report.apply(view));
    notifyAll();
    return failures < 0 || count <= failures ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
  }

  /** Returns all deliveries so far once there are {@code count}, or when the time is up. */
  synchronized List<Map<String, Object>> await(int count, Duration timeout)
      throws InterruptedException {
    long end = System.nanoTime() + timeout.toNanos();
    while (deliveries.size() < count) {
      long left = (end - System.nanoTime()) / 1_000_000;
      if (left <= 0) {
        break;
      }
      wait(left);
    }
    return new ArrayList<>(deliveries);
  }
}
