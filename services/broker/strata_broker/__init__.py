"""The compute tier: it speaks RocketMQ 5 to clients and keeps no state that matters."""
