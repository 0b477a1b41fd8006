"""A broker as one object: the order in which its parts start and stop.

Start: first the metadata, because a broker without topics serves nobody. It comes from a
nameserver, or from a storage node when no nameserver answers. Then the edge, then the
registration, so that no route names a broker that does not listen. A broker that no nameserver
registers still serves.

Stop is the reverse. The broker leaves the routes, sends clients to other brokers and ends streams
and waits, but serves new calls. When the clients are gone or time is up, edge and channels close.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from strata.meta.v1 import meta_pb2
from strata_broker.assembly import BrokerParts
from strata_runtime.closing import close_all
from strata_runtime.health import Health
from strata_runtime.listening import endpoint_of
from strata_runtime.tasks import Tasks


class BrokerStartError(Exception):
    """The broker cannot serve; the text names what was missing."""


class BrokerApp(BrokerParts):
    """See the module docstring; a `Service` of the runtime's lifecycle."""

    name = "broker"

    def shown(self) -> dict[str, str]:
        """Return what the line of a process that serves says of the broker's further ports."""
        return {} if self._remoting is None else self._remoting.shown()

    @property
    def tasks(self) -> Tasks:
        """The broker's permanent loops; for tests and the list of long-lived tasks."""
        return self._tasks

    async def start(self) -> None:
        """Serve; then `port` and `endpoint` are known. A failed start leaves nothing running.

        Raises:
            BrokerStartError: neither a nameserver nor a storage seed gives metadata.
            OSError: the edge cannot listen.
        """
        try:
            await self._start()
        except BaseException:
            await self.stop(0)
            raise

    async def _start(self) -> None:
        self._tasks.spawn("follow metadata", self._follower.run())
        self._storage.cluster.follow(self._follower)
        timeout_s = self._config.metadata.start_timeout_ms / 1000
        if not await self.view.wait_for_snapshot(timeout_s):
            raise BrokerStartError(
                f"no metadata from a nameserver or a storage seed within {timeout_s:.1f} s"
            )
        self._storage.start()
        self.port = await self._edge.start()
        self.endpoint = self._config.route.advertised_endpoint or endpoint_of(
            self._identity.host, self.port
        )
        self._routes.set_own_endpoint(self.endpoint)
        self._deliverer.set_store_host(self.endpoint)
        self._puller.set_store_host(self.endpoint)
        self.checker.set_store_host(self.endpoint)
        peers = await self._operators.start_peers(self.port)
        if self._remoting is not None:
            await self._remoting.start(self.endpoint)
        await self._registration.register(self._node(peers))
        self._operators.start(self._tasks)
        self._tasks.spawn("rehash message groups", self._rehasher.run())
        self._tasks.spawn("push settings", self._telemetry.push_changes())
        self._tasks.spawn("report clients", self.liveness.run())
        self._tasks.spawn("check transactions", self.checker.send_checks())
        self._tasks.spawn("report checks", self.given_checks.run())
        self._tasks.spawn("give up transactions", self.checker.give_up())
        if self._windows is not None:
            self._tasks.spawn("collect windows", self._windows.run())
        self._serving.begin()
        self._log.info("broker serves", endpoint=self.endpoint, node_id=self._identity.node_id)

    def _node(self, endpoints: Sequence[str]) -> meta_pb2.Node:
        identity = self._identity
        return meta_pb2.Node(
            node_id=identity.node_id,
            kind=meta_pb2.NODE_KIND_BROKER,
            endpoints=endpoints,
            advertised_endpoint=self.endpoint,
            remoting_endpoint="" if self._remoting is None else self._remoting.endpoint,
            boot_id=identity.boot_id,
            rack=identity.rack,
            machine=identity.machine,
        )

    async def stop(self, grace_s: float) -> None:
        """Send clients to other brokers, finish calls within the grace, free everything."""
        ends_s = self._clock.monotonic_s() + grace_s
        self._serving.end()
        await close_all(
            "broker",
            lambda: self._registration.leave(grace_s),
            lambda: self._drain(grace_s),
            lambda: self._edge.stop(max(0.0, ends_s - self._clock.monotonic_s())),
            self._registration.left,
            self._operators.stop_peers,
            self.requests.stop,
            self._tasks.stop,
            *((self.liveness.leave,) if self.endpoint else ()),
            self._operators.close,
            self._storage.close,
            self._metadata.close,
        )

    async def _drain(self, grace_s: float) -> None:
        """Let clients move to other brokers without an error."""
        drain_s = min(grace_s / 2, self._config.route.max_drain_ms / 1000)
        async with asyncio.TaskGroup() as group:
            if self.port:
                group.create_task(self._edge.drain(drain_s))
            if self._remoting is not None:
                group.create_task(self._remoting.stop(drain_s))
            self._telemetry.end_all()
            self._receiver.end_all()
            self._puller.end_all()
            for plugin in self._plugins:
                plugin.end_all()

    def health(self) -> Health:
        """Return the broker's health."""
        return self._storage.cluster.health()
