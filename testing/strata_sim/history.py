"""History of clients' calls and deliveries over crashes, and checks of the server's promises.

A history holds facts only: sends attempted, sends answered, deliveries, acknowledgements answered.
The checks return violations as text and know nothing of servers or time.

These must hold (rules 1 and 23): an answered send is stored at the answered offset; a delivered
message was sent, with the same body; a message is at one position only, and a position holds one
message only; an acknowledged message is not delivered again; a message group keeps its order; no
client gets a message that another client holds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise

Position = tuple[str, int, int]
"""(topic, queue, offset)"""

_LEASE_TOLERANCE_S = 0.5
"""By so much group time and the clients' time may differ over one lease (rule 4)."""


@dataclass(frozen=True)
class Lease:
    """How long a delivered message was its receiver's alone, in the history's own time.

    Attributes:
        called_s: when the receiver asked; the lease was not taken before.
        received_s: when it got the message.
        length_s: what it asked for.
        attempt: which delivery of the message to its consumer group it is. They are in the order
            in which the leases began; answers may arrive in another one.
    """

    called_s: float
    received_s: float
    length_s: float
    attempt: int = 0


@dataclass(frozen=True)
class Send:
    """A send that was attempted; its sequence orders the sends of a message group."""

    topic: str
    body: bytes
    message_group: str
    sequence: int


