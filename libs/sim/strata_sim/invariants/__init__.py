"""What must hold in every run of a raft group: one invariant per file.

A checker is told what happens and raises `Violation` at the first thing that must not. It knows
nothing of who runs: our core, a driver, or somebody else's implementation.
"""

from strata_sim.invariants.committed_never_lost import CommittedNeverLost
from strata_sim.invariants.election_safety import ElectionSafety
from strata_sim.invariants.leader_completeness import LeaderCompleteness
from strata_sim.invariants.log_matching import LogMatching
from strata_sim.invariants.reads_see_commits import ReadsSeeCommits
from strata_sim.invariants.violation import Violation

__all__ = [
    "CommittedNeverLost",
    "ElectionSafety",
    "LeaderCompleteness",
    "LogMatching",
    "ReadsSeeCommits",
    "Violation",
]
