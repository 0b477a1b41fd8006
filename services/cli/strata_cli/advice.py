"""The next command for each problem of a cluster: `strata status` shows it beside the problem."""

from __future__ import annotations

from typing import NamedTuple

from strata_cli.views import View


class Advice(NamedTuple):
    """The next step for a problem.

    Attributes:
        command: to type now; it changes nothing.
        action: in words: what ends the problem.
        runbook: name of the page under docs/runbooks that tells more; "": there is none.
    """

    command: str
    action: str
    runbook: str = ""


_BY_STATE: dict[tuple[str, str], Advice] = {
    ("raft_group", "LEADERLESS"): Advice(
        "strata raft-group show {name}",
        "start the storage nodes that hold its replicas; it has a leader once most of them run",
        "StrataRaftGroupLeaderless",
    ),
    ("raft_group", "DEGRADED"): Advice(
        "strata raft-group show {name}",
        "start the node that is missing, or give the raft group another replica "
        "(strata replica add)",
        "StrataRaftGroupUnderReplicated",
    ),
    ("raft_group", "CATCHING_UP"): Advice(
        "strata raft-group show {name}", "wait: the replica reads what it has missed"
    ),
    ("raft_group", "NOT_HOSTED"): Advice(
        "strata raft-group show {name}",
        "read why in the log of the node; a replica that is tried again comes by itself",
        "StrataProcessNotReady",
    ),
    ("raft_group", "NONE"): Advice(
        "strata node list", "start as many storage nodes as a raft group has replicas"
    ),
    ("node", "DOWN"): Advice(
        "strata node show {name}",
        "start its process; if its data is lost for good: strata node remove {name} --force",
        "StrataNodeDown",
    ),
    ("node", "UNREACHABLE"): Advice(
        "strata node show {name}",
        "check its process, and the network between it and the broker",
        "StrataNodeDown",
    ),
    ("node", "SUSPECT"): Advice(
        "strata node show {name}",
        "check the network between the node and the nameservers",
        "StrataNodeDown",
    ),
    ("node", "DRAINING"): Advice(
        "strata node show {name}",
        "stop and remove the node when it holds no replica; "
        "strata node drain {name} --undo returns it to service",
    ),
    ("node", "SLOW"): Advice(
        "strata placement explain",
        "check the disk and the neighbours of its machine",
        "StrataSlowNode",
    ),
    ("metadata", "STALE"): Advice(
        "strata node list", "start most of the nameservers", "StrataMetadataStale"
    ),
    ("metadata", "UNKNOWN"): Advice(
        "strata node list",
        "start the nameservers; check --nameservers of the broker",
        "StrataMetadataStale",
    ),
    ("nameservers", "LEADERLESS"): Advice(
        "strata node list", "start most of the nameservers", "StrataMetadataStale"
    ),
    ("nameservers", "READ_ONLY"): Advice(
        "strata node list", "read the log of the nameserver", "StrataReplicaReadOnly"
    ),
    ("disk", "STOP"): Advice(
        "strata doctor --data-dir DIR",
        "free some space on the disk of {name}, or shorten the retention of topics",
        "StrataDiskFull",
    ),
    ("tier", "BEHIND"): Advice(
        "strata tier status", "find out why uploads are slow", "StrataTierBehind"
    ),
    ("certificate", "NOT_READ"): Advice(
        "strata doctor --config FILE",
        "correct the files; they are read again at once",
        "StrataCertificateExpires",
    ),
    ("process", "RESTARTING"): Advice(
        "strata node list", "read the last lines of its log", "StrataProcessNotReady"
    ),
    ("front", "RESTARTING"): Advice(
        "strata cluster health --wait 60",
        "read the last lines of the broker's log if it does not come back",
        "StrataProcessNotReady",
    ),
    ("broker", "UNREACHABLE"): Advice(
        "strata doctor",
        "start the broker, or name another one with --endpoint",
        "StrataClusterDown",
    ),
    ("dead_letters", "WAITING"): Advice(
        "strata dlq show {name}",
        "correct the consumer, then: strata dlq redrive {name} --dry-run",
        "StrataDeadLetters",
    ),
}

_BY_KIND: dict[str, Advice] = {
    "raft_group": Advice("strata raft-group show {name}", "see its replicas"),
    "node": Advice("strata node show {name}", "see its state", "StrataNodeDown"),
    "disk": Advice(
        "strata doctor --data-dir DIR",
        "free some space on the disk of {name}, or shorten the retention of topics",
        "StrataDiskFillsSoon",
    ),
    "tier": Advice("strata tier status", "read why uploads fail", "StrataTierFailing"),
    "certificate": Advice(
        "strata doctor --config FILE",
        "replace the certificate; its files are read again at once",
        "StrataCertificateExpires",
    ),
    "process": Advice(
        "strata cluster health --wait 60", "wait until it has started", "StrataProcessNotReady"
    ),
}
_ANY = Advice("strata cluster health -o json", "read the log of the process")


def advice_for(problem: View) -> Advice:
    """Return the next step for a problem, as `strata cluster health` lists it."""
    found = _BY_STATE.get((problem["kind"], problem["state"]))
    advice = found or _BY_KIND.get(problem["kind"], _ANY)
    name = problem["name"] or "NAME"
    return Advice(advice.command.format(name=name), advice.action.format(name=name), advice.runbook)
