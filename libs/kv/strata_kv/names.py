"""A table in the metadata is a topic with one queue and a name of its own.

So a table has an id that is never reused, a slot, a raft group that owns it, and a tombstone after
its deletion, by the same rules as queues (rules 17 and 19).
"""

from __future__ import annotations

from strata_mq.requests import TABLE_PREFIX, is_table_topic

QUEUE = 0
"""The one queue of such a topic."""


def topic_of(table: str) -> str:
    """Return the name of the topic that stands for a table."""
    return TABLE_PREFIX + table


def table_of(topic: str) -> str | None:
    """Return the table that a topic stands for; None: it is a topic for messages."""
    return topic.removeprefix(TABLE_PREFIX) if is_table_topic(topic) else None
