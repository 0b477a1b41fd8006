"""Mistakes that somebody could make in our code, and the tests that must fail for each.

A mistake is one change of one place of one file, so that the place is found again, or missed, when
the code moves on. `finds` is what the failing test must say: the violation that the mistake causes,
not just any trouble.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mutation:
    """One mistake.

    Attributes:
        name: short and unique.
        rule: number of the rule that it breaks.
        file: relative to the repository.
        old: the place; it is there exactly once.
        new: what stands there instead.
        tests: arguments of pytest: those that must fail.
        finds: pattern of what the failing test says.
    """

    name: str
    rule: int
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    finds: str


MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "commit-an-earlier-term-by-counting",
        12,
        "libs/raft/strata_raft/leader.py",
        "if index < self.term_start_index or not state.commit_to(index):",
        "if not state.commit_to(index):",
        (
            "tests/unit/raft/test_thesis_rules.py::test_3_6_2_no_commit_of_earlier_terms_by_counting",
        ),
        "assert",
    ),
    Mutation(
        "count-one-majority-of-a-joint-configuration",
        12,
        "libs/raft/strata_raft/quorum.py",
        "return min(index, _majority_index(configuration.outgoing, match))",
        "return index",
        ("tests/unit/raft/test_conversations.py",),
        "assert",
    ),
    Mutation(
        "take-every-bad-frame-for-a-torn-tail",
        7,
        "libs/seglog/strata_seglog/recovery.py",
        "if item.position >= durable or item.next_position is None:",
        "if item.position >= 0 or item.next_position is None:",
        ("tests/unit/seglog/test_log.py::test_damage_before_a_torn_tail_names_the_replica",),
        "assert|DID NOT RAISE",
    ),
    Mutation(
        "let-a-moved-frame-supersede",
        9,
        "libs/seglog/strata_seglog/columns.py",
        "        if moved:\n            end = at",
        "        if False:\n            end = at",
        ("tests/unit/seglog/test_codec.py::test_columns_leave_what_rule_9_leaves",),
        "assert",
    ),
    Mutation(
        "believe-a-wrong-clock",
        4,
        "libs/multiraft/strata_multiraft/bounded_clock.py",
        "within_ms = min(max(skew_ms, -self._max_skew_ms), self._max_skew_ms)",
        "within_ms = skew_ms",
        ("tests/unit/multiraft/test_bounded_clock.py",),
        "assert",
    ),
)

BY_NAME = {mutation.name: mutation for mutation in MUTATIONS}
