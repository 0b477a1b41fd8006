"""Stages of the tests: the one place that says which tests run when, and what each part may cost.

`pytest --stage NAME`, or a target of the Makefile: `quick` (pure packages), `unit` (neither
processes nor sockets), `test` (what every change needs) and `full` (what `test` left out, and what
it ran with smaller counts). Without a stage everything runs, with the counts of `full`.
`docs/testing.md` shows the parts as a table.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache

QUICK, UNIT, TEST, FULL = STAGES = ("quick", "unit", "test", "full")
VARIABLE = "STRATA_TEST_STAGE"
"""Variable that tells processes and modules the stage of this run."""

PROCESSORS = 2
"""The machine that the limits are for has so many."""

LIMITS_S = {QUICK: 30, UNIT: 180, TEST: 600, FULL: 2_400}
"""How long a stage may take on `PROCESSORS` that are idle."""

SEEDS_IN_TEST = 2
"""Seeds of a simulation in `test`; the other seeds are run by `full`."""


@dataclass(frozen=True)
class Part:
    """Tests that belong together.

    Attributes:
        start: how the node ids of its tests begin; of several parts the longest counts.
        stage: the first stage in which they run.
        budget_s: what they may take in that stage, in seconds of a processor: of the tests' own
            process and of all that it starts. How many lanes run beside it makes no difference.
        full_s: the same in `full`, if they run in an earlier stage and have cases, or
            counts, of `full`; 0: they have none.
        again: they run in `full` too, with higher counts.
    """

    start: str
    stage: str
    budget_s: int
    full_s: int = 0
    again: bool = False

    def budget_in(self, stage: str) -> int:
        """Return what they may take in a stage."""
        return self.full_s if stage == FULL and self.stage != FULL else self.budget_s


PARTS = (
    Part("tests/unit/raft/", QUICK, 1),
    Part("tests/unit/mq/", QUICK, 21),
    Part("tests/unit/kv/", QUICK, 1),
    Part("tests/unit/remoting/", QUICK, 2),
    Part("tests/unit/state/", QUICK, 2),
    Part("tests/unit/seglog/", QUICK, 7),
    Part("tests/unit/seglog/test_crashes.py", UNIT, 10, full_s=16, again=True),
    Part("tests/unit/seglog/test_log.py", UNIT, 4),
    Part("tests/unit/metadata/", QUICK, 1),
    Part("tests/unit/angelia/", UNIT, 5),
    Part("tests/unit/bench/", UNIT, 1),
    Part("tests/unit/broker/", UNIT, 49),
    Part("tests/unit/cli/", UNIT, 20, full_s=15),
    Part("tests/unit/console/", UNIT, 2),
    Part("tests/unit/edge/", UNIT, 2),
    Part("tests/unit/multiraft/", UNIT, 8),
    Part("tests/unit/nameserver/", UNIT, 36),
    Part("tests/unit/placement/", UNIT, 10),
    Part("tests/unit/runtime/", UNIT, 2),
    Part("tests/unit/sim/", UNIT, 2),
    Part("tests/unit/storage/", UNIT, 13),
    Part("tests/unit/storage/test_membership_plan.py", UNIT, 2, full_s=6, again=True),
    Part("tests/unit/tier/", UNIT, 6),
    Part("tests/unit/testing/", UNIT, 1),
    Part("tests/repo/", UNIT, 25),
    Part("tests/e2e/test_history.py", UNIT, 1),
    Part("tests/chart/", TEST, 18),
    Part("tests/compose/", TEST, 1),
    Part("tests/mutations/", TEST, 1),
    Part("tests/contract/", TEST, 66, full_s=24),
    Part("tests/integration/test_raftos_subject.py", TEST, 1),
    Part("tests/integration/broker/", TEST, 92, full_s=13),
    Part("tests/integration/broker/test_lite_topics.py", FULL, 11),
    Part("tests/integration/broker/test_remoting_admin.py", FULL, 5),
    Part("tests/integration/broker/test_remoting_client_port.py", FULL, 10),
    Part("tests/integration/broker/test_remoting_consumers.py", TEST, 4),
    Part("tests/integration/broker/test_remoting_dead_letters.py", TEST, 4),
    Part("tests/integration/broker/test_remoting_pops.py", TEST, 8),
    Part("tests/integration/broker/test_remoting_port.py", TEST, 4),
    Part("tests/integration/broker/test_remoting_replies.py", TEST, 5),
    Part("tests/integration/broker/test_remoting_sends.py", TEST, 8),
    Part("tests/integration/broker/test_remoting_transactions.py", TEST, 3),
    Part("tests/integration/cli/", TEST, 72, full_s=24),
    Part("tests/integration/cli/test_audit.py", FULL, 5),
    Part("tests/integration/cli/test_autoscaler.py", TEST, 7),
    Part("tests/integration/cli/test_container_full_disk.py", FULL, 6),
    Part("tests/integration/cli/test_container_members.py", FULL, 24),
    Part("tests/integration/cli/test_distribution.py", FULL, 51),
    Part("tests/integration/cli/test_first_admin.py", FULL, 30),
    Part("tests/integration/cli/test_identity.py", FULL, 22),
    Part("tests/integration/cli/test_key_rotation.py", FULL, 5),
    Part("tests/integration/cli/test_log_repair.py", FULL, 18),
    Part("tests/integration/cli/test_machine_starts.py", TEST, 15),
    Part("tests/integration/cli/test_membership.py", FULL, 18),
    Part("tests/integration/cli/test_migrate_source.py", TEST, 1),
    Part("tests/integration/cli/test_migrate_target.py", TEST, 2),
    Part("tests/integration/cli/test_observability.py", FULL, 13),
    Part("tests/integration/cli/test_open_addresses.py", FULL, 8),
    Part("tests/integration/cli/test_pages.py", FULL, 12),
    Part("tests/integration/cli/test_restore_replica.py", FULL, 12),
    Part("tests/integration/cli/test_standalone_moves.py", FULL, 10),
    Part("tests/integration/cli/test_tier_commands.py", FULL, 10),
    Part("tests/integration/cli/test_tier_restore.py", FULL, 10),
    Part("tests/integration/console/", TEST, 10),
    Part("tests/integration/multiraft/", TEST, 3),
    Part("tests/integration/nameserver/", TEST, 9),
    Part("tests/integration/object_stores/", TEST, 9, full_s=15),
    Part("tests/integration/observability/", TEST, 6),
    Part("tests/integration/placement/", FULL, 12),
    Part("tests/integration/spark/", FULL, 431),
    Part("tests/integration/storage/", TEST, 80, full_s=14),
    Part("tests/integration/storage/test_chaos.py", FULL, 12),
    Part("tests/integration/storage/test_reads_after_appends.py", TEST, 2, full_s=8, again=True),
    Part("tests/integration/tiered_stores/", TEST, 9, full_s=6),
    Part("tests/integration/tiered_stores/test_node_faults.py", FULL, 18),
    Part("tests/sim/", TEST, 14, full_s=40),
    Part(
        "tests/sim/test_cluster.py::test_clusters_survive_faults", TEST, 60, full_s=187, again=True
    ),
    Part("tests/sim/test_cluster.py::test_raft_groups_that_rest", FULL, 7),
    Part("tests/sim/test_cluster.py::test_lite_topics", FULL, 18),
    Part("tests/sim/test_cluster.py::test_same_seed_same_run", FULL, 20),
    Part("tests/sim/test_cluster.py::test_mutation_is_caught", FULL, 471),
    Part("tests/compat/", TEST, 15, full_s=31),
    Part("tests/compat/test_cluster.py", FULL, 7),
    Part("tests/compat/test_examples.py", FULL, 3),
    Part("tests/compat/test_migrate.py", FULL, 38),
    Part("tests/compat/test_migrate_access.py", FULL, 25),
    Part("tests/compat/test_mqadmin.py", FULL, 9),
    Part("tests/compat/test_mqadmin_recorded.py", FULL, 5),
    Part("tests/compat/test_remoting.py", FULL, 33),
    Part("tests/compat/test_remoting_access.py", FULL, 21),
    Part("tests/compat/test_remoting_others.py", FULL, 7),
    Part("tests/compat/test_remoting_kills.py", FULL, 20),
    Part("tests/compat/test_remoting_pops.py", FULL, 14),
    Part("tests/compat/test_remoting_resets.py", FULL, 15),
    Part("tests/compat/test_tier.py", FULL, 110),
    Part("tests/compat/test_workers.py", FULL, 2),
    Part("tests/e2e/test_bad_input.py", TEST, 6),
    Part("tests/e2e/test_access_fuzzer.py", FULL, 21),
    Part("tests/e2e/test_access_switch.py", FULL, 16),
    Part("tests/e2e/test_broker_drain.py", TEST, 5),
    Part("tests/e2e/test_cluster_changes.py", FULL, 49),
    Part("tests/e2e/test_cluster_faults.py", TEST, 31, full_s=51, again=True),
    Part("tests/e2e/test_cluster_health.py", FULL, 13),
    Part("tests/e2e/test_cluster_kv.py", FULL, 23),
    Part("tests/e2e/test_cluster_network.py", FULL, 6),
    Part("tests/e2e/test_cluster_tls.py", FULL, 16),
    Part("tests/e2e/test_container_machines.py", FULL, 24),
    Part("tests/e2e/test_fuzzer.py", TEST, 28),
    Part("tests/e2e/test_kill.py", TEST, 27, full_s=87, again=True),
    Part("tests/e2e/test_kill_freed_log.py", FULL, 25),
    Part("tests/e2e/test_kv_connector.py", FULL, 4),
    Part("tests/e2e/test_kv_kill.py", TEST, 15, full_s=48, again=True),
    Part("tests/e2e/test_machines.py", TEST, 9),
    Part("tests/e2e/test_many_topics.py", FULL, 11),
    Part("tests/e2e/test_placement_live.py", FULL, 20),
    Part("tests/e2e/test_quickstart_machines.py", FULL, 11),
    Part("tests/e2e/test_replica_reads.py", FULL, 4),
    Part("tests/e2e/test_secrets.py", FULL, 10),
    Part("tests/e2e/test_tier_kills.py", TEST, 9, full_s=24, again=True),
    Part("tests/e2e/test_tier_restore.py", FULL, 17),
    Part("tests/e2e/test_transaction_kills.py", TEST, 11, full_s=34),
    Part("tests/e2e/test_transports.py", FULL, 9),
    Part("tests/chaos/", FULL, 34),
    Part("tests/soak/test_flatness.py", TEST, 1),
    Part("tests/soak/test_soak.py", FULL, 6),
)

# Cases that only `full` runs inside parts that `test` runs, by the id that pytest gives a test.
ELSEWHERE = (
    # Python's official client runs in full; the others show that they can send and receive.
    r"tests/compat/(?!test_simple_consumer\.py::test_(?:each_message_once|languages_read_each_other))"
    r".*\[(?:.*-)?(?:java|go|node)(?:-.*)?\]",
    # The scripts of the other shells are made in the same way.
    r"tests/unit/cli/test_completion\.py::test_a_script_knows_commands_and_options\[(?:zsh|fish)\]",
    # The longest cases of the edge that is not the default.
    r"tests/contract/test_edge_limits\.py::test_a_(?:bomb_costs_no_memory|flood_of_resets)\[native.*\]",
    # A bomb of each kind once, over each way in once.
    r"tests/contract/test_edge_limits\.py::test_a_bomb_costs_no_memory\[(?:tls-|plaintext-d|direct-g).*\]",
    # The death of each storage node once; nameservers die in other simulations, too.
    r"tests/sim/test_slot_moves\.py::test_a_move_goes_on_when_a_party_dies"
    r"\[(?!revoked-source|recorded-target).*\]",
    # One transport: what reads wait for is the same in all.
    r"tests/contract/test_angelia_classes\.py::test_as_many_reads_wait_.*\[(?!tcp-protobuf-tls).*\]",
    # It starts a shell that reads the script of four hundred commands.
    r"tests/unit/cli/test_completion\.py::test_one_command_installs_it",
    # Object stores other than a folder and S3.
    r"tests/(?:contract|integration|compat)/.*\[(?:.*-)?(?:gs|hdfs)(?:-.*)?\]",
    r"tests/integration/object_stores/test_(?:gs|hdfs)_faults\.py",
    # The kill of each tier once.
    r"tests/e2e/test_transaction_kills\.py::test_kill_(?:while_halves_are_sent|during_a_check)\[",
    r"tests/e2e/test_transaction_kills\.py::test_kill_before_the_commit\[(?:.*-)?(?!broker)\w+\]",
    r"tests/e2e/test_transaction_kills\.py::test_kill_while_they_are_ended\[(?:.*-)?(?!storage)\w+\]",
    r"tests/e2e/test_transaction_kills\.py::test_kill_after_the_commit\[(?:.*-)?(?!nameserver)\w+\]",
    # Each kind of fault of a process once, and each tier; a follower is killed in simulations, too.
    r"tests/e2e/test_cluster_faults\.py::test_(?:pause_of_a_broker|kill_of_a_follower|writes_go_on)",
    # `test_rolling_restart` stops what clients are connected to.
    r"tests/compat/test_restart\.py::test_clients_go_on\[stop\]",
    # Receives that wait meet the death of one leader.
    r"tests/integration/broker/test_waiting_receives\.py::test_receives_that_wait_outlive_(?:a_restart|.*\[2\])",
    # One way of reading; the two others in full, where both it and they are told apart.
    r"tests/integration/broker/test_consumption\.py::test_a_lease_is_renewed_.*\[(?:leader|places)\]",
    r"tests/integration/broker/test_(?:pulls\.py::.*\[places|priorities\.py::.*\[leader)",
    # Each reason why a start fails in one role; a process takes a second of a processor.
    r"tests/integration/cli/test_failed_starts\.py::.*\[(?:nameserver|broker|forwarder)\]",
    r"tests/integration/cli/test_failed_starts\.py::test_a_(?:metrics|folder_and|port_that_is_none).*\[storage\]",
    r"tests/integration/cli/test_failed_starts\.py::test_a_broker_that_is_no_address\[(?!127)",
    # A crash in the middle of a snapshot's install, once.
    r"tests/integration/storage/test_snapshots\.py::test_a_crash_in_the_middle_.*\[[12]\]",
    # One error, once.
    r"tests/integration/storage/test_disk_faults\.py::.*\[(?:5-1|5-12|28-12)\]",
)
_ELSEWHERE = re.compile("|".join(ELSEWHERE))

# Counts of a stage; without a stage the tests take their own.
COUNTS = {TEST: {"STRATA_SIM_SEEDS": "2"}, FULL: {"STRATA_SIM_SEEDS": "20"}}


def part_of(node_id: str) -> Part | None:
    """Return the part of a test; None: it is in none, which tests/repo does not allow."""
    return _part_of(node_id.partition("[")[0])


@cache
def _part_of(name: str) -> Part | None:
    parts = [part for part in PARTS if name.startswith(part.start)]
    return max(parts, key=lambda part: len(part.start), default=None)


def stages_of(node_id: str, seed: int | None = None) -> tuple[str, ...]:
    """Return the stages in which a test runs.

    Args:
        node_id: what pytest calls it.
        seed: of a simulation, if it has one.
    """
    part = part_of(node_id)
    if part is None or part.stage == FULL or _ELSEWHERE.match(node_id):
        return (FULL,)
    if seed is not None and node_id.startswith("tests/sim/"):
        return (TEST,) if seed < SEEDS_IN_TEST else (FULL,)
    stages = STAGES[STAGES.index(part.stage) : STAGES.index(TEST) + 1]
    return (*stages, FULL) if part.again else stages


def seconds(test: float, full: float) -> float:
    """Return how long harm lasts, by the stage; see `rounds`."""
    return test if os.environ.get(VARIABLE) == TEST else full


def examples(test: int, full: int) -> int:
    """Return how many examples a random test takes, by the stage.

    Args:
        test: in `make test`, `make unit` and `make quick`.
        full: in `make test-full`, and where no stage was named.
    """
    return full if os.environ.get(VARIABLE, FULL) == FULL else test


def rounds(test: int, full: int) -> int:
    """Return how often a test does its harm: STRATA_TEST_ROUNDS, else by the stage.

    Args:
        test: in `make test`.
        full: in `make test-full`, and where no stage was named.
    """
    given = os.environ.get("STRATA_TEST_ROUNDS")
    return int(given) if given else test if os.environ.get(VARIABLE) == TEST else full
