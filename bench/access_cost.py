"""Cost of access control for a send: the broker behind the edge, with its checks and without.

    python bench/access_cost.py [--folder DIR] [--rounds 9]

One standalone node serves the same signed sends in turns, with its checks and without them. The
user has ten policies; as with the official clients the date changes every second, and 64
connections share a user. It prints one JSON object: microseconds of CPU of the event loop's thread
per message (the median of the rounds), the share that the checks add, and the parts of a check by
themselves.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import timeit
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import behind_edge
from bench.behind_edge import EdgelessNode, drive, serving
from bench.micro_broker import METADATA, BenchCall, send_requests
from strata.meta.v1 import meta_pb2
from strata_broker.access.principals import topic_target
from strata_cli.processes.standalone import NAMESERVER
from strata_mq.access import Action, date_of, sign
from strata_runtime import loop

USER, SECRET = "bench-user", "bench-secret-of-thirty-two-chars"
CONNECTIONS = 64
CASES = (("unary_64_in_flight", 1, 64, 3_200), ("requests_of_32_16_in_flight", 32, 16, 320))


class SignedCall(BenchCall):
    """A call of one of some connections, signed this second."""

    headers: Mapping[str, str] = METADATA
    signed_at = 0
    calls = 0
    __slots__ = ("peer",)

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        SignedCall.calls += 1
        self.peer = f"127.0.0.1:{1 + SignedCall.calls % CONNECTIONS}"

    @property
    def metadata(self) -> Mapping[str, str]:
        """Headers, as the edge builds them when it is asked."""
        now = int(time.time())
        if now != SignedCall.signed_at:
            SignedCall.signed_at = now
            date = date_of(datetime.fromtimestamp(now, UTC))
            signature = sign(USER, SECRET, date)
            SignedCall.headers = METADATA | {"x-mq-date-time": date, "authorization": signature}
        return dict(SignedCall.headers)


async def create_topic_and_user(node: EdgelessNode) -> None:
    """Create the topic, the user and its policies; the last one allows the sends."""
    await node.create_topic()
    channel = node._network.channel(f"inproc:{NAMESERVER}")
    user = meta_pb2.User(name=USER, secret_key=SECRET)
    path = "/strata.meta.v1.MetaService/"
    request = meta_pb2.CreateUserRequest(user=user)
    made = await channel.call(path + "CreateUser", request, meta_pb2.CreateUserResponse)
    assert made.status.outcome == meta_pb2.META_OUTCOME_OK, made
    for resource in (*(f"topic:other-{number}*" for number in range(9)), "topic:bench"):
        policy = meta_pb2.Policy(
            user=USER,
            resource=resource,
            actions=["pub"],
            decision=meta_pb2.POLICY_DECISION_ALLOW,
        )
        answer = await channel.call(
            path + "CreatePolicy",
            meta_pb2.CreatePolicyRequest(policy=policy),
            meta_pb2.CreatePolicyResponse,
        )
        assert answer.status.outcome == meta_pb2.META_OUTCOME_OK, answer
    await channel.close()


async def round_of(node: EdgelessNode, requests: Sequence[bytes], in_flight: int) -> float:
    """Return seconds of the loop's thread for some sends."""
    began = time.thread_time()
    await drive(node.edge, requests, in_flight)
    return time.thread_time() - began


async def run(folder: Path, rounds: int) -> dict[str, object]:
    """Measure a node with and without checks, in turns."""
    figures: dict[str, object] = {}
    behind_edge.CALL_TYPE = SignedCall
    async with serving(folder, create_topics=create_topic_and_user, access_control="on") as node:
        access = node.broker.access
        number = 0
        for name, size, in_flight, count in CASES:
            took: dict[bool, list[float]] = {False: [], True: []}
            for one in range(rounds + 1):
                # Each form is second in every other round.
                for checks in (one % 2 == 0, one % 2 == 1):
                    access._is_on = checks
                    number += 1
                    requests = send_requests(count, size, 1024, first=number << 32)
                    seconds = await round_of(node, requests, in_flight)
                    if one:
                        took[checks].append(seconds / (count * size) * 1e6)
            without, with_ = (statistics.median(took[checks]) for checks in (False, True))
            figures[name] = {
                "off": round(without, 2),
                "on": round(with_, 2),
                "added_percent": round((with_ / without - 1) * 100, 1),
            }
        access._is_on = True
        figures["parts_us"] = parts(node)
    return figures


def parts(node: EdgelessNode) -> dict[str, float]:
    """Return microseconds of the parts of a check."""
    access = node.broker.access
    call = SignedCall("SendMessage", b"", print)
    headers = call.metadata
    principal = access.principal_of(headers, call.peer)
    name = ("", "bench")
    fresh = iter(range(10**9))
    return {
        "headers_known": _us(lambda: access.principal_of(headers, call.peer)),
        "headers_new": _us(lambda: access.principal_of(headers, f"127.0.0.1:{next(fresh)}")),
        "right_known": _us(lambda: principal.require(*topic_target(name), Action.PUB)),
    }


def _us(work: object) -> float:
    times = timeit.repeat(work, number=2_000, repeat=15)  # type: ignore[arg-type]
    return round(min(times) / 2_000 * 1e6, 2)


def main() -> None:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="disk to measure on")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        print(json.dumps(loop.run(run(Path(folder), arguments.rounds)), indent=2))


if __name__ == "__main__":
    main()
