// Send one message and receive it: `dotnet run ENDPOINT TOPIC GROUP`.
using System.Text;
using Org.Apache.Rocketmq;

var (endpoint, topic, group) = (args[0], args[1], args[2]);
// SetCredentialsProvider(new StaticSessionCredentialsProvider("ACCESS KEY", "SECRET KEY")) where the
// cluster controls access; EnableSsl(false) for plaintext.
var configuration = new ClientConfig.Builder().SetEndpoints(endpoint).EnableSsl(true).Build();

await using (var producer = await new Producer.Builder()
                 .SetClientConfig(configuration)
                 .SetTopics(topic)
                 .Build())
{
    var message = new Message.Builder()
        .SetTopic(topic)
        .SetBody(Encoding.UTF8.GetBytes("Hello from C#"))
        .SetTag("created")
        .SetKeys("order-1")
        .Build();
    var receipt = await producer.Send(message);
    Console.WriteLine($"sent {receipt.MessageId}");
}

await using var consumer = await new SimpleConsumer.Builder()
    .SetClientConfig(configuration)
    .SetConsumerGroup(group)
    .SetAwaitDuration(TimeSpan.FromSeconds(5))
    .SetSubscriptionExpression(new Dictionary<string, FilterExpression>
        { { topic, new FilterExpression("*") } })
    .Build();
var received = new List<MessageView>();
while (received.Count == 0)
{
    received = await consumer.Receive(1, TimeSpan.FromSeconds(30)); // leased for 30 seconds
}

foreach (var message in received)
{
    Console.WriteLine($"received {message.MessageId} {Encoding.UTF8.GetString(message.Body)}");
    await consumer.Ack(message);
}
