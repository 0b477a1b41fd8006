"""A storage node among the others: registration, replicas, moves of queues and slots."""
