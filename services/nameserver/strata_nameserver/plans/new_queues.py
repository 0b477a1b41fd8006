"""New queues stay off busy nodes.

A queue's home follows from its slot (rule 19). When the leader of that raft group is among the
third of the nodes with the highest load, the queue gets, in the change that makes it, the wish to
move to a raft group led elsewhere; its home's leader hands it over before it holds anything
(rule 18). So a client that is early writes to the home, and nothing is lost. Queues that
no raft group hands over get no such wish.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle

from strata.meta.v1 import meta_pb2
from strata_metadata.view import NO_RAFT_GROUP
from strata_mq.slots import slot_of
from strata_nameserver.drafts.queue_moves import what_stays
from strata_nameserver.state.draft import Draft


@dataclass(frozen=True, slots=True)
class Avoidance:
    """Places that new queues should avoid.

    Attributes:
        busy: raft groups led by busy nodes.
        calm: raft groups to take instead, the least loaded node's first; empty: none can.
    """

    busy: frozenset[int] = frozenset()
    calm: Sequence[int] = ()


NOTHING_TO_AVOID = Avoidance()


def steer(
    draft: Draft,
    topic: meta_pb2.Topic,
    queues: Iterable[int],
    avoidance: Avoidance,
    max_overrides: int,
) -> None:
    """Wish new queues away from busy nodes, as far as the limit on moved queues allows.

    Queues that MoveQueue refuses stay at home, too.

    Args:
        draft: the change that makes the queues.
        topic: its row.
        queues: the new ones; all are at their slot's raft group.
        avoidance: which raft groups to leave, which to take.
        max_overrides: queues that may be elsewhere than at their slot.
    """
    if not avoidance.busy or not avoidance.calm or what_stays(topic):
        return
    targets = cycle(avoidance.calm)
    for queue in queues:
        home = draft.topology.slot_owners[slot_of(topic.slot_base, queue)]
        if home == NO_RAFT_GROUP or home not in avoidance.busy:
            continue
        if draft.counters.queue_override_count >= max_overrides:
            return
        draft.counters.queue_override_count += 1
        draft.put(
            meta_pb2.QueueOverride(
                topic_id=topic.topic_id,
                queue=queue,
                epochs=[meta_pb2.Epoch(raft_group=home)],
                moving_to=next(targets),
            )
        )
