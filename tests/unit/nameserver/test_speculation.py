"""Deciding on what is in flight (rule 1): nothing is given twice, nothing is told too early."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import pytest

from strata.meta.v1 import command_pb2, meta_pb2
from strata_metadata.errors import MetaRefused
from strata_nameserver.base.errors import RevisionMismatch
from strata_raft.types import Entry, EntryKind

if TYPE_CHECKING:
    from tests.unit.nameserver.conftest import MakeNameserver, Nameserver


async def test_changes_in_flight_see_each_other(nameserver: Nameserver) -> None:
    """Twenty changes decided before any commits get twenty ids and revisions."""
    nameserver.replica.commit_at_once = False
    first_revision = nameserver.machine.revision + 1
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(nameserver.metadata.create_topic(meta_pb2.Topic(name=f"t{n}")))
            for n in range(20)
        ]
        await asyncio.sleep(0)
        assert nameserver.machine.speculative.changes_in_flight == 20
        nameserver.replica.commit()
    made = [task.result() for task in tasks]

    assert [topic.topic_id for topic in made] == list(range(1, 21))
    assert [topic.revision for topic in made] == list(range(first_revision, first_revision + 20))
    assert nameserver.machine.speculative.changes_in_flight == 0


async def test_a_refusal_waits_for_what_it_was_decided_on(nameserver: Nameserver) -> None:
    """ALREADY_EXISTS is told only once the first creation is applied."""
    nameserver.replica.commit_at_once = False
    async with asyncio.TaskGroup() as group:
        first = group.create_task(nameserver.metadata.create_topic(meta_pb2.Topic(name="t")))
        second = group.create_task(_outcome(nameserver, "t"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not second.done()
        nameserver.replica.commit()

    assert first.result().topic_id == 1
    assert second.result() == meta_pb2.META_OUTCOME_ALREADY_EXISTS


async def test_losing_leadership_drops_what_is_in_flight(nameserver: Nameserver) -> None:
    """A caller that waits is told NOT_LEADER; the next leader decides from the applied rows."""
    nameserver.replica.commit_at_once = False
    async with asyncio.TaskGroup() as group:
        lost = [group.create_task(_outcome(nameserver, name)) for name in ("t", "t")]
        await asyncio.sleep(0)
        nameserver.replica.lose_leadership()
    assert [task.result() for task in lost] == [meta_pb2.META_OUTCOME_NOT_LEADER] * 2
    assert await _outcome(nameserver, "t") == meta_pb2.META_OUTCOME_NOT_LEADER

    nameserver.replica.leader = nameserver.replica.commit_at_once = True
    nameserver.machine.on_leader(3)
    assert (await nameserver.metadata.create_topic(meta_pb2.Topic(name="t"))).topic_id == 1


async def test_a_caller_that_goes_away_harms_nobody(nameserver: Nameserver) -> None:
    """A cancelled call does not cancel the proposal that others wait for."""
    nameserver.replica.commit_at_once = False
    gone = asyncio.ensure_future(nameserver.metadata.create_topic(meta_pb2.Topic(name="t")))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    nameserver.replica.commit()

    assert await _outcome(nameserver, "t") == meta_pb2.META_OUTCOME_ALREADY_EXISTS


async def test_a_failure_after_its_caller_went_away_harms_nobody(nameserver: Nameserver) -> None:
    """Nobody awaits the proposal any more, and nothing is reported as forgotten."""
    nameserver.replica.commit_at_once = False
    forgotten: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: forgotten.append(context["message"]))
    gone = asyncio.ensure_future(nameserver.metadata.create_topic(meta_pb2.Topic(name="t")))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    nameserver.replica.lose_leadership()
    nameserver.metadata._last_proposal = None
    del gone
    gc.collect()
    await asyncio.sleep(0)

    assert forgotten == []


async def test_replay_gives_the_same_rows(
    nameserver: Nameserver, make_nameserver: MakeNameserver
) -> None:
    """Applying all entries to an empty store, in other batches, gives every row again."""
    for number in range(5):
        await nameserver.metadata.create_topic(meta_pb2.Topic(name=f"t{number}"))
    await nameserver.metadata.create_consumer_group(meta_pb2.ConsumerGroup(name="g"))
    await nameserver.metadata.delete_topic("", "t3")
    replayed = make_nameserver(nameserver.config)
    replayed.machine.apply(nameserver.replica.entries[:4])
    replayed.machine.apply(nameserver.replica.entries[4:])

    everything = (b"", b"\xff")
    assert list(replayed.store.scan(*everything)) == list(nameserver.store.scan(*everything))


async def test_a_command_that_does_not_follow_stops_apply(nameserver: Nameserver) -> None:
    """A revision that is not the next one is an error, and no row is written."""
    before = list(nameserver.store.scan(b"", b"\xff"))
    command = command_pb2.Command(counters=command_pb2.Counters(revision=99))
    entry = Entry(1, 50, EntryKind.NORMAL, (command.SerializeToString(),))
    with pytest.raises(RevisionMismatch, match="entry 50 brings revision 99, revision 1"):
        nameserver.machine.apply([entry])

    assert list(nameserver.store.scan(b"", b"\xff")) == before


async def test_entries_without_a_command_only_move_the_index(nameserver: Nameserver) -> None:
    """A no-op of a new term is applied too, so that its index survives a restart."""
    revision = nameserver.machine.revision
    nameserver.machine.apply([Entry(2, 2, EntryKind.NO_OP)])

    assert nameserver.machine.applied_index() == 2
    assert nameserver.restarted().machine.applied_index() == 2
    assert nameserver.machine.revision == revision


async def _outcome(nameserver: Nameserver, name: str) -> int:
    try:
        await nameserver.metadata.create_topic(meta_pb2.Topic(name=name))
    except MetaRefused as error:
        return error.outcome
    return meta_pb2.META_OUTCOME_OK
