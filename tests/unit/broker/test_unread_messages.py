"""A receive whose pop took what no replica can read: nobody was given it, so it was no attempt."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from apache.rocketmq.v2 import definition_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.app import BrokerApp
from strata_testing import until
from strata_testing.broker.client import Client, message
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage


class FailingDisks(FakeStorage):
    """It names places only; messages of some numbers cannot be read."""

    def __init__(self, slots: list[int]) -> None:
        super().__init__(slots)
        self.unreadable: set[bytes] = set()
        # Leases that stay invisible after they were given back.
        self.put_off: list[storage_pb2.LeaseRef] = []

    async def _pop(
        self, request: storage_pb2.PopRequest, trouble: storage_pb2.Refusal | None
    ) -> storage_pb2.PopResponse:
        whole = await super()._pop(request, trouble)
        places = storage_pb2.PopResponse()
        places.CopyFrom(whole)
        for leased in places.messages:
            leased.message_length = len(leased.message)
            leased.message = b""
        places.applied_index = int(bool(whole.messages))
        return places

    def _readmessages(
        self, request: storage_pb2.ReadMessagesRequest, _: storage_pb2.Refusal | None
    ) -> storage_pb2.ReadMessagesResponse:
        stored = [
            self.queues[request.topic_id, queue][offset].data
            for queue, offset in zip(request.queues, request.offsets, strict=True)
        ]
        return storage_pb2.ReadMessagesResponse(
            messages=[
                b"" if any(body in data for body in self.unreadable) else data for data in stored
            ]
        )

    def _release(
        self, request: storage_pb2.ReleaseRequest, trouble: storage_pb2.Refusal | None
    ) -> storage_pb2.ReleaseResponse:
        self.put_off.extend(request.unreadable)
        return super()._release(request, trouble)

    def time_is_up(self) -> None:
        """Let the messages that were put off be visible again."""
        refs, self.put_off = self.put_off, []
        super()._release(storage_pb2.ReleaseRequest(undelivered=refs), None)


@pytest.fixture
async def storage(meta: FakeMeta) -> FailingDisks:
    return FailingDisks(meta.slots)


def attempts_of(messages: Sequence[definition_pb2.Message]) -> dict[bytes, int]:
    """Return the attempt of each message, by its body."""
    return {one.body: one.system_properties.delivery_attempt for one in messages}


async def test_what_nobody_can_read_comes_again_as_the_first_attempt(
    client: Client, storage: FailingDisks
) -> None:
    """It is given back as unreadable, once; the others are delivered."""
    await client.send(*(message("orders", number, body=b"m%d" % number) for number in range(3)))
    storage.unreadable = {b"m1"}
    assert attempts_of(await client.receive_all("orders", "g")) == {b"m0": 1, b"m2": 1}
    await until(lambda: storage.put_off)
    assert len(storage.put_off) == storage.count("Release") == 1
    assert not storage.waiting, "it is not visible at once"
    storage.unreadable.clear()
    storage.time_is_up()
    assert attempts_of(await client.receive_all("orders", "g")) == {b"m1": 1}


async def test_an_ordered_group_gets_nothing_behind_what_nobody_can_read(
    client: Client, storage: FailingDisks, meta: FakeMeta, app: BrokerApp
) -> None:
    """The messages behind it are given back, too: they come with it, as first attempts."""
    meta.add_group(meta_pb2.ConsumerGroup(name="ordered", fifo=True))
    await until(lambda: app.view.consumer_group("", "ordered"))
    for number in range(4):
        await client.send(
            message(
                "fifo",
                number,
                body=b"m%d" % number,
                message_group="a",
                message_type=definition_pb2.FIFO,
            )
        )
    storage.unreadable = {b"m1"}
    got = await client.receive_all("fifo", "ordered", attempt_id="t")
    assert attempts_of(got) == {b"m0": 1}
    await until(lambda: storage.put_off and storage.waiting)
    assert [lease.offset for lease in storage.put_off] == [1]
    assert [offset for *_, offset in storage.waiting] == [2, 3]
