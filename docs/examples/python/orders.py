"""Send one message and receive it: `python orders.py ENDPOINT TOPIC GROUP`.

pip install rocketmq-python-client==5.1.2
"""

import sys

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)

endpoint, topic, group = sys.argv[1:]
# Credentials("ACCESS KEY", "SECRET KEY") where the cluster controls access.
configuration = ClientConfiguration(endpoint, Credentials())

producer = Producer(configuration, topics=[topic])  # tls_enable=True for TLS
producer.startup()
message = Message()
message.topic = topic
message.body = b"Hello from Python"
message.tag = "created"
message.keys = "order-1"
print("sent", producer.send(message).message_id)
producer.shutdown()

consumer = SimpleConsumer(configuration, group, {topic: FilterExpression("*")})
consumer.startup()
received = None
while not received:
    received = consumer.receive(1, 30)  # one message, leased for 30 seconds
for message in received:
    print("received", message.message_id, message.body.decode())
    consumer.ack(message)
consumer.shutdown()
