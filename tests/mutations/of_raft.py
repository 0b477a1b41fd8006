"""Mistakes in elections, replication, reads, clocks and liveness."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_RAFT = (
    Mutation(
        "decide-before-the-no-op-is-applied",
        1,
        "libs/multiraft/strata_multiraft/replica/replica.py",
        "        if self.unapplied.applied_index >= self._leads_from:",
        "        if True:",
        ("tests/unit/multiraft/test_turns.py::test_who_replays_decides_when_it_is_through",),
        "assert led_at == \\[replica\\.last_index\\]",
    ),
    Mutation(
        "keep-proposals-of-a-lost-leadership",
        1,
        "libs/multiraft/strata_multiraft/replica/replica.py",
        (
            "        self._term_announced = 0\n"
            "        self._proposals.fail(NotLeader(change.leader_id))"
        ),
        "        self._term_announced = 0",
        (
            "tests/unit/multiraft/test_leaving_office.py::test_an_entry_that_was_replaced_is_not_taken_for_committed",
        ),
        "with pytest\\.raises\\(NotLeader\\):",
    ),
    Mutation(
        "confirm-reads-by-earlier-rounds",
        3,
        "libs/raft/strata_raft/read_index.py",
        "if answered is None or answered >= wanted",
        "if answered is None or answered >= 0",
        (
            "tests/unit/raft/test_thesis_rules.py::test_6_4_reads_wait_for_a_majority_of_a_later_round",
        ),
        "assert not node\\.step\\(Read\\(context=6\\)\\)\\.reads",
    ),
    Mutation(
        "read-without-a-majority",
        3,
        "libs/multiraft/strata_multiraft/replica/replica.py",
        "            index = await self._confirmed_index()",
        "            index = self.node.commit_index",
        ("tests/unit/multiraft/test_three_nodes.py::test_read_barrier_needs_a_majority",),
        "with pytest\\.raises\\(NotLeader\\):",
    ),
    Mutation(
        "campaign-with-a-wrong-clock",
        4,
        "libs/multiraft/strata_multiraft/driver/outbox.py",
        "not (message.transfer or self._may_campaign())",
        "False",
        ("tests/unit/multiraft/test_leaving_office.py::test_a_wrong_clock_does_not_campaign",),
        "assert cluster\\.replica\\(3\\)\\.role is Role\\.LEADER",
    ),
    Mutation(
        "believe-a-wrong-clock",
        4,
        "libs/multiraft/strata_multiraft/peering/bounded_clock.py",
        "within_ms = min(max(skew_ms, -self._max_skew_ms), self._max_skew_ms)",
        "within_ms = skew_ms",
        ("tests/unit/multiraft/test_bounded_clock.py::test_wrong_clock_is_kept_within_bounds",),
        "assert leader\\.wall_ms\\(\\) == clock\\.wall_ms\\(\\) - 4_750",
    ),
    Mutation(
        "count-what-is-not-synced-here",
        7,
        "libs/raft/strata_raft/leader.py",
        "        match[state.replica_id] = state.log.persisted",
        "        match[state.replica_id] = state.log.last_index",
        (
            "tests/unit/raft/test_thesis_rules.py::test_10_2_1_the_leader_counts_itself_only_when_durable",
        ),
        ("assert node\\.step\\(Receive\\(AppendResponse\\(2, 1, 1, 1\\)\\)\\)\\.commit_index == 0"),
    ),
    Mutation(
        "acknowledge-before-the-sync",
        7,
        "libs/raft/strata_raft/follower.py",
        (
            "        state.send_after_sync(AppendResponse(state.replica_id, "
            "leader_id, state.term, index))"
        ),
        ("        state.send(AppendResponse(state.replica_id, leader_id, state.term, index))"),
        ("tests/unit/raft/test_thesis_rules.py::test_3_8_a_follower_answers_after_its_sync",),
        "assert not effects\\.messages",
    ),
    Mutation(
        "forget-what-was-truncated",
        8,
        "libs/raft/strata_raft/log.py",
        ">= max((self._last_term, self.last_index), self.floor)",
        ">= (self._last_term, self.last_index)",
        (
            "tests/unit/raft/test_thesis_rules.py::test_rule_8_a_truncated_log_votes_as_if_it_were_whole",
        ),
        ("assert not ask_vote\\(node, VoteRequest\\(2, 1, 5, last_index=49, last_term=3\\)\\)"),
    ),
    Mutation(
        "answer-for-an-earlier-life",
        8,
        "libs/raft/strata_raft/rawnode.py",
        ("        if message.target != state.replica_id:\n            return"),
        ("        if False:\n            return"),
        (
            "tests/unit/raft/test_thesis_rules.py::test_rule_8_messages_to_another_replica_id_are_ignored",
        ),
        "assert node\\.term == 1",
    ),
    Mutation(
        "let-a-damaged-replica-vote",
        8,
        "libs/multiraft/strata_multiraft/driver/node.py",
        (
            "if replica is None or replica.read_only or replica.is_resetting:\n"
            "                continue\n"
            "            message"
        ),
        (
            "if replica is None or replica.is_resetting:\n"
            "                continue\n"
            "            message"
        ),
        (
            "tests/unit/multiraft/test_membership.py::test_a_damaged_replica_neither_votes_nor_acknowledges",
        ),
        "assert not lost\\.done\\(\\)",
    ),
    Mutation(
        "acknowledge-while-rows-are-replaced",
        8,
        "libs/multiraft/strata_multiraft/driver/node.py",
        (
            "            if replica.installing and isinstance(message, "
            "(AppendRequest, TimeoutNow)):\n"
            "                continue"
        ),
        ("            if False:\n                continue"),
        (
            "tests/unit/multiraft/test_snapshots.py::test_no_append_is_acknowledged_while_rows_are_replaced",
        ),
        "assert not \\[each for each in said if isinstance\\(each, AppendResponse\\)\\]",
    ),
    Mutation(
        "lose-the-floor-of-an-install",
        8,
        "libs/multiraft/strata_multiraft/driver/opening.py",
        ("            if found is not None:\n                # The crash"),
        ("            if False:\n                # The crash"),
        (
            "tests/unit/multiraft/test_opening.py::test_an_interrupted_install_starts_empty_and_bound",
        ),
        "assert found\\.floor == floor",
    ),
    Mutation(
        "campaign-on-a-full-disk",
        11,
        "libs/multiraft/strata_multiraft/driver/node.py",
        "if self._writer.is_disk_full and replica.role is not Role.LEADER:",
        "if False:",
        ("tests/unit/multiraft/test_membership.py::test_a_full_disk_does_not_campaign",),
        "assert cluster\\.replica\\(3\\)\\.role is Role\\.FOLLOWER",
    ),
    Mutation(
        "apply-past-a-failure",
        11,
        "libs/multiraft/strata_multiraft/replica/replica.py",
        (
            '            self.fail(f"apply stopped at index '
            '{self.unapplied.applied_index}: {failure!r}")\n'
            "            return"
        ),
        "            pass",
        ("tests/unit/multiraft/test_one_voter.py::test_failed_apply_stops_one_raft_group_only",),
        'with pytest\\.raises\\(ReadOnly, match="apply stopped at index 2"\\):',
    ),
    Mutation(
        "vote-twice-in-a-term",
        12,
        "libs/raft/strata_raft/rawnode.py",
        "            state.vote = request.source\n",
        "",
        ("tests/unit/raft/test_thesis_rules.py::test_3_4_one_vote_per_term",),
        ("assert not ask_vote\\(node, VoteRequest\\(3, 1, term=2, last_index=9, last_term=1\\)\\)"),
    ),
    Mutation(
        "keep-a-configuration-that-was-replaced",
        12,
        "libs/raft/strata_raft/membership.py",
        ("            self._history.pop()\n        return"),
        ("            break\n        return"),
        ("tests/unit/raft/test_thesis_rules.py::test_4_1_a_configuration_goes_with_its_entry",),
        ("assert \\(node\\.configuration, node\\.configuration_index\\) == \\(THREE, 0\\)"),
    ),
    Mutation(
        "depose-a-working-leader",
        12,
        "libs/raft/strata_raft/rawnode.py",
        "if self._hears_leader() and not message.transfer:",
        "if False:",
        ("tests/unit/raft/test_thesis_rules.py::test_4_2_3_a_fresh_leader_is_not_deposed",),
        "assert not effects\\.messages \\+ effects\\.messages_after_sync",
    ),
    Mutation(
        "commit-an-earlier-term-by-counting",
        12,
        "libs/raft/strata_raft/leader.py",
        "if index < self.term_start_index or not state.commit_to(index):",
        "if not state.commit_to(index):",
        (
            "tests/unit/raft/test_thesis_rules.py::test_3_6_2_no_commit_of_earlier_terms_by_counting",
        ),
        "assert effects\\.commit_index == 0",
    ),
    Mutation(
        "count-one-majority-of-a-joint-configuration",
        12,
        "libs/raft/strata_raft/quorum.py",
        "return min(index, _majority_index(configuration.outgoing, match))",
        "return index",
        ("tests/unit/raft/test_conversations.py::test_conversation",),
        "assert actual == expected",
    ),
    Mutation(
        "take-arrival-for-support",
        13,
        "libs/multiraft/strata_multiraft/peering/heartbeats.py",
        "        if beat.acknowledged_boot_id == own_boot_id:",
        "        if True:",
        (
            "tests/unit/multiraft/test_heartbeats.py::test_acknowledgements_of_nothing_sent_count_for_nothing",
        ),
        ("assert not receive\\(heartbeats, 1, acknowledged=1, boot=OWN_BOOT \\+ 1\\)\\.regained"),
    ),
    Mutation(
        "carry-support-into-another-life",
        13,
        "libs/multiraft/strata_multiraft/peering/heartbeats.py",
        (
            "        self.received_number = 0\n"
            "        self.supported = False\n"
            "        self.confirmed_number = 0"
        ),
        "        self.received_number = 0",
        ("tests/unit/multiraft/test_heartbeats.py::test_a_new_boot_id_is_another_life",),
        "assert not heartbeats\\.supported",
    ),
    Mutation(
        "judge-silence-after-standing-still",
        14,
        "libs/multiraft/strata_multiraft/driver/ticker.py",
        "if self._clock.monotonic_s() - due_s > 2 * self._interval_s:",
        "if False:",
        ("tests/unit/multiraft/test_ticker.py::test_a_late_tick_counts_once",),
        "assert seen == done",
    ),
    Mutation(
        "share-a-budget-between-classes",
        15,
        "libs/multiraft/strata_multiraft/peering/peer_queue.py",
        ("if self.queued_bytes[each] and self.queued_bytes[each] + size > self._budgets[each]:"),
        (
            "if sum(self.queued_bytes.values()) and "
            "sum(self.queued_bytes.values()) + size > self._budgets[each]:"
        ),
        ("tests/unit/multiraft/test_angelia_transport.py::test_a_full_class_drops_its_own_only",),
        "assert world\\.send\\(\\*\\[heartbeat\\(n\\) for n in range\\(15\\)\\]\\)",
    ),
    Mutation(
        "let-a-question-overtake-entries",
        15,
        "libs/multiraft/strata_multiraft/driver/outbox.py",
        "    if not isinstance(message, AppendRequest):\n",
        "    if not isinstance(message, AppendRequest) or not message.entries:\n",
        ("tests/unit/multiraft/test_classes.py::test_a_question_without_entries_overtakes_none",),
        ("assert sent == \\[\\(TrafficClass\\.APPEND, 1\\), \\(TrafficClass\\.APPEND, 0\\)\\]"),
    ),
    Mutation(
        "answer-what-was-only-written",
        30,
        "libs/multiraft/strata_multiraft/driver/write_loop.py",
        "            position = self._log.write_and_sync(frames)",
        "            position = self._log.write(frames)",
        ("tests/unit/multiraft/test_one_voter.py::test_sole_voter_leads_at_once_and_commits",),
        "assert replica\\.is_ready_leader\\(\\)",
    ),
    Mutation(
        "send-entries-of-an-earlier-term",
        38,
        "libs/multiraft/strata_multiraft/driver/catch_up.py",
        "        and replica.term == term\n",
        "",
        (
            "tests/unit/multiraft/test_turns.py::test_entries_of_an_earlier_term_of_office_are_not_sent",
        ),
        "assert served\\[0\\] == 0",
    ),
    Mutation(
        "apply-a-backlog-in-one-turn",
        39,
        "libs/multiraft/strata_multiraft/driver/apply_loop.py",
        ("        replica.apply(entries)\n        if replica.has_ready():"),
        (
            "        replica.apply(entries)\n"
            "        while replica.has_ready() and (more := "
            "self._next_entries(replica, max_bytes)):\n"
            "            replica.apply(more)\n"
            "        if replica.has_ready():"
        ),
        ("tests/unit/multiraft/test_turns.py::test_a_slow_slice_makes_the_next_one_smaller",),
        "assert behind\\.slices\\[read_back:\\] == \\[256\\] \\+ \\[1\\] \\* 44",
    ),
    Mutation(
        "take-a-failed-read-for-damage-in-apply",
        40,
        "libs/multiraft/strata_multiraft/driver/apply_loop.py",
        ("        except ReadFailed as error:\n            again"),
        ("        except ZeroDivisionError as error:\n            again"),
        (
            "tests/unit/multiraft/test_turns.py::test_a_read_back_that_the_disk_fails_is_tried_again",
        ),
        "ReadOnly: entry \\d+ cannot be read",
    ),
    Mutation(
        "take-a-failed-read-for-damage-in-scan-up",
        40,
        "libs/multiraft/strata_multiraft/driver/catch_up.py",
        ("        except ReadFailed:\n            raise\n"),
        "",
        (
            "tests/unit/multiraft/test_turns.py::test_a_catch_up_read_that_the_disk_fails_changes_no_leader",
        ),
        "assert cluster\\.nodes\\[1\\]\\.log\\.read_failures == \\[\\]",
    ),
    Mutation(
        "put-aside-before-what-was-written",
        32,
        "libs/multiraft/strata_multiraft/driver/node.py",
        "        await self._writer.control([])  # frames that will be acknowledged: "
        "`before_end` sees them\n",
        "",
        (
            "tests/unit/multiraft/test_membership.py::test_what_was_given_to_the_log_before_a_removal_is_there_at_its_end",
        ),
        "assert told_early == \\[\\]",
    ),
    Mutation(
        "hand-over-to-a-silent-node",
        13,
        "libs/multiraft/strata_multiraft/replica/fitness.py",
        " and not self._driver.is_silent(replica_id)",
        "",
        ("tests/unit/multiraft/test_leaving_office.py::test_nobody_hands_over_to_a_silent_node",),
        "assert leader\\.successor\\(\\) == 2",
    ),
)
