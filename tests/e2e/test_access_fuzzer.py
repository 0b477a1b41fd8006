"""A fuzzer of the headers of access control: whatever comes, only right signatures are let in.

Half of the calls are signed as a client signs them, so that they reach what lies behind; in the
others one of the headers is changed. It runs for STRATA_TEST_FUZZ_S seconds (20), and
STRATA_TEST_SEED repeats the requests of a run.
"""

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import cast

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor

from apache.rocketmq.v2 import definition_pb2 as definition
from strata_mq.access import date_of, parse_authorization, sign, signature_is_right
from tests.e2e.mutator import Mutator
from tests.e2e.standalone import Standalone
from tests.e2e.test_bad_input import abuse, garbage
from tests.e2e.test_fuzzer import (
    ADMIN,
    DURATION_S,
    ENVIRONMENT,
    MESSAGING,
    NAMES,
    ROCKETMQ_ADMIN,
    TOPICS,
    WORKERS,
    Answer,
    call,
    status_of,
    valid_request,
)

USER = "fuzzer"
AUTHORIZATION, DATE, TOKEN = "authorization", "x-mq-date-time", "x-mq-session-token"
Headers = tuple[tuple[str, str | bytes], ...]
# A client of gRPC refuses to send what is not printable ASCII, but in headers that end with -bin.
_TEXTS = (
    "",
    " ",
    "MQv2-HMAC-SHA1",
    "MQv2-HMAC-SHA1 ",
    "MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature=",
    "MQv2-HMAC-SHA1 Credential=fuzzer, SignedHeaders=x-mq-date-time, Signature=zz",
    "MQv2-HMAC-SHA1 Credential=%broker-1, SignedHeaders=x-mq-date-time, Signature=00",
    "MQv2-HMAC-SHA1 Credential=%broker-99999999999999999999, Signature=00",
    "MQv2-HMAC-SHA1 Signature=,,,,=,=,Credential",
    "MQv2-HMAC-SHA1 " + "Credential=fuzzer," * 400,
    "Basic Zm9vOmJhcg==",
    "00000000T000000Z",
    "99999999T999999Z",
    "99991231T235959Z",
    "0001-01-01T00:00:00+00:00",
    "9999-12-31T23:59:59-23:59",
    "20261125T1200000",
    "2026-11-25T12:00:00",
    "-" * 40,
    "1e308",
    "AQAAAAE=",
    "A" * 255,
    "A" * 7_000,
    "=" * 64,
)


class Signed(Mutator):
    """A mutator whose headers are signed, rightly or not; it keeps the last ones."""

    def __init__(self, chance: random.Random, secret_key: str) -> None:
        super().__init__(chance, NAMES)
        self._roll = chance
        self._secret_key = secret_key
        self.last: dict[str, str] = {}

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the headers of a call."""
        chance = self._roll
        date = date_of(datetime.now(UTC))
        headers = {DATE: date, AUTHORIZATION: sign(USER, self._secret_key, date)}
        more: Headers = ()
        if chance.random() < 0.5:
            for _ in range(chance.randrange(1, 3)):
                self._change_header(headers)
            if chance.random() < 0.2:
                name = chance.choice((AUTHORIZATION, DATE, TOKEN))
                more = ((f"{name}-bin", chance.randbytes(chance.randrange(64))),)
        self.last = headers
        return cast("tuple[tuple[str, str], ...]", (*super().metadata(), *headers.items(), *more))

    def _change_header(self, headers: dict[str, str]) -> None:
        chance = self._roll
        name = chance.choice((AUTHORIZATION, DATE, TOKEN))
        value = headers.get(name, "")
        match chance.randrange(5):
            case 0:
                headers.pop(name, None)
            case 1:
                headers[name] = chance.choice(_TEXTS)
            case 2:
                at = chance.randrange(len(value) + 1)
                headers[name] = value[:at] + chr(chance.randrange(33, 127)) + value[at + 1 :]
            case 3:
                headers[name] = value[: chance.randrange(len(value) + 1)]
            case _:
                late = datetime.now(UTC) + timedelta(hours=chance.choice((-30, -9, -1, 1, 9, 30)))
                headers[DATE] = date_of(late)

    def is_right(self) -> bool:
        """Whether the last headers are a signature of the user."""
        signed = parse_authorization(self.last.get(AUTHORIZATION, ""))
        date = self.last.get(DATE, "")
        return (
            signed is not None
            and signed.access_key == USER
            and not self.last.get(TOKEN, "").strip()
            and signature_is_right(self._secret_key, date, signed.signature)
        )


@pytest.fixture
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Standalone, str]]:
    """A node with access control, and the secret key of a user with all rights but an admin's."""
    node = Standalone(tmp_path_factory.mktemp("fuzz") / "data", options=["--access-control", "on"])
    with pytest.MonkeyPatch.context() as environment:
        more = {"STRATA_ACCESS_CONTROL_MAX_WRONG_SIGNATURES": "1000000"}
        for name, value in (ENVIRONMENT | more).items():
            environment.setenv(name, value)
        node.start()
    admin = json.loads((node.data_dir / "first-admin.json").read_text())
    node.keys = {
        "STRATA_ACCESS_KEY": admin["access_key"],
        "STRATA_SECRET_KEY": admin["secret_key"],
    }
    secret_key = node.strata("user", "create", USER)["secret_key"]
    node.strata(
        *("policy", "create", USER, "--resource", "*", "--actions", "all", "--decision", "allow")
    )
    for name, kind in TOPICS.items():
        node.strata("topic", "create", name, "--type", kind, "--queues", "4")
    yield node, secret_key
    node.close()


