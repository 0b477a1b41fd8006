"""Every class of calls has a budget of its own, on every transport (rules 15 and 34)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from strata_angelia import ports
from strata_angelia.classes import CallClass
from strata_angelia.codec import CODECS
from strata_angelia.options import CLASS_LIMITS, AngeliaOptions, ClassLimits
from strata_angelia.ports import AngeliaError
from strata_angelia.tcp_channel import TcpChannel
from strata_angelia.tcp_server import TcpServer
from strata_testing import until
from tests.contract.angelia_pairs import OPTIONS, PUT, SAY_BACK, Note, OpenPair
from tests.contract.angelia_pairs import open_pair as open_pair

HIGHER = [call_class for call_class in CallClass if call_class is not CallClass.READ]


def _limited(reads: ClassLimits, class_of: Mapping[str, CallClass] | None = None) -> AngeliaOptions:
    """Options in which SayBack is a read, with these limits for reads."""
    return replace(
        OPTIONS,
        classes={**CLASS_LIMITS, CallClass.READ: reads},
        class_of={SAY_BACK: CallClass.READ, **(class_of or {})},
    )


async def test_too_many_calls(open_pair: OpenPair) -> None:
    """Calls above the limit of their class are OVERLOADED, the others are answered."""
    pair = await open_pair(_limited(ClassLimits(4, 1 << 20)))
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(pair.say(b"wait")) for _ in range(4)]
        await until(lambda: pair.handler.running == 4)
        with pytest.raises(AngeliaError) as caught:
            await pair.say(b"one more")
        assert caught.value.code == ports.OVERLOADED
        assert "4 calls of class read" in caught.value.reason
        pair.handler.release.set()
    assert [call.result().body for call in calls] == [b"wait"] * 4
    assert (await pair.say(b"on")).body == b"on"


@pytest.mark.parametrize("other", HIGHER)
async def test_a_full_class_keeps_no_other_out(open_pair: OpenPair, other: CallClass) -> None:
    """While as many reads wait as may, calls of every other class are answered."""
    pair = await open_pair(_limited(ClassLimits(4, 1 << 20), {PUT: other}))
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(pair.say(b"wait")) for _ in range(4)]
        await until(lambda: pair.handler.running == 4)
        answer = await pair.channel.call(PUT, Note(body=b"in"), Note, timeout_s=5.0)
        assert answer.body == b"in"
        pair.handler.release.set()
    assert [call.result().body for call in calls] == [b"wait"] * 4


async def test_as_many_reads_wait_as_a_broker_may_park(open_pair: OpenPair) -> None:
    """With the default limits 20,000 reads wait at once, and what is no read is served."""
    pair = await open_pair(replace(OPTIONS, class_of={SAY_BACK: CallClass.READ}))
    if (pair.transport, pair.codec) not in (("inproc", "none"), ("tcp", "protobuf")):
        pytest.skip("the same for every codec; gRPC takes a minute for so many calls")
    async with asyncio.TaskGroup() as group:
        calls = [
            group.create_task(pair.channel.call(SAY_BACK, Note(body=b"wait"), Note))
            for _ in range(20_000)
        ]
        await until(lambda: pair.handler.running == 20_000)
        answer = await pair.channel.call(PUT, Note(body=b"in"), Note, timeout_s=30.0)
        assert answer.body == b"in"
        pair.handler.release.set()
    assert sum(call.result().body == b"wait" for call in calls) == 20_000


async def test_the_bytes_of_a_class(open_pair: OpenPair) -> None:
    """While a class's bytes are under way its requests are refused, those of others are not."""
    pair = await open_pair(_limited(ClassLimits(100, 1)))
    if pair.transport == "inproc":
        pytest.skip("nothing is copied, no size is known")
    async with asyncio.TaskGroup() as group:
        first = group.create_task(pair.say(b"wait"))
        await until(lambda: pair.handler.running == 1)
        with pytest.raises(AngeliaError) as caught:
            await pair.say(b"second")
        assert caught.value.code == ports.OVERLOADED
        answer = await pair.channel.call(PUT, Note(body=b"in"), Note, timeout_s=5.0)
        assert answer.body == b"in"
        pair.handler.release.set()
    assert first.result().body == b"wait"
    assert pair.handler.most_running == 1


async def test_a_tcp_caller_holds_back_what_does_not_fit(open_pair: OpenPair) -> None:
    """Requests above the bytes of their class wait at the caller, those of others do not."""
    pair = await open_pair(OPTIONS)
    if pair.transport != "tcp":
        pytest.skip("gRPC has its own flow control, in-process nothing is copied")
    options = _limited(ClassLimits(100, 1))
    channel = TcpChannel(pair.endpoint, codec=CODECS[pair.codec], options=options, tls=pair.tls)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(channel.call(SAY_BACK, Note(body=b"wait"), Note, timeout_s=9.0))
        await until(lambda: pair.handler.running == 1)
        second = group.create_task(channel.call(SAY_BACK, Note(body=b"two"), Note, timeout_s=9.0))
        answer = await channel.call(PUT, Note(body=b"in"), Note, timeout_s=5.0)
        assert answer.body == b"in"
        assert pair.handler.most_running == 1
        pair.handler.release.set()
    assert (first.result().body, second.result().body) == (b"wait", b"two")
    await channel.close()


async def test_an_ack_does_not_wait_behind_an_append(open_pair: OpenPair) -> None:
    """Small calls have a connection of their own: large ones that nobody reads do not stop them."""
    options = _limited(ClassLimits(4, 1 << 20), {SAY_BACK: CallClass.APPEND})
    pair = await open_pair(options)
    if pair.transport != "tcp":
        pytest.skip("in-process there is no socket; gRPC's cannot be stopped from outside")
    await pair.say(b"connect")
    assert isinstance(pair.server, TcpServer)
    (large,) = pair.server.connections
    large.pause(True)
    async with asyncio.TaskGroup() as group:
        held = [group.create_task(pair.say(bytes(700_000), timeout_s=60.0)) for _ in range(8)]
        answer = await pair.channel.call(PUT, Note(body=b"ack"), Note, timeout_s=30.0)
        assert answer.body == b"ack"
        assert not any(call.done() for call in held)
        large.pause(False)
    assert all(len(call.result().body) == 700_000 for call in held)
