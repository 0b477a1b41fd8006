"""A broker whose world a test chooses: by default an edge, a nameserver and a node in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

from strata_angelia.ports import Channel
from strata_broker.app import BrokerApp
from strata_broker.base.config import BrokerConfig
from strata_broker.base.identity import BrokerIdentity
from strata_broker.kv.plugin import KvBrokerPlugin
from strata_broker.servicers.plugins import BrokerPlugin
from strata_broker.storage_client.channels import BrokerNetwork
from strata_edge.ports import Edge
from strata_runtime.clock import SystemClock
from strata_runtime.metrics import Metrics
from strata_runtime.runtime import Runtime
from strata_testing.broker.client import Client
from strata_testing.broker.fake_container import ContainerOnBroker
from strata_testing.broker.fake_edge import FakeEdge

SHORT_PAUSES: Mapping[str, Mapping[str, object]] = {
    "storage_client": {
        "first_retry_ms": 1,
        "max_retry_ms": 2,
        "max_parked_retry_ms": 4,
        "call_timeout_ms": 1_000,
    },
    "metadata": {"first_retry_ms": 1, "max_retry_ms": 2, "call_timeout_ms": 1_000},
    "receive": {"gone_grace_ms": 1, "surplus_pause_ms": 1, "min_polling_ms": 1},
    "telemetry": {"node_repeat_ms": (1, 2, 3)},
    "access_control": {"mode": "off"},
}

_PLUGINS: Mapping[str, Callable[[], BrokerPlugin]] = {
    "kv": KvBrokerPlugin,
    "container": ContainerOnBroker,
}

AnyEdge = TypeVar("AnyEdge", bound=Edge)

BROKER_A = BrokerIdentity("broker-a", 7, "127.0.0.1")


def broker_config(**sections: Any) -> BrokerConfig:
    """Return a configuration with short pauses and without access control.

    Args:
        sections: as in a configuration; keys of a section are added to those of short pauses, or
            replace them.
    """
    merged = {name: dict(keys) for name, keys in SHORT_PAUSES.items()}
    for name, given in sections.items():
        merged[name] = merged[name] | given if name in merged else given
    return BrokerConfig.model_validate(merged)


def waiting_receives(app: BrokerApp) -> int:
    """Return how many receives wait for messages in a broker."""
    return len(app._receiver._popper._room)


def _decided(config: BrokerConfig) -> BrokerConfig:
    """Decide about access control as a process does that listens on a loopback address."""
    section = config.access_control
    if section.mode != "auto":
        return config
    return config.model_copy(update={"access_control": section.model_copy(update={"mode": "off"})})


class BrokerUnderTest(Generic[AnyEdge]):
    """A broker that serves inside an `async with`; at its end nothing in it may have failed.

    Attributes:
        app: the broker.
        edge: in front of it.
        metrics: of the broker.
        failures: permanent loops and requests that failed unexpectedly, by name; a test that made
            them fail takes them out.
    """

    def __init__(
        self,
        identity: BrokerIdentity,
        config: BrokerConfig,
        edge: AnyEdge,
        *,
        network: BrokerNetwork,
        random: Callable[[], float],
        metrics: Metrics,
    ) -> None:
        self.edge = edge
        self.metrics = metrics
        self.failures: list[tuple[str, BaseException]] = []
        self.app = BrokerApp(
            identity,
            _decided(config),
            edge,
            network=network,
            runtime=Runtime(SystemClock(), random, metrics, self._on_failure),
            plugins=[made() for name, made in _PLUGINS.items() if name in config.plugins],
        )
        self.app.requests.on_failed(self._on_failure)

    def _on_failure(self, name: str, failure: BaseException) -> None:
        self.failures.append((name, failure))

    @cached_property
    def client(self) -> Client:
        """A client of the broker, whose edge is a FakeEdge."""
        assert isinstance(self.edge, FakeEdge)
        return Client(self.edge)

    async def start(self) -> None:
        await self.app.start()

    async def stop(self, grace_s: float = 0.1) -> None:
        """Stop the broker, unless it died.

        Raises:
            AssertionError: something in it failed, or a call is still under way.
        """
        if self.app.endpoint:
            await self.app.stop(grace_s)
            assert not isinstance(self.edge, FakeEdge) or not self.edge.running
        assert self.failures == []

    async def die(self) -> None:
        """Be gone from one moment to the next: nobody is told anything."""
        await self.app._tasks.stop()
        await self.app._storage.close()
        await self.app._metadata.close()
        self.app.endpoint = ""

    async def __aenter__(self) -> BrokerUnderTest[AnyEdge]:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def network_of(
    meta: Channel, storage: Channel | Callable[[Sequence[str]], Channel]
) -> BrokerNetwork:
    """Return a network of one nameserver and one storage node, or of what finds channels."""
    channels = storage if callable(storage) else lambda _: storage
    return BrokerNetwork(("nameserver",), lambda _: meta, channels)


def broker_under_test(
    edge: AnyEdge,
    network: BrokerNetwork,
    *,
    config: BrokerConfig | None = None,
    identity: BrokerIdentity = BROKER_A,
    random: Callable[[], float] = lambda: 0.5,
    metrics: Metrics | None = None,
) -> BrokerUnderTest[AnyEdge]:
    """Return a broker that is not started yet.

    Args:
        edge: in front of it.
        network: its nameservers and storage nodes; see `network_of`.
        config: None: short pauses.
        identity: who it is.
        random: numbers in [0, 1).
        metrics: None: its own.
    """
    return BrokerUnderTest(
        identity,
        config or broker_config(),
        edge,
        network=network,
        random=random,
        metrics=metrics or Metrics(),
    )
