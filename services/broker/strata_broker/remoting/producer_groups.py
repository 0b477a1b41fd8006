"""Producer groups of remoting clients, and the questions that they answer.

RocketMQ asks any connected producer of the group that sent a transactional message. Heartbeats tell
of the groups of a connection, but not of their topics; a group's topics are those that it sent such
messages to. The broker behind a topic's name learns them, because all remoting producers of the
topic send there. After the start of a broker it does not know them: it tells storage so, gets the
messages that nobody is asked about, and learns a topic from the first one that names a group here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.clients.producers import Producers, ProducersOf
from strata_broker.metadata.metadata import MetadataView, Name, TopicRow
from strata_broker.remoting.answers import RemotingRefusal
from strata_broker.remoting.exchange import RemotingPeer
from strata_broker.remoting.heard_producers import HeardProducers, MaySend
from strata_broker.remoting.heartbeats import MOST_NAME_CHARACTERS
from strata_broker.remoting.shown import ShownQueue, pulled_message
from strata_remoting import (
    OffsetPlace,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    Store,
    encode_message,
    offset_message_id,
    physical_offset,
)
from strata_runtime.metrics import Metrics

_MOST_TOPICS = 64
_NO_PLACE = OffsetPlace(-1, -1, -1)


class AskedProducer:
    """A connection with one producer group; an `AskedStream`.

    Args:
        client: the connection.
        view: knows topics.
        store: returns the address that messages name as their store: of this broker.
    """

    def __init__(
        self, client: RemotingPeer, view: MetadataView, store: Callable[[], Store]
    ) -> None:
        self._client = client
        self._view = view
        self._store = store

    @property
    def idle(self) -> bool:
        """See `AskedStream`."""
        return self._client.has_room

    def push(self, frame: bytes) -> None:
        """Ask for the decision on a transaction; see `AskedStream`."""
        command = service_pb2.TelemetryCommand.FromString(frame)
        asked = command.recover_orphaned_transaction_command
        message, transaction_id = asked.message, asked.transaction_id
        topic = self._view.topic(message.topic.resource_namespace, message.topic.name)
        if topic is not None:
            self._client.tell(self._question(message, topic, transaction_id))

    def _question(
        self, message: definition_pb2.Message, topic: TopicRow, transaction_id: str
    ) -> RemotingCommand:
        store, place = self._store(), ShownQueue(topic, 0, 0)
        physical = physical_offset(_NO_PLACE)
        shown = pulled_message(message, place, store)
        fields = {
            "topic": topic.name,
            "tranStateTableOffset": "0",
            "commitLogOffset": str(physical),
            "msgId": message.system_properties.message_id,
            "transactionId": transaction_id,
            "offsetMsgId": offset_message_id(store, physical),
        }
        return RemotingCommand(
            RequestCode.CHECK_TRANSACTION_STATE, fields=fields, body=encode_message(shown)
        ).oneway()


class ProducerGroups:
    """See the module docstring. Used on the event loop only.

    Args:
        producers: of the broker.
        view: knows topics.
        store: see `AskedProducer`.
        max_groups: producer groups whose topics are remembered; the oldest are forgotten first.
        max_groups_per_client: most producer groups of one connection.
        metrics: how many there are.
    """

    def __init__(
        self,
        producers: Producers,
        view: MetadataView,
        *,
        store: Callable[[], Store],
        max_groups: int,
        max_groups_per_client: int,
        metrics: Metrics,
    ) -> None:
        self._producers = producers
        self._view = view
        self._store = store
        self._max_groups = max_groups
        self._max_groups_per_client = max_groups_per_client
        # Topics that a group sent transactional messages to.
        self._topics: OrderedDict[str, set[Name]] = OrderedDict()
        metrics.gauge("strata_broker_remoting_transaction_groups", lambda: len(self._topics))
        # connection -> group -> the way to ask
        self._streams: dict[RemotingPeer, dict[str, AskedProducer]] = {}
        self._heard = HeardProducers()
        producers.add_others(self)

    @property
    def exist(self) -> bool:
        """See `OtherProducers`."""
        return self._heard.exist

    def find(self, topic: ProducersOf) -> None:
        """See `OtherProducers`."""
        namespace, name = topic.topic
        found = [] if namespace else self._heard.senders(topic.group, name)
        if found:
            self._learn(topic.group, topic.topic)
        for client in found:
            if not self._is_full(client, topic.group):
                self._join(client, topic.group, topic.topic)

    def heard(self, client: RemotingPeer, groups: Iterable[str], may_send: MaySend) -> None:
        """Note the producer groups of a heartbeat; those that it leaves out are gone.

        Args:
            client: the connection.
            groups: its producer groups.
            may_send: whether the client may send to a topic; if not, it is told nothing of it.
        """
        wanted = set(groups)
        for group in set(self._streams.get(client, ())) - wanted:
            self.left(client, group)
        existed = self.exist
        self._heard.heard(client, wanted, may_send)
        self._tell_if_changed(existed=existed)
        for group in wanted & self._topics.keys():
            allowed = [topic for topic in self._topics[group] if may_send(topic[1])]
            if len(allowed) < len(self._topics[group]):
                self._stop_asking(client, group)
            for topic in allowed:
                self._join(client, group, topic)

    def check_half(self, client: RemotingPeer, group: str) -> None:
        """Check that a producer of a group may send a transactional message.

        Raises:
            RemotingRefusal: the name is empty or too long, or the client has too many groups.
        """
        if not 0 < len(group) <= MOST_NAME_CHARACTERS:
            raise RemotingRefusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the producer group of a transactional message has {len(group)} characters; "
                f"1 to {MOST_NAME_CHARACTERS} are allowed",
            )
        if self._is_full(client, group):
            raise RemotingRefusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a client has at most {self._max_groups_per_client} groups "
                "(remoting.max_groups_per_client)",
            )

    def sent_half(self, client: RemotingPeer, group: str, topic: Name) -> None:
        """Note that a producer of a group has sent a transactional message to a topic."""
        if self._is_full(client, group):
            # Other sends of the connection were stored since it was checked.
            return
        self._learn(group, topic)
        self._join(client, group, topic)

    def left(self, client: RemotingPeer, group: str) -> None:
        """Forget a producer group that said goodbye."""
        existed = self.exist
        self._heard.left(client, group)
        self._tell_if_changed(existed=existed)
        self._stop_asking(client, group)

    def disconnected(self, client: RemotingPeer) -> None:
        """Forget a connection that ended."""
        existed = self.exist
        self._heard.disconnected(client)
        self._tell_if_changed(existed=existed)
        for stream in self._streams.pop(client, {}).values():
            self._producers.left(stream)

    def _stop_asking(self, client: RemotingPeer, group: str) -> None:
        stream = self._streams.get(client, {}).pop(group, None)
        if stream is not None:
            self._producers.left(stream)

    def _tell_if_changed(self, *, existed: bool) -> None:
        if existed != self.exist:
            self._producers.others_changed()

    def _learn(self, group: str, topic: Name) -> None:
        topics = self._topics.setdefault(group, set())
        self._topics.move_to_end(group)
        if len(topics) < _MOST_TOPICS:
            topics.add(topic)
        if len(self._topics) > self._max_groups:
            self._topics.popitem(last=False)

    def _is_full(self, client: RemotingPeer, group: str) -> bool:
        """Whether a connection has no room for a group."""
        streams = self._streams.get(client, {})
        return group not in streams and len(streams) >= self._max_groups_per_client

    def _join(self, client: RemotingPeer, group: str, topic: Name) -> None:
        if client.is_gone:
            return
        streams = self._streams.setdefault(client, {})
        stream = streams.get(group)
        if stream is None:
            stream = streams[group] = AskedProducer(client, self._view, self._store)
        self._producers.joined(stream, ProducersOf(topic, group))
