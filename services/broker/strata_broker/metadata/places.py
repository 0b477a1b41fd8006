"""The raft groups that hold the messages of a public queue: usually one, more after moves.

A queue that moved leaves its older epochs where they were until they are drained (rule 18), and
keeps its public name (rule 20). The raft group of a slot serves "any queue" of the topic for its
own slots, and for queues that stayed behind when slots left it (rule 17). A queue that moved to a
raft group is served there only by its number. These are pure decisions over the metadata; the
`Popper` decides where to wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from strata_broker.metadata.metadata import Home, MetadataView, TopicRow
from strata_mq.requests import Code, RequestError

ANY_QUEUE = -1
"""Queue number of a pop that takes from all queues of the topic that the raft group owns."""


class PopPlace(NamedTuple):
    """One possible pop.

    Attributes:
        raft_group: where it is made.
        queue: its number, or ANY_QUEUE.
        older: raft groups with older epochs of the queue; ordered consumers empty them first.
    """

    raft_group: int
    queue: int
    older: tuple[int, ...] = ()


class Wanted(NamedTuple):
    """The public queue that a receive names.

    Attributes:
        home: the broker name.
        queue: number of the queue; ANY_QUEUE: any queue under the name.
    """

    home: Home
    queue: int


def places_of(view: MetadataView, topic: TopicRow, wanted: Wanted) -> Sequence[PopPlace]:
    """Return where to pop for a public queue: the raft group of the name first.

    Empty when no raft group serves any of its queues.
    """
    home, queue = wanted
    if topic.is_dead_letter:
        return (PopPlace(home.raft_group, home.queues[0]),)
    if queue != ANY_QUEUE:
        return _of_queue(view, topic, queue)
    by_number: list[PopPlace] = []
    serves_any = False
    for one in home.queues:
        for place in _of_queue(view, topic, one):
            if place.raft_group == home.raft_group and view.is_any(topic, home.raft_group, one):
                serves_any = True
            else:
                by_number.append(place)
    if serves_any:
        return (PopPlace(home.raft_group, ANY_QUEUE), *by_number)
    return by_number


def named_queue(home: Home, local_id: int) -> int:
    """Return the queue that a client names under a broker name, counted from 1.

    Raises:
        RequestError: FORBIDDEN: there is no such queue.
    """
    if local_id > len(home.queues):
        raise RequestError(Code.FORBIDDEN, "no readable queue")
    return home.queues[local_id - 1]


def _of_queue(view: MetadataView, topic: TopicRow, queue: int) -> Sequence[PopPlace]:
    override = view.overrides(topic).get(queue)
    if override is None:
        owner = view.slot_owner(topic, queue)
        return (PopPlace(owner, queue),) if owner else ()
    groups = tuple(epoch.raft_group for epoch in override.epochs)
    return [PopPlace(group, queue, groups[:number]) for number, group in enumerate(groups)]
