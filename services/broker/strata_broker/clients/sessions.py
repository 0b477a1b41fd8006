"""Which clients are alive, and what they said of themselves.

Nothing here matters for correctness of data calls (a client that was never heard of is served);
it decides how long auto-renewed leases live (rule 25) and what `group show` lists. Invariant: a
client is known by its id alone, whatever connection it uses.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from apache.rocketmq.v2 import definition_pb2
from strata_broker.config import SessionSection
from strata_broker.requests import Caller, milliseconds
from strata_broker.storage.metadata import Name
from strata_mq.hashing import key_hash
from strata_runtime.clock import Clock

_CONSUMER_TYPES = frozenset(
    (
        definition_pb2.PUSH_CONSUMER,
        definition_pb2.SIMPLE_CONSUMER,
        definition_pb2.PULL_CONSUMER,
        definition_pb2.LITE_PUSH_CONSUMER,
        definition_pb2.LITE_SIMPLE_CONSUMER,
    )
)


class Client:
    """One client process's producer or consumer.

    Attributes:
        settings: what it said of itself; None: nothing to this broker.
        address: where it connects from, without port; "": no stream came from it.
        request_timeout_ms: how long its calls take at most, as its settings say; 0: not known.
        answer: the serialised command that it was answered then.
        transaction_topics: topics that it sent transactional messages to.
    """

    __slots__ = (
        "address",
        "answer",
        "client_id",
        "client_type",
        "consumer_group",
        "heard_s",
        "heard_wall_ms",
        "holder",
        "language",
        "open_calls",
        "request_timeout_ms",
        "settings",
        "subscriptions",
        "topics",
        "transaction_topics",
        "version",
    )

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.address = ""
        # Names the client in storage: the holder of auto-renewed leases.
        self.holder = key_hash(client_id)
        self.client_type = 0
        self.consumer_group: Name | None = None
        self.language = 0
        self.version = ""
        self.heard_s = 0.0
        self.heard_wall_ms = 0
        # Telemetry streams and parked receives: as long as there is one, the client is connected.
        self.open_calls = 0
        self.subscriptions: dict[Name, str] = {}
        self.topics: tuple[Name, ...] = ()
        self.transaction_topics: set[Name] = set()
        self.settings: definition_pb2.Settings | None = None
        self.request_timeout_ms = 0
        self.answer = b""

    @property
    def is_consumer(self) -> bool:
        """Whether it said that it consumes."""
        return self.client_type in _CONSUMER_TYPES or self.consumer_group is not None


class Sessions:
    """See the module docstring. Used on the event loop only."""

    def __init__(self, config: SessionSection, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        # Least recently heard first.
        self._clients: OrderedDict[str, Client] = OrderedDict()
        self._goodbyes: set[int] = set()
        self._on_goodbye: Callable[[], None] = lambda: None
        self._on_terminated: Callable[[str], None] = lambda _: None

    def __len__(self) -> int:
        return len(self._clients)

    def on_goodbye(self, callback: Callable[[], None]) -> None:
        """Call back when a client says goodbye, so that its leases are released at once."""
        self._on_goodbye = callback

    def on_terminated(self, callback: Callable[[str], None]) -> None:
        """Call back with the id of a client that said goodbye; its stream may live on."""
        self._on_terminated = callback

    def heard(self, client_id: str) -> Client:
        """Note a sign of life; the longest silent client makes room at the limit."""
        client = self._clients.get(client_id)
        if client is None:
            if len(self._clients) >= self._config.max_clients:
                self._clients.popitem(last=False)
            client = self._clients[client_id] = Client(client_id)
        else:
            self._clients.move_to_end(client_id)
        client.heard_s = self._clock.monotonic_s()
        client.heard_wall_ms = self._clock.wall_ms()
        return client

    def described(self, caller: Caller, settings: definition_pb2.Settings, language: int) -> Client:
        """Note what a client's settings say."""
        client = self.heard(caller.client_id)
        client.settings = settings
        client.client_type = settings.client_type
        client.language = language
        client.version = settings.user_agent.version
        client.request_timeout_ms = milliseconds(settings.request_timeout)
        if settings.WhichOneof("pub_sub") == "subscription":
            client.consumer_group = caller.name_of(settings.subscription.group)
            most = self._config.max_subscriptions_per_client
            client.subscriptions = {
                caller.name_of(entry.topic): entry.expression.expression
                for entry in settings.subscription.subscriptions[:most]
            }
        else:
            client.topics = tuple(
                caller.name_of(topic)
                for topic in settings.publishing.topics[: self._config.max_subscriptions_per_client]
            )
        return client

    def subscribed(self, client: Client, group: Name, topic: Name, expression: str) -> None:
        """Note what a receive shows: settings may never have reached this broker."""
        client.consumer_group = group
        known = client.subscriptions
        if topic in known or len(known) < self._config.max_subscriptions_per_client:
            known[topic] = expression

    def request_timeout_ms(self, client_id: str) -> int:
        """Return how long a client's calls take at most; 0: it said nothing to this broker."""
        client = self._clients.get(client_id)
        return 0 if client is None else client.request_timeout_ms

    def terminated(self, client_id: str) -> None:
        """The client said goodbye."""
        client = self._clients.pop(client_id, None)
        self._on_terminated(client_id)
        if client is not None:
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
        return silent_ms <= limit_ms

    def live_holders(self) -> set[int]:
        """Return the holders of clients that are alive; forget those silent for too long."""
        now_s = self._clock.monotonic_s()
        live: set[int] = set()
        expired: list[str] = []
        for client in self._clients.values():
            if self.is_alive(client, now_s):
                live.add(client.holder)
            elif (now_s - client.heard_s) * 1000 > self._config.expire_ms:
                expired.append(client.client_id)
        for client_id in expired:
            del self._clients[client_id]
        return live

    def alive(self) -> list[Client]:
        """Return the clients that are alive, in no order."""
        now_s = self._clock.monotonic_s()
        return [client for client in self._clients.values() if self.is_alive(client, now_s)]

    def count(self, *, consumers: bool) -> int:
        """Return how many clients consume, or only produce."""
        return sum(client.is_consumer is consumers for client in self._clients.values())
