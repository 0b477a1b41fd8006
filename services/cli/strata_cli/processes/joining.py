"""Checks that a data folder belongs to the cluster that its process should join (rule 32).

The check comes before anything in the folder is opened, so that a process with the addresses of
another cluster fails to start and leaves every byte as it was. A folder that belongs to a cluster
starts even if no nameserver answers (rule 16); later answers are compared at each connection. A
folder without a cluster waits for the first answer, and joins that cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Mapping,
    MutableMapping,
    Sequence,
)
from types import MappingProxyType

from strata.meta.v1 import meta_pb2
from strata_angelia.cluster_id import WrongCluster
from strata_angelia.ports import DEADLINE_EXCEEDED, AngeliaError, Channel
from strata_runtime.clock import Clock
from strata_runtime.logs import get_logger

_METHOD = "/strata.meta.v1.MetaService/GetIdentity"
_ASK_TIMEOUT_S = 1.0
# When somebody is there and nobody has answered: a busy machine must not let a folder start in a
# cluster that is not its own.
_LAST_TIMEOUT_S = 5.0
_PAUSE_S = 0.25
_TELL_AFTER_S = 10.0

Answers = Mapping[str, meta_pb2.GetIdentityResponse]
"""Answers of the nameservers that answered, by endpoint."""

Ask = Callable[[], Awaitable[Answers]]


def decide_cluster(folder: object, known: str, answers: Answers, *, has_log: bool) -> str | None:
    """Return the cluster that a folder belongs to; None: ask again.

    One foreign nameserver among the folder's own is no reason to stop: it is refused by itself.

    Args:
        folder: for the error.
        known: cluster that the folder says; empty: none yet.
        answers: of those that were asked.
        has_log: there is data in the folder, from before folders knew their cluster.

    Raises:
        WrongCluster: it must not go on with these nameservers.
    """
    clusters = {answer.cluster_id for answer in answers.values()}
    if known:
        if clusters and known not in clusters:
            raise WrongCluster(f"{folder}: this folder belongs to cluster {known}, {_who(answers)}")
        return known
    if len(clusters) > 1:
        raise WrongCluster(f"{folder}: {_who(answers)}: all must belong to one cluster")
    if not clusters:
        return None
    if has_log and not any(answer.knows_node for answer in answers.values()):
        raise WrongCluster(
            f"{folder}: this folder holds replicas of another cluster: {_who(answers)}, "
            "which does not know this node"
        )
    return clusters.pop()


async def find_cluster(
    folder: object,
    known: str,
    ask: Ask,
    clock: Clock,
    *,
    has_log: bool,
    wait_s: float | None = None,
    is_stopping: Callable[[], bool] = lambda: False,
    failures: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Ask until it is decided; see `decide_cluster`.

    Args:
        folder: for the error.
        known: cluster that the folder says; empty: none yet.
        ask: asks everybody once.
        clock: time.
        has_log: there is data in the folder.
        wait_s: how long a folder of no cluster waits for an answer; None: as long as it takes.
        is_stopping: whether the process was told to end.
        failures: why those that were asked gave no answer, by endpoint; for the log.

    Returns:
        The cluster; empty: nobody answered in time.

    Raises:
        WrongCluster: the process must not start.
    """
    began_s, told = clock.monotonic_s(), False
    while True:
        found = decide_cluster(folder, known, await ask(), has_log=has_log)
        if found is not None:
            return found
        waited_s = clock.monotonic_s() - began_s
        if is_stopping() or (wait_s is not None and waited_s >= wait_s):
            return ""
        if waited_s >= _TELL_AFTER_S and not told:
            told = True
            get_logger("cluster").warning(
                "no nameserver answers yet; trying again", reason="; ".join(failures.values())
            )
        await asyncio.sleep(_PAUSE_S)


async def ask_all(
    node_id: str,
    endpoints: Collection[str],
    open_channel: Callable[[str], Channel],
    failures: MutableMapping[str, str] | None = None,
) -> Answers:
    """Ask several processes at once for their cluster; silent ones are left out.

    While nobody answers at all, those that are silent are asked once more, with more patience; an
    address at which nobody listens is not.

    Args:
        node_id: of this process.
        endpoints: a few.
        open_channel: makes a channel that compares nothing by itself.
        failures: gets the reason of each that gave no answer, by endpoint.
    """
    request = meta_pb2.GetIdentityRequest(node_id=node_id)

    async def ask(endpoint: str, timeout_s: float) -> None:
        channel = open_channel(endpoint)
        try:
            answer = await channel.call(
                _METHOD, request, meta_pb2.GetIdentityResponse, timeout_s=timeout_s
            )
            if answer.cluster_id:
                answers[endpoint] = answer
            elif failures is not None:
                failures[endpoint] = answer.status.reason
        except AngeliaError as error:
            if failures is not None:
                failures[endpoint] = error.reason
            if error.code == DEADLINE_EXCEEDED:
                silent.append(endpoint)
        finally:
            await channel.close()

    answers: dict[str, meta_pb2.GetIdentityResponse] = {}
    silent: list[str] = []
    await asyncio.gather(*(ask(endpoint, _ASK_TIMEOUT_S) for endpoint in endpoints))
    if not answers:
        await asyncio.gather(*(ask(endpoint, _LAST_TIMEOUT_S) for endpoint in tuple(silent)))
    return answers


def _who(answers: Answers) -> str:
    """Return who is of which cluster, as the end of a sentence."""
    by_cluster: dict[str, list[str]] = {}
    for endpoint, answer in sorted(answers.items()):
        by_cluster.setdefault(answer.cluster_id, []).append(endpoint)
    return " and ".join(map(_of_one, by_cluster.items()))


def _of_one(of_cluster: tuple[str, Sequence[str]]) -> str:
    cluster, endpoints = of_cluster
    if len(endpoints) == 1:
        return f"the nameserver at {endpoints[0]} is of cluster {cluster}"
    return f"the nameservers at {', '.join(endpoints)} are of cluster {cluster}"
