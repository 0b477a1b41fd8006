"""`strata cluster health`: what is printed and which exit code a script gets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from strata.admin.v1 import admin_pb2, admin_pb2_grpc
from strata_cli.main import run
from strata_cli.reference import JSON_KEYS


class FakeAdmin(admin_pb2_grpc.AdminServiceServicer):
    """Answers one status after the other; the last one forever."""

    def __init__(self, statuses: Sequence[str]) -> None:
        self.statuses = list(statuses)
        self.asked = 0

    def GetHealth(
        self, request: admin_pb2.GetHealthRequest, context: object
    ) -> admin_pb2.GetHealthResponse:
        status = self.statuses[min(self.asked, len(self.statuses) - 1)]
        self.asked += 1
        response = admin_pb2.GetHealthResponse(
            status=status, raft_groups={"SERVING": 1, "LEADERLESS": 1}, nodes={"up": 3}
        )
        if status != "healthy":
            response.problems.add(
                kind="raft_group", name="3", state="LEADERLESS", severity="down", detail="why"
            )
        return response


@pytest.fixture
def admin() -> FakeAdmin:
    return FakeAdmin(["healthy"])  # type: ignore[abstract]


@pytest.fixture
def endpoint(admin: FakeAdmin) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(2))
    admin_pb2_grpc.add_AdminServiceServicer_to_server(admin, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()


@pytest.mark.parametrize(("status", "code"), [("healthy", 0), ("degraded", 1), ("down", 2)])
def test_the_exit_code_is_the_answer(
    admin: FakeAdmin,
    endpoint: str,
    status: str,
    code: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A script needs no parser; whoever wants more has documented keys."""
    admin.statuses = [status]
    assert run(["cluster", "health", "--endpoint", endpoint, "-o", "json"]) == code
    report = json.loads(capsys.readouterr().out)
    assert report["status"] == status
    promised = set(re.findall(r"`([a-z0-9_]+)`", JSON_KEYS["cluster health"]))
    reasons = [key for each in report["reasons"] for key in each]
    assert {*report, *reasons} <= promised
    assert report["raft_groups"] == {"serving": 1, "leaderless": 1}


def test_people_see_the_reasons(
    admin: FakeAdmin, endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The worst first, one per line."""
    admin.statuses = ["down"]
    assert run(["cluster", "health", "--endpoint", endpoint]) == 2
    out = capsys.readouterr().out
    assert out.startswith("down: raft groups ")
    assert re.search(r"down +raft_group +3 +LEADERLESS +why", out)


def test_waiting_ends_with_health_or_with_the_time(admin: FakeAdmin, endpoint: str) -> None:
    """--wait asks again until all is well; when it never is, the last answer counts."""
    admin.statuses = ["down", "degraded", "healthy"]
    assert run(["cluster", "health", "--wait", "30", "--endpoint", endpoint]) == 0
    assert admin.asked == 3
    admin.statuses = ["degraded"]
    assert run(["cluster", "health", "--wait", "1s", "--endpoint", endpoint]) == 1
    assert admin.asked > 4


def test_no_broker_is_down(capsys: pytest.CaptureFixture[str]) -> None:
    """Whom nobody answers has a cluster that is down, not a broken command."""
    assert run(["cluster", "health", "--endpoint", "127.0.0.1:1", "-o", "json"]) == 2
    report = json.loads(capsys.readouterr().out)
    assert [(each["kind"], each["state"]) for each in report["reasons"]] == [
        ("broker", "UNREACHABLE")
    ]
