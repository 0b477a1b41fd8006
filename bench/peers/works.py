"""The work that systems are compared by, and what StrataMQ has to reach: data only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

QUEUES = 8
WAITS_QUEUES = 12
BODY_BYTES = 1024


class Phase(StrEnum):
    """Systems that are compared with each other.

    Attributes:
        SINGLE: one copy of each message.
        REPLICATED: three replicas of each message.
        TABLES: three replicas of each item of a table.
    """

    SINGLE = "single"
    REPLICATED = "replicated"
    TABLES = "tables"

    @property
    def together(self) -> bool:
        """Whether its systems run at the same time, or one after the other in each round.

        Replicated systems run alone: idle ones take up to a third of a core, and a cluster that is
        paused would hold an election afterwards.
        """
        return self is Phase.SINGLE


class Kind(StrEnum):
    """The work of a load.

    Attributes:
        SEND: it keeps a number of requests in flight.
        DRAIN: it receives and acknowledges what was sent before.
        END_TO_END: it sends at a fixed rate while consumers receive and acknowledge.
        WAITS: it sends slowly while simple consumers wait.
        GETS: it keeps a number of reads of a table in flight.
    """

    SEND = "send"
    DRAIN = "drain"
    END_TO_END = "end-to-end"
    WAITS = "waits"
    GETS = "gets"


class Figure(StrEnum):
    """A figure of a load.

    Attributes:
        RATE: messages, or gets, per second.
        PER_CPU_S: messages per second of the CPU time of all server processes.
        P50: the median latency in milliseconds.
        P99: the 99th percentile of the latency in milliseconds.
    """

    RATE = "messages_per_s"
    PER_CPU_S = "messages_per_server_cpu_s"
    P50 = "p50_ms"
    P99 = "p99_ms"

    @property
    def more_is_better(self) -> bool:
        """Whether a high value is good."""
        return self in (Figure.RATE, Figure.PER_CPU_S)


@dataclass(frozen=True)
class Bar:
    """A value to reach: absolute, or times the figure of another system.

    Attributes:
        value: the value, or the factor.
        of: name of the other system; empty: the value is absolute.
    """

    value: float
    of: str = ""


@dataclass(frozen=True)
class Target:
    """The bar and the goal of one figure of StrataMQ."""

    figure: Figure
    must: Bar
    goal: Bar


@dataclass(frozen=True)
class Work:
    """A row of the table.

    Attributes:
        name: for the command line.
        text: for people.
        phase: the systems that do it.
        kind: what the load does.
        in_flight: requests, receivers or consumers at a time.
        batch: messages in one request.
        targets: for StrataMQ.
    """

    name: str
    text: str
    phase: Phase
    kind: Kind
    in_flight: int
    batch: int = 1
    targets: tuple[Target, ...] = ()


ROCKETMQ = "rocketmq"
ETCD = "etcd"
RATE_PER_S = 1_000
WAITS_RATE_PER_S = 50
LINGER_MS = 5

WORKS: tuple[Work, ...] = (
    Work(
        "send-1",
        "unary send, 1 in flight",
        Phase.SINGLE,
        Kind.SEND,
        1,
        targets=(Target(Figure.P50, Bar(0.8), Bar(0.5)),),
    ),
    Work(
        "send-64",
        "unary send, 64 in flight",
        Phase.SINGLE,
        Kind.SEND,
        64,
        targets=(
            Target(Figure.PER_CPU_S, Bar(26_000), Bar(33_000)),
            Target(Figure.RATE, Bar(1.2, ROCKETMQ), Bar(1.5, ROCKETMQ)),
            Target(Figure.P99, Bar(13), Bar(8)),
        ),
    ),
    Work(
        "send-256",
        "unary send, 256 in flight",
        Phase.SINGLE,
        Kind.SEND,
        256,
        targets=(Target(Figure.RATE, Bar(1.1, ROCKETMQ), Bar(1.4, ROCKETMQ)),),
    ),
    Work(
        "requests-of-32",
        "requests of 32 messages, 16 in flight",
        Phase.SINGLE,
        Kind.SEND,
        16,
        batch=32,
        targets=(Target(Figure.RATE, Bar(1.0, ROCKETMQ), Bar(1.5, ROCKETMQ)),),
    ),
    Work(
        "drain",
        "receive and ack drain, 8 receivers",
        Phase.SINGLE,
        Kind.DRAIN,
        8,
        targets=(Target(Figure.RATE, Bar(1.2, ROCKETMQ), Bar(2.0, ROCKETMQ)),),
    ),
    Work(
        "end-to-end",
        f"end to end, {RATE_PER_S:,}/s, 16 receivers",
        Phase.SINGLE,
        Kind.END_TO_END,
        16,
        targets=(
            Target(Figure.P50, Bar(1.0, ROCKETMQ), Bar(1.5)),
            Target(Figure.P99, Bar(1.0, ROCKETMQ), Bar(6)),
        ),
    ),
    Work(
        "waits",
        f"{WAITS_RATE_PER_S} sends/s while 12 simple consumers wait",
        Phase.SINGLE,
        Kind.WAITS,
        12,
    ),
    Work(
        "replicated-send-64",
        "unary send, 64 in flight",
        Phase.REPLICATED,
        Kind.SEND,
        64,
        targets=(Target(Figure.RATE, Bar(7_000), Bar(12_000)),),
    ),
    Work(
        "replicated-requests-of-32",
        "requests of 32 messages, 16 in flight",
        Phase.REPLICATED,
        Kind.SEND,
        16,
        batch=32,
        targets=(Target(Figure.RATE, Bar(30_000), Bar(60_000)),),
    ),
    Work(
        "replicated-waits",
        f"{WAITS_RATE_PER_S} sends/s while 12 simple consumers wait",
        Phase.REPLICATED,
        Kind.WAITS,
        12,
        targets=(Target(Figure.P99, Bar(30), Bar(10)),),
    ),
    Work(
        "table-gets-64",
        "table get, 64 in flight",
        Phase.TABLES,
        Kind.GETS,
        64,
        targets=(Target(Figure.RATE, Bar(0.8, ETCD), Bar(1.2, ETCD)),),
    ),
)
