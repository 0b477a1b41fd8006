package compat;

import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Decides on transactions as the properties `local` and `check` of their messages say. */
final class Decisions implements TransactionListener {
  @Override
  public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
    return decision(message.getUserProperty("local"));
  }

  @Override
  public LocalTransactionState checkLocalTransaction(MessageExt message) {
    return decision(message.getUserProperty("check"));
  }

  private static LocalTransactionState decision(String wanted) {
    if ("commit".equals(wanted)) {
      return LocalTransactionState.COMMIT_MESSAGE;
    }
    return "rollback".equals(wanted)
        ? LocalTransactionState.ROLLBACK_MESSAGE
        : LocalTransactionState.UNKNOW;
  }
}
