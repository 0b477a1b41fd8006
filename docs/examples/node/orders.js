// Send one message and receive it: `node orders.js ENDPOINT TOPIC GROUP`.
//
// npm install rocketmq-client-nodejs@1.0.8
const { FilterExpression, Producer, SimpleConsumer } = require('rocketmq-client-nodejs');

async function main(endpoints, topic, consumerGroup) {
  // sessionCredentials: { accessKey, accessSecret } where the cluster controls access,
  // sslEnabled: true for TLS.
  const producer = new Producer({ endpoints, namespace: '', topics: [topic] });
  await producer.startup();
  const receipt = await producer.send({
    topic,
    body: Buffer.from('Hello from Node'),
    tag: 'created',
    keys: ['order-1'],
  });
  console.log('sent', receipt.messageId);
  await producer.shutdown();

  const consumer = new SimpleConsumer({
    endpoints,
    namespace: '',
    consumerGroup,
    subscriptions: new Map([[topic, new FilterExpression('*')]]),
    awaitDuration: 5_000,
  });
  await consumer.startup();
  let received = [];
  while (received.length === 0) {
    received = await consumer.receive(1, 30_000); // one message, leased for 30 seconds
  }
  for (const message of received) {
    console.log('received', message.messageId, message.body.toString());
    await consumer.ack(message);
  }
  await consumer.shutdown();
}

main(...process.argv.slice(2)).then(() => process.exit(0));
