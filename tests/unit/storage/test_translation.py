"""Values of requests become values of engine calls."""

from __future__ import annotations

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.leases import LeaseState
from strata_storage.group.translation import add_leased, handles_by_queue
from strata_storage.leading.pops.pop_calls import Delivered
from tests.unit.storage.serving_leader import lease as a_lease


def test_handles_of_queues_keep_their_places_in_the_call() -> None:
    """Outcomes are told in the order of the call, however the queues are mixed."""
    leases = [
        pb.LeaseRef(
            consumer_group_id=5,
            topic_id=7,
            queue=queue,
            offset=100 + place,
            lease_number=place + 1,
            generation=3,
            visible_at_ms=1_000 * place,
        )
        for place, queue in enumerate((2, 0, 2))
    ]
    assert handles_by_queue(leases) == {
        (5, 7, 2): ([0, 2], [(100, 1, 3, 0), (102, 3, 3, 2_000)]),
        (5, 7, 0): ([1], [(101, 2, 3, 1_000)]),
    }
    assert handles_by_queue([]) == {}


def test_leased_messages_have_their_bytes_or_their_lengths() -> None:
    """A pop of places has no bytes of messages; all else is the same."""
    lease = a_lease(LeaseState.LEASED, 9_000, attempts=2)._replace(lease_number=4, length=5)
    delivered = [
        Delivered(1, 10, 3, 8_000, lease, b"bytes"),
        Delivered(2, 11, 3, 8_001, lease, b""),
    ]
    whole, places = pb.PopResponse(), pb.PopResponse()
    add_leased(whole, delivered, places_only=False)
    add_leased(places, delivered, places_only=True)
    first, second = leased(1, 10, 8_000), leased(2, 11, 8_001)
    first.message = b"bytes"
    assert list(whole.messages) == [first, second]
    first.ClearField("message")
    first.message_length = second.message_length = 5
    assert list(places.messages) == [first, second]


def leased(queue: int, offset: int, store_time_ms: int) -> pb.LeasedMessage:
    """Return a message of the lease above, without bytes."""
    return pb.LeasedMessage(
        queue=queue,
        offset=offset,
        store_time_ms=store_time_ms,
        attempt_count=2,
        lease_number=4,
        generation=3,
        visible_at_ms=9_000,
    )
