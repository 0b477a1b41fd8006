package compat;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.TransactionChecker;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** Answers every check alike; remembers the message ids. */
final class ScriptedChecker implements TransactionChecker {
  private final TransactionResolution answer;
  private final List<String> messageIds = new ArrayList<>();

  ScriptedChecker(String answer) {
    this.answer = TransactionResolution.valueOf(answer.toUpperCase(Locale.ROOT));
  }

  @Override
  public synchronized TransactionResolution check(MessageView view) {
    messageIds.add(view.getMessageId().toString());
    notifyAll();
    return answer;
  }

  /** Returns all message ids so far once there are {@code count}, or when the time is up. */
  synchronized List<String> await(int count, Duration timeout) throws InterruptedException {
    long end = System.nanoTime() + timeout.toNanos();
    while (messageIds.size() < count) {
      long left = (end - System.nanoTime()) / 1_000_000;
      if (left <= 0) {
        break;
      }
      wait(left);
    }
    return new ArrayList<>(messageIds);
  }
}