class HeaderFuzzer:
    """Calls one node from many workers."""

    def __init__(self, node: Standalone, secret_key: str, seed: int) -> None:
        self._node = node
        self._secret_key = secret_key
        self._seed = seed
        self.outcomes: Counter[tuple[bool, str]] = Counter()

    async def run(self, duration_s: float) -> None:
        """Fuzz until the time is over, or until a wrong signature is let in."""
        ends_s = asyncio.get_running_loop().time() + duration_s
        async with asyncio.TaskGroup() as tasks:
            for worker in range(WORKERS):
                tasks.create_task(self._work(random.Random(self._seed * 1_000 + worker), ends_s))
            tasks.create_task(self._throw_garbage(random.Random(self._seed), ends_s))

    async def _work(self, chance: random.Random, ends_s: float) -> None:
        mutator = Signed(chance, self._secret_key)
        methods = [*MESSAGING.methods] * 4 + [*ADMIN.methods, *ROCKETMQ_ADMIN.methods]
        async with grpc.aio.insecure_channel(
            self._node.endpoint,
            options=[
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.max_receive_message_length", -1),
            ],
        ) as channel:
            while asyncio.get_running_loop().time() < ends_s:
                method = chance.choice(methods)
                data = mutator.request(method.input_type, valid_request(method, chance))
                answer = await call(channel, method, data, mutator)
                self._check(method, mutator, answer)
                for response in answer.responses:
                    mutator.learn(response)

    async def _throw_garbage(self, chance: random.Random, ends_s: float) -> None:
        while asyncio.get_running_loop().time() < ends_s:
            await asyncio.to_thread(abuse, self._node, garbage(chance), chance.random() < 0.5)
            await asyncio.sleep(0.05)

    def _check(self, method: MethodDescriptor, mutator: Signed, answer: Answer) -> None:
        is_right, told = mutator.is_right(), f"{method.name} with {mutator.last}: {answer}"
        statuses = [
            definition.Code.Name(status.code)
            for status in filter(None, map(status_of, answer.responses))
        ]
        outcome = statuses[0] if statuses else answer.status.name
        self.outcomes[is_right, outcome] += 1
        assert answer.status is not grpc.StatusCode.UNKNOWN, told
        if answer.status is grpc.StatusCode.INTERNAL:
            # A stream that was refused, while the client of this test was still writing to it.
            assert method.client_streaming, told
            assert answer.text == "Internal error from Core", told
        assert outcome not in ("INTERNAL_SERVER_ERROR", "INTERNAL_ERROR"), told
        if not is_right and answer.status is grpc.StatusCode.OK and statuses:
            assert outcome in _REFUSED, f"let in: {told}"
        elif not is_right:
            assert answer.status is not grpc.StatusCode.OK or not answer.responses, told
        if is_right and mutator.last.keys() == {DATE, AUTHORIZATION}:
            assert outcome not in ("UNAUTHORIZED", "UNAUTHENTICATED"), told


# Refusals before anybody is asked who calls: a frame that cannot be read, an edge's limit.
_REFUSED = {
    "UNAUTHORIZED",
    "BAD_REQUEST",
    "CLIENT_ID_REQUIRED",
    "REQUEST_HEADER_FIELDS_TOO_LARGE",
    "PAYLOAD_TOO_LARGE",
    "TOO_MANY_REQUESTS",
}


@pytest.mark.timeout(120 + DURATION_S)
async def test_only_right_signatures_are_let_in(guarded: tuple[Standalone, str]) -> None:
    """The process lives, its log has no traceback, and a right signature works to the end."""
    node, secret_key = guarded
    seed = int(os.environ.get("STRATA_TEST_SEED", random.randrange(2**32)))
    print(f"STRATA_TEST_SEED={seed}")
    fuzzer = HeaderFuzzer(node, secret_key, seed)
    await fuzzer.run(DURATION_S)
    for (is_right, outcome), count in sorted(fuzzer.outcomes.items()):
        print(f"{'right' if is_right else 'wrong':8} {outcome:36} {count}")
    assert node.alive
    assert "Traceback" not in node.log_path.read_text()
    assert fuzzer.outcomes[True, "OK"] > 0
    assert fuzzer.outcomes[False, "UNAUTHORIZED"] > 0
    assert fuzzer.outcomes[False, "UNAUTHENTICATED"] > 0
    node.strata("topic", "create", "afterwards")