@dataclass
class History:
    """The facts of one test, in any number of server lives."""

    sends: dict[str, Send] = field(default_factory=dict)
    answered: dict[str, int] = field(default_factory=dict)
    """message id -> offset in the answer"""
    deliveries: dict[str, set[Position]] = field(default_factory=lambda: defaultdict(set))
    bodies: dict[str, bytes] = field(default_factory=dict)
    received: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """consumer group -> message ids"""
    acknowledged: dict[tuple[str, str], int] = field(default_factory=dict)
    """(consumer group, message id), answered with OK -> how many were before it"""
    came_again: list[tuple[str, str]] = field(default_factory=list)
    """deliveries asked for after an answered acknowledgement"""
    first_delivered: dict[str, list[tuple[str, Position]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """consumer group -> (message id, position) in the order of first deliveries"""
    leases: dict[tuple[str, str], list[Lease]] = field(default_factory=lambda: defaultdict(list))
    """(consumer group, message id) -> leases in the order of delivery"""
    grown: Counter[str] = field(default_factory=Counter)
    """topic -> how often it was given more queues: a message group may go to another one each time,
    also to one that it was in before"""

    def attempt(self, topic: str, message_id: str, body: bytes, message_group: str = "") -> None:
        """Note a send before it goes out."""
        assert message_id not in self.sends, "the client must use an id once"
        self.sends[message_id] = Send(topic, body, message_group, len(self.sends))

    def answer(self, message_id: str, offset: int) -> None:
        """Note that a send was answered with OK."""
        self.answered[message_id] = offset

    def mark(self) -> int:
        """Return a point in the history, for `deliver`."""
        return len(self.acknowledged)

    def deliver(
        self,
        group: str,
        topic: str,
        message_id: str,
        body: bytes,
        queue: int,
        offset: int,
        *,
        since: int | None = None,
        lease: Lease | None = None,
        attempt: int = 0,
    ) -> None:
        """Note a delivery to a consumer group.

        Args:
            group: the consumer group.
            topic: of the message.
            message_id: of the message.
            body: of the message.
            queue: where it is stored.
            offset: in the queue.
            since: `mark` of when the receiver asked: what was acknowledged later may still come;
                None: it asked just now.
            lease: how long nobody else may get it; None: not judged.
            attempt: the message's delivery attempt, for the lease.
        """
        acknowledged = self.acknowledged.get((group, message_id))
        if acknowledged is not None and (since is None or acknowledged < since):
            self.came_again.append((group, message_id))
        self.deliveries[message_id].add((topic, queue, offset))
        self.bodies[message_id] = body
        if message_id not in self.received[group]:
            self.received[group].add(message_id)
            self.first_delivered[group].append((message_id, (topic, queue, offset)))
        if lease is not None:
            self.leases[group, message_id].append(replace(lease, attempt=attempt))

    def acknowledge(self, group: str, message_id: str) -> None:
        """Note that an acknowledgement was answered with OK."""
        self.acknowledged.setdefault((group, message_id), len(self.acknowledged))

    def undelivered(self) -> set[str]:
        """Return the answered sends that were not delivered so far."""
        return self.answered.keys() - self.deliveries.keys()


def check(history: History, *, drained: bool = True) -> list[str]:
    """Return every violation in a history.

    Args:
        history: of all clients.
        drained: whether the queues were drained at the end; if not, what nobody was given may lie
            there still.
    """
    finds = CHECKS if drained else [find for find in CHECKS if find is not lost]
    return [violation for find in finds for violation in find(history)]


def lost(history: History) -> Iterator[str]:
    """Find answered sends that were never delivered."""
    for message_id in sorted(history.undelivered()):
        yield f"lost: {message_id}, answered with offset {history.answered[message_id]}"


def phantoms(history: History) -> Iterator[str]:
    """Find deliveries of messages nobody sent, or not to that topic, or not with that body."""
    for message_id, positions in history.deliveries.items():
        send = history.sends.get(message_id)
        if send is None:
            yield f"phantom: {message_id} at {sorted(positions)}"
        elif history.bodies[message_id] != send.body:
            yield f"body changed: {message_id}"
        elif any(topic != send.topic for topic, _, _ in positions):
            yield f"wrong topic: {message_id} at {sorted(positions)}"


def repeated(history: History) -> Iterator[str]:
    """Find messages stored at more than one position."""
    for message_id, positions in history.deliveries.items():
        if len(positions) > 1:
            yield f"stored twice: {message_id} at {sorted(positions)}"


def reused(history: History) -> Iterator[str]:
    """Find positions that held more than one message."""
    holders = defaultdict(set)
    for message_id, positions in history.deliveries.items():
        for position in positions:
            holders[position].add(message_id)
    for position, message_ids in holders.items():
        if len(message_ids) > 1:
            yield f"offset reused: {position} by {sorted(message_ids)}"


def moved(history: History) -> Iterator[str]:
    """Find messages delivered at another offset than the answer to their send said."""
    for message_id, offset in history.answered.items():
        for position in history.deliveries.get(message_id, ()):
            if position[2] != offset:
                yield f"moved: {message_id} answered as {offset}, delivered at {position}"


def revived(history: History) -> Iterator[str]:
    """Find deliveries to a consumer group that had acknowledged the message."""
    for group, message_id in history.came_again:
        yield f"came again after its acknowledgement: {message_id} to {group}"


def disordered(history: History) -> Iterator[str]:
    """Find message groups whose answered sends are not in one queue, in the order of sending.

    A message group may leave its queue once for each time that its topic grows.
    """
    groups = defaultdict(list)
    for message_id, send in history.sends.items():
        if send.message_group and message_id in history.answered:
            for position in history.deliveries.get(message_id, ()):
                groups[send.topic, send.message_group].append((send.sequence, position))
    for name, placed in groups.items():
        positions = [position for _, position in sorted(placed)]
        queues = [queue for queue, _ in groupby(queue for _, queue, _ in positions)]
        stays = len(queues) - 1 <= history.grown[name[0]]
        in_order = all(offsets == sorted(offsets) for offsets in _by_queue(positions).values())
        if not (stays and in_order):
            yield f"out of order: message group {name}, in queues {queues}: {positions}"


def _by_queue(positions: Iterable[Position]) -> dict[int, list[int]]:
    offsets: dict[int, list[int]] = defaultdict(list)
    for _, queue, offset in positions:
        offsets[queue].append(offset)
    return offsets


def overtaken(history: History) -> Iterator[str]:
    """Find messages first delivered after a later one of their message group.

    In one queue offsets tell which one is later; in two the order of answered sends does.
    """
    for group, delivered in history.first_delivered.items():
        last: dict[tuple[str, str, int], int] = {}
        newest: dict[tuple[str, str], tuple[int, int]] = {}
        for message_id, (topic, queue, offset) in delivered:
            send = history.sends.get(message_id)
            if send is None or not send.message_group:
                continue
            key = (topic, send.message_group, queue)
            if offset < last.get(key, -1):
                yield f"overtaken: {message_id} at {(topic, queue, offset)} in {group}"
            last[key] = max(offset, last.get(key, -1))
            if message_id in history.answered:
                sequence, its_queue = newest.get((topic, send.message_group), (-1, queue))
                if send.sequence < sequence and its_queue != queue:
                    yield f"overtaken: {message_id} of queue {queue} by {its_queue} in {group}"
                if send.sequence > sequence:
                    newest[topic, send.message_group] = (send.sequence, queue)


def shared(history: History) -> Iterator[str]:
    """Find messages delivered again while an earlier receiver still held them."""
    for (group, message_id), leases in history.leases.items():
        in_order = sorted(leases, key=lambda lease: lease.attempt)
        for earlier, later in pairwise(in_order):
            ends_s = earlier.called_s + earlier.length_s - _LEASE_TOLERANCE_S
            if later.received_s < ends_s:
                yield (
                    f"two holders: {message_id} in {group}, leased from {earlier.called_s:.3f} "
                    f"for {earlier.length_s} s, delivered again at {later.received_s:.3f}"
                )


def skipped(history: History, group: str, topic: str) -> list[str]:
    """Return stored messages of a topic that a consumer group which drained it never got."""
    stored = {message_id for message_id in history.deliveries if message_id in history.sends}
    of_topic = {message_id for message_id in stored if history.sends[message_id].topic == topic}
    return sorted(of_topic - history.received[group])


CHECKS: tuple[Callable[[History], Iterator[str]], ...] = (
    lost,
    phantoms,
    repeated,
    reused,
    moved,
    revived,
    disordered,
    overtaken,
    shared,
)
