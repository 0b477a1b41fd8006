"""Systems that speak the v2 protocol: RocketMQ and StrataMQ, loaded by the same program."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from bench.peers import install
from bench.peers.errors import PeerError
from bench.peers.peer import LONGEST_DRAIN, Peer, window
from bench.peers.processes import run_load
from bench.peers.works import (
    BODY_BYTES,
    QUEUES,
    RATE_PER_S,
    WAITS_QUEUES,
    WAITS_RATE_PER_S,
    Kind,
    Work,
)

GROUP = "load"
FILLED_PER_S = 20_000
"""Messages that wait for a drain, for each second of the measured time."""
DRAINED = 0.9
"""Share of them after which a drain ends: the last ones come out of few queues."""
FILL_BATCH = 32
FILL_LIMIT_S = 60.0


def filled(seconds: float) -> int:
    """Return how many messages wait for a drain."""
    return int(FILLED_PER_S * seconds) // FILL_BATCH * FILL_BATCH


class V2Peer(Peer):
    """A system behind one endpoint of the v2 protocol.

    Attributes:
        endpoint: HOST:PORT, once it was launched.
    """

    kinds = frozenset({Kind.SEND, Kind.DRAIN, Kind.END_TO_END, Kind.WAITS})
    endpoint: str = ""
    _load_generator: Path = install.LOAD

    def install(self) -> None:
        """Build the load generator; see the base class."""
        self._load_generator = install.load_generator()

    def command(self, work: Work, topic: str, seconds: float) -> Sequence[str]:
        """Return the command of a load; see the base class."""
        flight = str(work.in_flight)
        match work.kind:
            case Kind.SEND:
                options = ["-mode", "send", "-in-flight", flight, "-batch", str(work.batch)]
            case Kind.DRAIN:
                messages = str(int(filled(seconds) * DRAINED))
                options = ["-mode", "drain", "-in-flight", flight, "-messages", messages]
                seconds *= LONGEST_DRAIN
            case Kind.END_TO_END:
                options = ["-mode", "end-to-end", "-receivers", flight, "-rate", str(RATE_PER_S)]
            case Kind.WAITS:
                options = ["-mode", "waits", "-in-flight", flight, "-rate", str(WAITS_RATE_PER_S)]
            case _:
                raise PeerError(f"{self.name} does not do {work.kind}")
        return [*self._program(topic), *window(seconds), *options]

    @abstractmethod
    def create(self, topic: str, queues: int) -> None:
        """Create a topic.

        Raises:
            PeerError: it was refused.
        """

    def prepare(self, work: Work, topic: str, seconds: float) -> None:
        """Create a topic and send what a drain receives; see the base class."""
        self.create(topic, WAITS_QUEUES if work.kind is Kind.WAITS else QUEUES)
        if work.kind is Kind.DRAIN:
            self._fill(topic, seconds)

    def _fill(self, topic: str, seconds: float) -> None:
        options = ["-mode", "fill", "-batch", str(FILL_BATCH), "-in-flight", "16"]
        messages = filled(seconds)
        report = run_load(
            [*self._program(topic), *options, "-messages", str(messages)], FILL_LIMIT_S
        )
        if report["messages"] < messages:
            raise PeerError(
                f"{report['messages']:,} of {messages:,} messages could be sent for a drain: "
                f"{report.get('first_error', '')}"
            )

    def _program(self, topic: str) -> list[str]:
        options = ["-endpoint", self.endpoint, "-topic", topic, "-group", GROUP]
        return [str(self._load_generator), *options, "-body", str(BODY_BYTES)]
