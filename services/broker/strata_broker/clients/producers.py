"""The connected producers that can be asked for the decision on a transaction, by topic.

Any producer of the topic may be asked (gRPC producers have no group). Producers that have sent a
transactional message are asked first: a producer without a checker ignores the question. The
topics a client has sent to count beside its settings, because a stream may be bare: reconnected
Python clients send no settings for minutes. A producer of the remoting protocol has a group, and is
asked about messages of its group alone. The topics of such a group may not be known; whoever knows
the group (`OtherProducers`) adds them to a topic when a message names the group. Used on the event
loop only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple, Protocol

from strata_broker.clients.sessions import Client, Sessions
from strata_broker.metadata.metadata import MetadataView, Name

# Most streams to search for an idle one; the other streams have their turn later.
_LOOKED_AT = 8


class AskedStream(Protocol):
    """The way to a producer."""

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be sent on it."""

    def push(self, frame: bytes) -> None:
        """Send a frame."""


class ProducerStream(AskedStream, Protocol):
    """The part of a client's telemetry stream that is used here."""

    client: Client


class ProducersOf(NamedTuple):
    """The producers of one topic that answer for each other.

    Attributes:
        topic: of their messages.
        group: their producer group; empty: they have none, as all gRPC producers.
    """

    topic: Name
    group: str = ""


class OtherProducers(Protocol):
    """Producers with a group whose topics are not known."""

    @property
    def exist(self) -> bool:
        """Whether there are any."""

    def find(self, topic: ProducersOf) -> None:
        """Let those of a group join a topic that a message of theirs was sent to."""


class _OfTopic:
    """Streams of producers that answer for each other; the next to ask comes first."""

    __slots__ = ("others", "senders")

    def __init__(self) -> None:
        # Dictionaries for their order.
        self.senders: dict[AskedStream, None] = {}
        self.others: dict[AskedStream, None] = {}

    @property
    def empty(self) -> bool:
        return not self.senders and not self.others


class Producers:
    """See the module docstring.

    Args:
        view: which topics there are.
        sessions: what clients said and did.
        max_topics_per_client: topics remembered that a client has sent to.
    """

    def __init__(
        self, view: MetadataView, sessions: Sessions, *, max_topics_per_client: int
    ) -> None:
        self._view = view
        self._sessions = sessions
        self._max_topics_per_client = max_topics_per_client
        self._by_client: dict[str, set[ProducerStream]] = {}
        self._by_topic: dict[ProducersOf, _OfTopic] = {}
        # Topics in `_by_topic` -> in how many of its keys they are.
        self._group_counts: dict[Name, int] = {}
        self._topics_of: dict[AskedStream, set[ProducersOf]] = {}
        self._on_topics: Callable[[], None] = lambda: None
        self._others: OtherProducers | None = None
        sessions.on_terminated(self._terminated)

    def on_topics(self, callback: Callable[[], None]) -> None:
        """Call back when what `topic_ids` returns may have changed: a producer came or went.

        It was the first one of a topic with transactional messages, or the last one.
        """
        self._on_topics = callback

    def add_others(self, others: OtherProducers) -> None:
        """Ask also producers with a group whose topics are not known."""
        self._others = others

    def others_changed(self) -> None:
        """Note that the first of these producers has come, or the last one has gone."""
        self._on_topics()

    @property
    def has_others(self) -> bool:
        """Whether there are producers with a group whose topics are not known."""
        return self._others is not None and self._others.exist

    def update(self, stream: ProducerStream) -> None:
        """Note that a stream is open, and the present settings of its client."""
        client = stream.client
        self._by_client.setdefault(client.client_id, set()).add(stream)
        known = client.transaction_topics
        topics = {ProducersOf(topic) for topic in (*client.topics, *known)}
        before = self._topics_of.get(stream, set())
        self._leave(stream, before - topics)
        self._topics_of[stream] = topics
        for topic in topics:
            self._join(stream, topic, sender=topic.topic in known)

    def joined(self, stream: AskedStream, topic: ProducersOf) -> None:
        """Note that a producer of a group can be asked about a topic; `left` ends it."""
        self._topics_of.setdefault(stream, set()).add(topic)
        self._join(stream, topic, sender=True)

    def left(self, stream: AskedStream) -> None:
        """Forget a producer that joined."""
        self._leave(stream, self._topics_of.pop(stream, set()))

    def closed(self, stream: ProducerStream) -> None:
        """A stream is no more."""
        client_id = stream.client.client_id
        streams = self._by_client.get(client_id, set())
        streams.discard(stream)
        if not streams:
            self._by_client.pop(client_id, None)
        self.left(stream)

    def sent_half(self, client_id: str, topic: Name, *, peer: str, user: str) -> None:
        """A client sends a transactional message, so it can be asked about those of the topic.

        Args:
            client_id: of the client.
            topic: of the message.
            peer: `host:port` of the client.
            user: who signed the call; "": access is not controlled.

        Raises:
            RequestError: see `Sessions.heard`.
        """
        client = self._sessions.heard(client_id, peer, user)
        known = client.transaction_topics
        if topic in known or len(known) >= self._max_topics_per_client:
            return
        known.add(topic)
        for stream in self._by_client.get(client_id, ()):
            self.joined(stream, ProducersOf(topic))

    def topic_ids(self) -> tuple[int, ...]:
        """Return the topics with transactional messages that have a producer here, by number."""
        return tuple(sorted(self._view.topics().transactional_ids(self._group_counts.keys())))

    def has(self, topic: ProducersOf) -> bool:
        """Whether a producer that can answer is connected."""
        return topic in self._by_topic

    def next_idle(self, topic: ProducersOf) -> AskedStream | None:
        """Return the next idle stream of a producer that can answer.

        None: there is no such producer, or all searched streams are busy.
        """
        if topic not in self._by_topic and topic.group and self._others is not None:
            self._others.find(topic)
        of_topic = self._by_topic.get(topic)
        if of_topic is None:
            return None
        streams = of_topic.senders or of_topic.others
        for stream in list(islice(streams, _LOOKED_AT)):
            # Move it to the end, so that a busy stream does not block the next one.
            del streams[stream]
            streams[stream] = None
            if stream.idle:
                return stream
        return None

    def _terminated(self, client_id: str) -> None:
        """Stop asking a client that said goodbye: Go clients leave their streams open."""
        for stream in self._by_client.get(client_id, ()):
            self._leave(stream, self._topics_of[stream])
            self._topics_of[stream] = set()

    def _join(self, stream: AskedStream, topic: ProducersOf, *, sender: bool) -> None:
        of_topic = self._by_topic.get(topic)
        if of_topic is None:
            of_topic = self._by_topic[topic] = _OfTopic()
            self._count(topic.topic, 1)
        if sender:
            of_topic.others.pop(stream, None)
            of_topic.senders.setdefault(stream)
        elif stream not in of_topic.senders:
            of_topic.others.setdefault(stream)

    def _leave(self, stream: AskedStream, topics: Iterable[ProducersOf]) -> None:
        for topic in topics:
            of_topic = self._by_topic[topic]
            of_topic.senders.pop(stream, None)
            of_topic.others.pop(stream, None)
            if of_topic.empty:
                del self._by_topic[topic]
                self._count(topic.topic, -1)

    def _count(self, topic: Name, by: int) -> None:
        """Count the producer groups of a topic; tell of the first one and the last one."""
        before = self._group_counts.get(topic, 0)
        after = before + by
        if after:
            self._group_counts[topic] = after
        else:
            del self._group_counts[topic]
        if not (before and after) and self._view.topics().is_transactional(topic):
            self._on_topics()
