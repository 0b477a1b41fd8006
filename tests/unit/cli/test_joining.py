"""Rule 32: a process does not start with the nameservers of another cluster."""

from __future__ import annotations

import pytest

from strata.meta.v1 import meta_pb2
from strata_angelia.cluster_id import WrongCluster
from strata_angelia.ports import DEADLINE_EXCEEDED, UNAVAILABLE, AngeliaError
from strata_cli.processes.joining import Answers, ask_all, decide_cluster, find_cluster
from strata_testing import ManualClock

FOLDER = "data folder d"


def answers(*, knows: bool = False, **clusters: str) -> Answers:
    return {
        f"{host}:1": meta_pb2.GetIdentityResponse(cluster_id=cluster, knows_node=knows)
        for host, cluster in clusters.items()
    }


def decide(known: str, given: Answers, *, has_log: bool = False) -> str | None:
    return decide_cluster(FOLDER, known, given, has_log=has_log)


@pytest.mark.parametrize(
    "given", [answers(), answers(a="x"), answers(a="x", b="x"), answers(a="y", b="x")]
)
def test_a_folder_goes_on_with_its_own_or_alone(given: Answers) -> None:
    """With nobody there it starts from what it has (rule 16); one stranger among its own is one."""
    assert decide("x", given, has_log=True) == "x"


@pytest.mark.parametrize("has_log", [True, False])
def test_a_folder_of_another_cluster_is_refused(has_log: bool) -> None:
    """One line names both clusters and who is of which."""
    with pytest.raises(WrongCluster) as refused:
        decide("x", answers(a="y", b="y", knows=True), has_log=has_log)
    assert str(refused.value) == (
        "data folder d: this folder belongs to cluster x, "
        "the nameservers at a:1, b:1 are of cluster y"
    )


def test_a_new_folder_joins_whoever_answers() -> None:
    """And waits while nobody does."""
    assert decide("", answers()) is None
    assert decide("", answers(a="y")) == "y"


def test_a_new_folder_does_not_choose_between_clusters() -> None:
    """The addresses are wrong, whichever cluster is meant."""
    with pytest.raises(WrongCluster, match="a:1 is of cluster x and the nameserver at b:1 is of"):
        decide("", answers(a="x", b="y"))


def test_data_from_before_clusters_were_compared_joins_only_who_knows_it() -> None:
    """Node ids are random: no other cluster can know one."""
    assert decide("", answers(a="y", knows=True), has_log=True) == "y"
    with pytest.raises(
        WrongCluster, match=r"holds replicas of another cluster: .* a:1 is of cluster y"
    ):
        decide("", answers(a="y"), has_log=True)


async def test_the_wait_for_a_first_answer_has_an_end_if_it_has_a_limit() -> None:
    """A process that cannot do without one gets an empty answer in time."""
    clock = ManualClock(0.0)
    asked = 0

    async def ask() -> Answers:
        nonlocal asked
        asked += 1
        clock.advance(1.0)
        return answers(a="y") if asked == 4 else answers()

    assert await find_cluster(FOLDER, "", ask, clock, has_log=False, wait_s=2.0) == ""
    assert await find_cluster(FOLDER, "", ask, clock, has_log=False) == "y"


class SilentOnce:
    """A channel to a nameserver that is too busy for the first question."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.asked = 0

    async def call(self, *_: object, timeout_s: float) -> meta_pb2.GetIdentityResponse:
        self.asked += 1
        if self.asked == 1:
            raise AngeliaError(self.code, "not now")
        return meta_pb2.GetIdentityResponse(cluster_id="y")

    async def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(("code", "asked"), [(DEADLINE_EXCEEDED, 2), (UNAVAILABLE, 1)])
async def test_who_is_there_and_silent_is_asked_again(code: str, asked: int) -> None:
    """On a busy machine a folder must not start in another cluster because that was slow."""
    channel = SilentOnce(code)
    given = await ask_all("node", ["a:1"], lambda endpoint: channel)  # type: ignore[arg-type,return-value]
    assert channel.asked == asked
    assert [answer.cluster_id for answer in given.values()] == ["y"] * (asked - 1)
