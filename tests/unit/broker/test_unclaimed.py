"""A client that cancels its receives and claims nothing does not keep what it was given."""

from __future__ import annotations

import pytest

from strata.storage.v1 import storage_pb2
from strata_broker.app import BrokerApp
from strata_broker.base.receive_config import ReceiveSection
from strata_broker.receives.unclaimed import Unclaimed
from strata_runtime.metrics import Metrics
from strata_testing import ManualClock, until
from strata_testing.broker import broker_config
from strata_testing.broker.broker import waiting_receives
from strata_testing.broker.client import Client, message
from strata_testing.broker.fake_storage import FakeStorage

LIMITS = ReceiveSection(max_hasty_cancels=3, max_unclaimed_leases=10, max_unclaimed_clients=4)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def unclaimed(clock: ManualClock) -> Unclaimed:
    return Unclaimed(LIMITS, clock, Metrics.disabled())


class Answers:
    """Answers that were given, and which of them were taken back."""

    def __init__(self, unclaimed: Unclaimed) -> None:
        self.unclaimed = unclaimed
        self.taken_back: list[str] = []

    def give(self, client_id: str, name: str, leases: int = 1) -> None:
        self.unclaimed.gave(client_id, leases, lambda: self.taken_back.append(name))


def cancel(unclaimed: Unclaimed, clock: ManualClock, times: int, client_id: str = "c") -> None:
    """Cancel some receives as soon as they came."""
    for _ in range(times):
        unclaimed.cancelled(client_id, clock.monotonic_s())


def test_the_limit_takes_back_what_was_given_before(
    unclaimed: Unclaimed, clock: ManualClock
) -> None:
    """Two cancelled receives take nothing back; the third takes all, and so does each later one."""
    answers = Answers(unclaimed)
    answers.give("c", "first")
    answers.give("other", "of another client")
    cancel(unclaimed, clock, 2)
    answers.give("c", "second")
    assert answers.taken_back == []
    cancel(unclaimed, clock, 1)
    assert answers.taken_back == ["first", "second"]
    answers.give("c", "third")
    cancel(unclaimed, clock, 1)
    assert answers.taken_back == ["first", "second", "third"]


def test_a_client_that_claims_a_message_keeps_all(unclaimed: Unclaimed, clock: ManualClock) -> None:
    """Its cancelled receives are forgotten, too."""
    answers = Answers(unclaimed)
    answers.give("c", "first")
    cancel(unclaimed, clock, 2)
    unclaimed.claimed("c")
    answers.give("c", "second")
    cancel(unclaimed, clock, 2)
    assert answers.taken_back == []


def test_receives_that_waited_do_not_count(unclaimed: Unclaimed, clock: ManualClock) -> None:
    """Deadlines of clients end receives that waited; the same number a minute later is new."""
    answers = Answers(unclaimed)
    answers.give("c", "first")
    for _ in range(5):
        begun_s = clock.monotonic_s()
        clock.advance(1_500)
        unclaimed.cancelled("c", begun_s)
    cancel(unclaimed, clock, 2)
    clock.advance(61_000)
    cancel(unclaimed, clock, 2)
    assert answers.taken_back == []


def test_what_is_remembered_is_bounded(unclaimed: Unclaimed, clock: ManualClock) -> None:
    """The client that was heard of longest ago loses its record, not its messages."""
    answers = Answers(unclaimed)
    answers.give("a", "of a", 4)
    answers.give("b", "of b", 4)
    answers.give("c", "of c", 4)
    answers.give("c", "too many for anybody", 11)
    cancel(unclaimed, clock, 3, "a")
    cancel(unclaimed, clock, 3, "b")
    assert answers.taken_back == []
    for number in range(6):
        answers.give(f"client-{number}", f"of {number}")
    cancel(unclaimed, clock, 3, "client-1")
    cancel(unclaimed, clock, 3, "client-5")
    assert answers.taken_back == ["of 5"]


@pytest.mark.parametrize("config", [broker_config(receive={"max_hasty_cancels": 3})])
async def test_messages_of_a_client_that_never_reads_come_to_others(
    client: Client, storage: FakeStorage, app: BrokerApp
) -> None:
    """The client lives on, its answers left, and still its leases end, as no attempt."""
    await client.send(message("orders", 1))
    (_,) = await client.receive_all("orders", "g", auto_renew=True)
    for _ in range(3):
        call = client.begin_receive("orders", "g", auto_renew=True)
        await until(lambda: waiting_receives(app) == 1)
        call.leave()
        await until(lambda: waiting_receives(app) == 0)
    await until(lambda: storage.waiting)
    (release,) = [
        request for _, request in storage.calls if isinstance(request, storage_pb2.ReleaseRequest)
    ]
    assert len(release.undelivered) == 1
    (again,) = await client.receive_all("orders", "g")
    assert again.system_properties.delivery_attempt == 1


@pytest.mark.parametrize("config", [broker_config(receive={"max_hasty_cancels": 3})])
async def test_an_acknowledgement_claims_what_was_given(
    client: Client, storage: FakeStorage, app: BrokerApp
) -> None:
    """A client that acknowledges one message keeps the others, whatever it cancels then."""
    await client.send(message("orders", 1), message("orders", 2))
    got = await client.receive_all("orders", "g", auto_renew=True)
    assert len(got) == 2
    await client.ack("orders", "g", got[0].system_properties.receipt_handle)
    for _ in range(5):
        call = client.begin_receive("orders", "g", auto_renew=True)
        await until(lambda: waiting_receives(app) == 1)
        call.leave()
        await until(lambda: waiting_receives(app) == 0)
    assert storage.count("Release") == 0
