"""Live clients and their settings.

The correctness of data calls does not depend on sessions: an unknown client is served. Sessions
decide how long auto-renewed leases live (rule 25) and which members `group show` lists. Invariant:
a client is known by its id alone, whatever connection it uses.

A client's settings are kept as bytes and as values derived from them, within one budget for all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from apache.rocketmq.v2 import definition_pb2
from strata_broker.access.principals import AccessRefused
from strata_broker.base.config import SessionSection
from strata_broker.base.errors import too_many_requests
from strata_broker.metadata.metadata import Name
from strata_broker.metadata.requests import Caller, milliseconds
from strata_edge.addresses import network_of_peer
from strata_mq.layout import key_hash
from strata_mq.requests import Code
from strata_runtime.clock import Clock
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics

_CONSUMER_TYPES = frozenset(
    (
        definition_pb2.PUSH_CONSUMER,
        definition_pb2.SIMPLE_CONSUMER,
        definition_pb2.PULL_CONSUMER,
        definition_pb2.LITE_PUSH_CONSUMER,
        definition_pb2.LITE_SIMPLE_CONSUMER,
    )
)

# Characters of an expression, host name or version that operators are shown.
_MOST_SHOWN = 1_024
# Bytes that a short text takes beside its characters.
_OBJECT_BYTES = 64
_PURGE_PERIOD_S = 1.0


class Client:
    """One client process's producer or consumer.

    Attributes:
        said: its settings, serialised; b"": this broker got none, or there was no room for them.
        told: hash of the settings that it got as the answer.
        hostname: from its settings.
        filter_types: by topic, from its settings.
        address: where it connects from, without port; "": no stream came from it.
        request_timeout_ms: longest time of its calls, from its settings; 0: not known.
        user: whose client it is, where access is controlled; empty: not known.
        transaction_topics: topics that it sent transactional messages to.
        kept_bytes: bytes charged for its settings.
        counted_at: address in whose share of clients it counts.
    """

    __slots__ = (
        "address",
        "client_id",
        "client_type",
        "consumer_group",
        "counted_at",
        "filter_types",
        "heard_s",
        "heard_wall_ms",
        "holder",
        "hostname",
        "is_gone",
        "kept_bytes",
        "language",
        "open_calls",
        "request_timeout_ms",
        "said",
        "subscriptions",
        "told",
        "topics",
        "transaction_topics",
        "user",
        "version",
    )

    def __init__(self, client_id: str, counted_at: str = "") -> None:
        self.client_id = client_id
        self.counted_at = counted_at
        self.address = ""
        self.user = ""
        # Names the client in storage: the holder of auto-renewed leases.
        self.holder = key_hash(client_id)
        self.client_type = 0
        self.consumer_group: Name | None = None
        self.language = 0
        self.version = ""
        self.hostname = ""
        self.heard_s = 0.0
        self.heard_wall_ms = 0
        # It said goodbye and nothing since.
        self.is_gone = False
        # Telemetry streams and parked receives: as long as there is one, the client is connected.
        self.open_calls = 0
        self.subscriptions: dict[Name, str] = {}
        self.filter_types: dict[str, int] = {}
        self.topics: tuple[Name, ...] = ()
        self.transaction_topics: set[Name] = set()
        self.request_timeout_ms = 0
        self.said = b""
        self.told = b""
        self.kept_bytes = 0

    @property
    def is_consumer(self) -> bool:
        """Whether its settings say that it consumes."""
        return self.client_type in _CONSUMER_TYPES or self.consumer_group is not None


class Sessions:
    """See the module docstring. Used on the event loop only.

    Invariants: a client that is alive, or has an open stream, is never forgotten to make room;
    the settings of all clients take at most `max_bytes`.
    """

    def __init__(
        self, config: SessionSection, clock: Clock, metrics: Metrics | None = None
    ) -> None:
        self._config = config
        self._clock = clock
        self._kept = Limit(
            "sessions", config.max_bytes, "bytes", metrics=metrics or Metrics.disabled()
        )
        self._clients: dict[str, Client] = {}
        self._at_address: Counter[str] = Counter()
        self._purged_s = 0.0
        self._goodbyes: set[int] = set()
        self._on_goodbye: Callable[[], None] = lambda: None
        self._on_terminated: list[Callable[[str], None]] = []

    def __len__(self) -> int:
        return len(self._clients)

    def on_goodbye(self, callback: Callable[[], None]) -> None:
        """Call back when a client says goodbye, so that its leases are released soon."""
        self._on_goodbye = callback

    def on_terminated(self, callback: Callable[[str], None]) -> None:
        """Call back with the id of a client that said goodbye; its stream may live on."""
        self._on_terminated.append(callback)

    def find(self, client_id: str) -> Client | None:
        """Find a client that is remembered."""
        return self._clients.get(client_id)

    def find_alive(self, client_id: str) -> Client | None:
        """Find a client that is alive."""
        client = self._clients.get(client_id)
        if client is None or not self.is_alive(client, self._clock.monotonic_s()):
            return None
        return client

    def heard(self, client_id: str, peer: str = "", user: str = "") -> Client:
        """Note a sign of life.

        Args:
            client_id: of the client.
            peer: `host:port` of the client; "": the broker is its own client.
            user: who signed the call; "": access is not controlled.

        Raises:
            AccessRefused: FORBIDDEN: the client is another user's.
            RequestError: TOO_MANY_REQUESTS: the client is new, and the most clients, all of them
                alive, are there already, in all or from its address.
        """
        client = self._clients.get(client_id)
        if client is None:
            client = self._welcome(client_id, network_of_peer(peer))
        if user and client.user != user:
            if client.user:
                raise not_owned(client_id)
            client.user = user
        client.is_gone = False
        client.heard_s = self._clock.monotonic_s()
        client.heard_wall_ms = self._clock.wall_ms()
        return client

    def described(self, caller: Caller, settings: definition_pb2.Settings, language: int) -> Client:
        """Note a client's settings."""
        client = self.heard(caller.client_id)
        most = self._config.max_subscriptions_per_client
        agent = settings.user_agent
        client.client_type = settings.client_type
        client.language = language
        client.version = agent.version[:_MOST_SHOWN]
        client.hostname = agent.hostname[:_MOST_SHOWN]
        client.request_timeout_ms = milliseconds(settings.request_timeout)
        client.said = settings.SerializeToString()
        if settings.WhichOneof("pub_sub") == "subscription":
            client.consumer_group = caller.name_of(settings.subscription.group)
            entries = settings.subscription.subscriptions[:most]
            client.subscriptions = {
                caller.name_of(entry.topic): entry.expression.expression[:_MOST_SHOWN]
                for entry in entries
            }
            client.filter_types = {
                entry.topic.name: entry.expression.type
                for entry in entries
                if entry.expression.type
            }
        else:
            topics = settings.publishing.topics[:most]
            client.topics = tuple(caller.name_of(topic) for topic in topics)
        if not self._charge(client):
            client.said = b""
            client.subscriptions, client.filter_types, client.topics = {}, {}, ()
            self._charge(client)
        return client

    def subscribed(self, client: Client, group: Name, topic: Name, expression: str) -> None:
        """Note the subscription of a receive: settings may never have reached this broker."""
        client.consumer_group = group
        known = client.subscriptions
        shown = expression[:_MOST_SHOWN]
        before = known.get(topic)
        if before == shown:
            return
        if before is None and len(known) >= self._config.max_subscriptions_per_client:
            return
        known[topic] = shown
        if not self._charge(client):
            del known[topic]
            self._charge(client)

    def request_timeout_ms(self, client_id: str) -> int:
        """Return the longest time of a client's calls; 0: this broker has no settings of it."""
        client = self._clients.get(client_id)
        return 0 if client is None else client.request_timeout_ms

    def terminated(self, client_id: str) -> None:
        """The client said goodbye; it is forgotten when its streams and receives have ended."""
        client = self._clients.get(client_id)
        for callback in self._on_terminated:
            callback(client_id)
        if client is not None:
            client.is_gone = True
            if not client.open_calls:
                self._forget(client)
            self._goodbyes.add(client.holder)
            self._on_goodbye()

    def take_goodbyes(self) -> set[int]:
        """Return the holders of clients that said goodbye since the last call."""
        goodbyes, self._goodbyes = self._goodbyes, set()
        return goodbyes

    def is_alive(self, client: Client, now_s: float) -> bool:
        """Whether the client counts as alive (rule 25)."""
        silent_ms = (now_s - client.heard_s) * 1000
        limit_ms = self._config.expire_ms if client.open_calls else self._config.silent_ms
        return silent_ms <= limit_ms and not client.is_gone

    def live_holders(self) -> set[int]:
        """Return the holders of clients that are alive; forget those silent for too long."""
        now_s = self._clock.monotonic_s()
        live: set[int] = set()
        expired: list[Client] = []
        for client in self._clients.values():
            if self.is_alive(client, now_s):
                live.add(client.holder)
            elif not client.open_calls and (
                client.is_gone or (now_s - client.heard_s) * 1000 > self._config.expire_ms
            ):
                expired.append(client)
        for client in expired:
            self._forget(client)
        return live

    def alive(self) -> list[Client]:
        """Return the clients that are alive, in no order."""
        now_s = self._clock.monotonic_s()
        return [client for client in self._clients.values() if self.is_alive(client, now_s)]

    def count(self, *, consumers: bool) -> int:
        """Return how many clients consume, or only produce."""
        there = (client for client in self._clients.values() if not client.is_gone)
        return sum(client.is_consumer is consumers for client in there)

    # Room ---------------------------------------------------------------------------------------

    def _welcome(self, client_id: str, address: str) -> Client:
        if len(self._clients) >= self._config.max_clients and not self._make_room():
            raise too_many_requests("too many clients are connected (session.max_clients)")
        if address and self._at_address[address] >= self._config.max_clients_per_address:
            raise too_many_requests(
                "too many clients are connected from this address (session.max_clients_per_address)"
            )
        client = self._clients[client_id] = Client(client_id, address)
        self._at_address[address] += 1
        self._charge(client)
        return client

    def _make_room(self) -> bool:
        """Forget clients that are not alive; return whether there were any. Slow: it checks all."""
        now_s = self._clock.monotonic_s()
        if now_s < self._purged_s + _PURGE_PERIOD_S:
            return False
        silent = [
            client
            for client in self._clients.values()
            if not client.open_calls and not self.is_alive(client, now_s)
        ]
        for client in silent:
            self._forget(client)
        if not silent:
            self._purged_s = now_s
        return bool(silent)

    def _forget(self, client: Client) -> None:
        del self._clients[client.client_id]
        self._kept.give_back(client.kept_bytes)
        client.kept_bytes = 0
        self._at_address[client.counted_at] -= 1
        if not self._at_address[client.counted_at]:
            del self._at_address[client.counted_at]

    def _charge(self, client: Client) -> bool:
        """Charge the kept bytes of a client; False: there is no room for them."""
        if client.client_id not in self._clients:
            return True
        size_bytes = _size_bytes(client)
        more_bytes = size_bytes - client.kept_bytes
        if more_bytes > 0 and not self._kept.try_take(more_bytes):
            return False
        if more_bytes < 0:
            self._kept.give_back(-more_bytes)
        client.kept_bytes = size_bytes
        return True


def not_owned(client_id: str) -> AccessRefused:
    """Return the refusal of a call in the name of another user's client."""
    return AccessRefused(
        Code.FORBIDDEN,
        f"client {client_id} belongs to another user",
        reason="client of another user",
    )


def _size_bytes(client: Client) -> int:
    """Return about how many bytes a client's settings take."""
    names = [text for topic in client.topics for text in topic]
    texts = [*names, *client.subscriptions.values(), *(name for _, name in client.subscriptions)]
    return len(client.said) + sum(map(len, texts)) + _OBJECT_BYTES * len(texts)
