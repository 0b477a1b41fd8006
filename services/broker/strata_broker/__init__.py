"""The compute tier: speaks RocketMQ 5 to clients, keeps no state that matters."""
