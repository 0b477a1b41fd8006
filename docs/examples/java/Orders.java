import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Sends one message and receives it: {@code java -cp 'lib/*' Orders.java ENDPOINT TOPIC GROUP}.
 *
 * <p>Dependency: org.apache.rocketmq:rocketmq-client-java:5.2.0.
 */
public final class Orders {
  public static void main(String[] arguments) throws Exception {
    String topic = arguments[1];
    ClientServiceProvider provider = ClientServiceProvider.loadService();
    // setCredentialProvider(new StaticSessionCredentialsProvider("ACCESS KEY", "SECRET KEY")) where
    // the cluster controls access; enableSsl(false) for plaintext.
    ClientConfiguration configuration =
        ClientConfiguration.newBuilder().setEndpoints(arguments[0]).build();

    try (Producer producer =
        provider
            .newProducerBuilder()
            .setClientConfiguration(configuration)
            .setTopics(topic)
            .build()) {
      Message message =
          provider
              .newMessageBuilder()
              .setTopic(topic)
              .setBody("Hello from Java".getBytes(StandardCharsets.UTF_8))
              .setTag("created")
              .setKeys("order-1")
              .build();
      System.out.println("sent " + producer.send(message).getMessageId());
    }

    try (SimpleConsumer consumer =
        provider
            .newSimpleConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup(arguments[2])
            .setSubscriptionExpressions(Map.of(topic, new FilterExpression("*")))
            .setAwaitDuration(Duration.ofSeconds(5))
            .build()) {
      List<MessageView> received = List.of();
      while (received.isEmpty()) {
        received = consumer.receive(1, Duration.ofSeconds(30)); // leased for 30 seconds
      }
      for (MessageView message : received) {
        String body = StandardCharsets.UTF_8.decode(message.getBody()).toString();
        System.out.println("received " + message.getMessageId() + " " + body);
        consumer.ack(message);
      }
    }
    System.exit(0); // the client leaves threads behind
  }
}
