"""One call under way per raft group; what comes meanwhile goes together with the next one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from strata_broker.kv.lanes import Lanes, WaitingRequest
from strata_mq.requests.errors import Code, RequestError
from strata_runtime.tasks import RequestTasks, TooManyTasksError
from strata_testing import ManualClock

NEVER_S = 1_000.0


class Exchange:
    """Answers `-N` to N, as long as it is open; notes what went together.

    Attributes:
        missing: so many at the end of each batch get no answer.
    """

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.missing = 0
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(
        self, key: str, batch: Sequence[WaitingRequest[int, int]], deadline_s: float
    ) -> None:
        """Make a call."""
        self.batches.append([one.wanted for one in batch])
        await self.open.wait()
        for one in batch[: len(batch) - self.missing]:
            one.settle(-one.wanted)


@pytest.fixture
def exchange() -> Exchange:
    """The exchange that lanes call."""
    return Exchange()


@pytest.fixture
async def lanes(exchange: Exchange) -> AsyncIterator[Lanes[str, int, int]]:
    """Lanes of at most 4 requests, and 100 bytes, a call."""
    requests = RequestTasks("test")
    yield Lanes(
        "lane", exchange, requests, clock=ManualClock(0.0), max_batch=4, max_batch_bytes=100
    )
    await requests.stop()


async def turns() -> None:
    """Let what can go on do so."""
    for _ in range(20):
        await asyncio.sleep(0)


async def asked(
    lanes: Lanes[str, int, int], *numbers: int, size_bytes: int = 1, after_turns: int = 0
) -> list[int]:
    """Ask for numbers at once, after some turns of the loop; return the answers."""
    for _ in range(after_turns):
        await asyncio.sleep(0)
    calls = (lanes.call("key", number, size_bytes, NEVER_S) for number in numbers)
    return list(await asyncio.gather(*calls))


async def test_who_comes_in_turns_that_follow_goes_along(
    lanes: Lanes[str, int, int], exchange: Exchange
) -> None:
    """A call waits while newcomers come turn after turn; each gets its own answer."""
    answers = await asyncio.gather(asked(lanes, 1, 2), asked(lanes, 3, after_turns=2))
    assert tuple(answers) == ([-1, -2], [-3])
    assert exchange.batches == [[1, 2, 3]]


async def test_what_comes_during_a_call_goes_with_the_next(
    lanes: Lanes[str, int, int], exchange: Exchange
) -> None:
    """Nothing goes out beside a call under way; at most `max_batch` go together."""
    exchange.open.clear()
    first = asyncio.ensure_future(asked(lanes, 1))
    await turns()
    rest = asyncio.ensure_future(asked(lanes, 2, 3, 4, 5, 6))
    await turns()
    assert exchange.batches == [[1]]
    exchange.open.set()
    assert await first + await rest == [-1, -2, -3, -4, -5, -6]
    assert exchange.batches == [[1], [2, 3, 4, 5], [6]]


async def test_a_call_has_so_many_bytes_unless_it_is_one(
    lanes: Lanes[str, int, int], exchange: Exchange
) -> None:
    """A call that does not fit goes with the next batch; one too large for any goes alone."""
    assert await asked(lanes, 1, 2, 3, size_bytes=50) == [-1, -2, -3]
    assert await asked(lanes, 4, 5, size_bytes=101) == [-4, -5]
    assert exchange.batches == [[1, 2], [3], [4], [5]]


async def test_who_has_gone_is_left_out(lanes: Lanes[str, int, int], exchange: Exchange) -> None:
    """A caller that goes before its call is made has nothing done for it."""
    exchange.open.clear()
    first = asyncio.ensure_future(asked(lanes, 1))
    await turns()
    gone, stays = asyncio.ensure_future(asked(lanes, 2)), asyncio.ensure_future(asked(lanes, 3))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    exchange.open.set()
    assert await first + await stays == [-1, -3]
    assert exchange.batches == [[1], [3]]


async def test_a_deadline_that_passes_is_told(lanes: Lanes[str, int, int]) -> None:
    """The caller learns that nobody knows whether it was done."""
    with pytest.raises(RequestError) as raised:
        await lanes.call("key", 1, 1, 0.0)
    assert raised.value.code is Code.PROXY_TIMEOUT


async def test_an_answer_that_lacks_some_fails_those_and_nobody_else(
    lanes: Lanes[str, int, int], exchange: Exchange
) -> None:
    """A node of another version answered fewer than it was asked for; the lane goes on."""
    exchange.missing = 1
    calls = (lanes.call("key", number, 1, NEVER_S) for number in (1, 2, 3))
    first, second, third = await asyncio.gather(*calls, return_exceptions=True)
    assert (first, second) == (-1, -2)
    assert isinstance(third, RequestError)
    assert third.code is Code.INTERNAL_SERVER_ERROR
    exchange.missing = 0
    assert await asked(lanes, 4) == [-4]


async def test_a_request_that_finds_no_task_is_never_sent(exchange: Exchange) -> None:
    """Its caller was told that nothing was done: a later request must not take it along."""
    requests, free = RequestTasks("test", max_tasks=1), asyncio.Event()
    lanes = Lanes[str, int, int](
        "lane", exchange, requests, clock=ManualClock(0.0), max_batch=4, max_batch_bytes=100
    )
    other = requests.spawn("other", free.wait())
    with pytest.raises(TooManyTasksError):
        await lanes.call("key", 1, 1, NEVER_S)
    free.set()
    await other
    assert await lanes.call("key", 2, 1, NEVER_S) == -2
    assert exchange.batches == [[2]]
    await requests.stop()
