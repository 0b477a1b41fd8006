"""Calls of jobs to leaders of raft groups go there as they are, and so do the answers."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message

from strata.admin.v1 import admin_pb2
from strata.storage.v1 import storage_pb2, tier_pb2
from strata_edge.ports import CallError
from strata_testing.broker.fake_edge import ADMIN, FakeEdge
from strata_testing.broker.fake_storage import FakeStorage


class FakeTier:
    """`TierService` of the one storage node; a refusal answers the next call."""

    def __init__(self, storage: FakeStorage) -> None:
        self.asked: list[Message] = []
        self.refusal: storage_pb2.Refusal | None = None
        for rpc, answer in (
            ("ReplaceTierRanges", tier_pb2.ReplaceTierRangesResponse(replaced_ranges=3)),
            (
                "PlanTierSweep",
                tier_pb2.PlanTierSweepResponse(
                    doomed=[tier_pb2.DoomedObject(object_id=1 << 63, space="acme", key="a.set")],
                    orphan_keys=["b.set"],
                    valid_ms=9,
                ),
            ),
            ("ForgetTierObjects", tier_pb2.ForgetTierObjectsResponse(forgotten=2)),
        ):
            self._serve(storage, rpc, answer)

    def _serve(self, storage: FakeStorage, rpc: str, answer: Message) -> None:
        def answered(request: Message, _: object) -> Message:
            self.asked.append(request)
            if self.refusal is None:
                return answer
            refusal, self.refusal = self.refusal, None
            return type(answer)(refusal=refusal)

        setattr(storage, f"_/strata.storage.v1.tierservice/{rpc.lower()}", answered)


@pytest.fixture
def tier(storage: FakeStorage) -> FakeTier:
    """The tier's part of storage."""
    return FakeTier(storage)


async def test_each_call_is_the_leaders(edge: FakeEdge, tier: FakeTier) -> None:
    """Requests arrive with all they say, answers too."""
    replaced = await edge.call(
        ADMIN + "ReplaceTierRanges",
        admin_pb2.ReplaceTierRangesRequest(raft_group=2, change=b"change"),
        admin_pb2.ReplaceTierRangesResponse,
    )
    planned = await edge.call(
        ADMIN + "PlanTierSweep",
        admin_pb2.PlanTierSweepRequest(raft_group=1, old_keys=["b.set", "c.set"]),
        admin_pb2.PlanTierSweepResponse,
    )
    forgotten = await edge.call(
        ADMIN + "ForgetTierObjects",
        admin_pb2.ForgetTierObjectsRequest(raft_group=2, object_ids=[5, 1 << 63]),
        admin_pb2.ForgetTierObjectsResponse,
    )
    assert tier.asked == [
        tier_pb2.ReplaceTierRangesRequest(raft_group=2, change=b"change"),
        tier_pb2.PlanTierSweepRequest(raft_group=1, old_keys=["b.set", "c.set"]),
        tier_pb2.ForgetTierObjectsRequest(raft_group=2, object_ids=[5, 1 << 63]),
    ]
    assert (replaced.replaced_ranges, forgotten.forgotten) == (3, 2)
    assert planned == admin_pb2.PlanTierSweepResponse(
        doomed=[admin_pb2.DoomedObject(object_id=1 << 63, space="acme", key="a.set")],
        orphan_keys=["b.set"],
        valid_ms=9,
    )


async def test_a_refusal_says_why(edge: FakeEdge, tier: FakeTier) -> None:
    """An unknown raft group, a wrong change and a leader that is busy are told apart."""
    request = admin_pb2.ReplaceTierRangesRequest(raft_group=99)
    rpc, response_type = ADMIN + "ReplaceTierRanges", admin_pb2.ReplaceTierRangesResponse
    with pytest.raises(CallError, match="no raft group 99") as unknown:
        await edge.call(rpc, request, response_type)
    assert unknown.value.status == "NOT_FOUND"
    request.raft_group = 1
    invalid = storage_pb2.OUTCOME_INVALID
    tier.refusal = storage_pb2.Refusal(outcome=invalid, reason="tier change is damaged")
    with pytest.raises(CallError, match="tier change is damaged") as malformed:
        await edge.call(rpc, request, response_type)
    assert malformed.value.status == "INVALID_ARGUMENT"
    tier.refusal = storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_OVERLOADED, reason="later")
    with pytest.raises(CallError) as busy:
        await edge.call(rpc, request, response_type)
    assert busy.value.status == "RESOURCE_EXHAUSTED"
