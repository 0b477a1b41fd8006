"""RocketMQ's remoting protocol as a second face of the broker: it only translates."""
