"""Mistakes in what leaders decide, what replicas apply and what is hosted."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_STORAGE = (
    Mutation(
        "apply-whatever-offset-comes",
        1,
        "services/storage/strata_storage/rows/append_apply.py",
        "        if resolution.base_offset != state.next_offset:",
        "        if False:",
        ("tests/unit/storage/test_machine.py::test_an_offset_that_does_not_follow_stops_apply",),
        (
            'with pytest\\.raises\\(ApplyError, match=f"goes on at 1, the entry says '
            '\\{base_offset\\}"\\):'
        ),
    ),
    Mutation(
        "begin-a-term-behind-the-last-stamp",
        4,
        "libs/mq/strata_mq/group_time.py",
        "float(max(self._last_ms, wall_ms))",
        "float(wall_ms)",
        ("tests/unit/mq/test_policies.py::test_group_time_starts_at_the_later_of_stamp_and_wall",),
        "assert slow\\.now\\(20\\.0, 11_000\\) == 14_990",
    ),
    Mutation(
        "jump-to-wall-time",
        4,
        "libs/mq/strata_mq/group_time.py",
        "min(max(wall_ms - target_ms, -slew_ms), slew_ms)",
        "(wall_ms - target_ms)",
        ("tests/unit/mq/test_policies.py::test_group_time_starts_at_the_later_of_stamp_and_wall",),
        "assert slow\\.now\\(20\\.0, 11_000\\) == 14_990",
    ),
    Mutation(
        "write-the-applied-index-apart",
        5,
        "services/storage/strata_storage/rows/machine.py",
        ("            self.rows.applied.put(batch, state)\n            self._store.write(batch)"),
        (
            "            self._store.write(batch)\n"
            "            batch = self._store.new_batch()\n"
            "            self.rows.applied.put(batch, state)\n"
            "            self._store.write(batch)"
        ),
        ("tests/unit/storage/test_machine.py::test_rows_and_applied_index_are_one_batch",),
        "assert log\\.store\\.seen == \\[\\(1, 1\\), \\(2, 2\\), \\(3, 3\\)\\]",
    ),
    Mutation(
        "begin-a-queue-in-a-slot-that-goes",
        17,
        "services/storage/strata_storage/rows/ownership.py",
        ("        return slot in self.slots and (row is not None or slot not in self.closing)"),
        "        return slot in self.slots",
        (
            "tests/unit/storage/test_queues_here.py::test_no_queue_begins_in_a_slot_that_is_about_to_go",
        ),
        "assert group\\.owned\\(\\) == group\\.here\\(\\) == \\[0, 2, 6\\]",
    ),
    Mutation(
        "drop-without-a-tombstone",
        17,
        "services/storage/strata_storage/rows/machine.py",
        "self.dropped.add(batch, command.what, command.dropped_id, self.state.group_time_ms)",
        "",
        (
            "tests/unit/storage/test_machine.py::test_messages_that_were_decided_before_a_drop_write_nothing",
        ),
        "assert log\\.machine\\.queues\\.get\\(TOPIC_ID, 0\\) is None",
    ),
    Mutation(
        "lease-messages-of-a-dropped-topic",
        17,
        "services/storage/strata_storage/rows/machine.py",
        "            if self._is_dropped(section.topic_id, section.consumer_group_id):",
        "            if False:",
        (
            "tests/unit/storage/test_machine.py::test_leases_that_were_decided_before_a_drop_write_nothing",
        ),
        "assert state_of\\(log\\) == \\(0, -1\\)",
    ),
    Mutation(
        "rehash-a-dropped-topic",
        17,
        "services/storage/strata_storage/rows/machine.py",
        (
            "        topic_id, queue, queue_count = command\n"
            "        if not self._is_dropped(topic_id):"
        ),
        ("        topic_id, queue, queue_count = command\n        if True:"),
        ("tests/unit/storage/test_rehash_apply.py::test_a_dropped_topic_gets_no_row_by_it",),
        "assert list\\(leader\\.machine\\.rows\\.queues\\.all_keys\\(\\)\\) == \\[\\]",
    ),
    Mutation(
        "seal-before-it-is-proposed",
        18,
        "services/storage/strata_storage/group/engine.py",
        "            future = leader.proposer.propose((encode_seal(command),))\n",
        (
            "            leader.appends.seal(topic_id, queue)\n"
            "            future = leader.proposer.propose((encode_seal(command),))\n"
        ),
        (
            "tests/integration/storage/test_seals.py::test_a_seal_that_is_refused_leaves_the_queue_open",
        ),
        "assert not leader\\.appends\\.is_sealed\\(7, 0\\)",
    ),
    Mutation(
        "read-columns-that-are-damaged",
        22,
        "libs/mq/strata_mq/layout/batch.py",
        "            if self._checksum(columns) != columns_crc:",
        "            if False:",
        ("tests/unit/mq/test_batch.py::test_every_flipped_bit_before_the_messages_is_found",),
        "with pytest\\.raises\\(BatchError\\):",
    ),
    Mutation(
        "take-damaged-metadata-for-the-end",
        7,
        "libs/state/strata_state/metadata_rocksdb.py",
        "            self._there().status()\n",
        "            self._there().valid()\n",
        ("tests/contract/test_metadata.py::test_damaged_files_are_found_and_nothing_is_left_out",),
        "with pytest\\.raises\\(MetadataStoreError",
    ),
    Mutation(
        "find-no-id-in-the-window",
        23,
        "services/storage/strata_storage/base/dedupe.py",
        (
            "        return (new is None or new.isdisjoint(ids)) and (old is None "
            "or old.isdisjoint(ids))"
        ),
        "        return True",
        ("tests/unit/storage/test_dedupe.py::test_topics_are_apart_and_can_be_forgotten",),
        "assert not window\\.all_new\\(1, ids\\(5, 1\\)\\)",
    ),
    Mutation(
        "forget-a-generation-of-ids",
        23,
        "services/storage/strata_storage/base/dedupe.py",
        (
            "        self._old, self._old_ids = self._new, self._new_ids\n"
            "        self._new, self._new_ids = {}, 0"
        ),
        ("        self._old, self._old_ids = {}, 0\n        self._new, self._new_ids = {}, 0"),
        (
            "tests/unit/storage/test_dedupe.py::test_an_id_is_known_for_the_window_and_forgotten_after_two",
        ),
        "assert window\\.known\\(1, \\*ids\\(1\\)\\)",
    ),
    Mutation(
        "believe-a-window-that-is-too-short",
        23,
        "services/storage/strata_storage/leading/appends/append.py",
        ("        if begin_ms <= now_ms - options.window_ms:\n            return None"),
        "        return None",
        (
            "tests/integration/storage/test_repeats.py::test_a_new_leader_finds_what_it_has_not_read_back",
        ),
        "assert found\\(again\\) == \\[\\(0, 0\\), \\(1, 1\\)\\]",
    ),
    Mutation(
        "take-an-ack-of-any-lease",
        24,
        "libs/mq/strata_mq/leases/queue_leases.py",
        (
            "            elif self._is_acked(lease, lease_number, generation, "
            "visible_at_ms, now_ms):\n                del rows[offset]"
        ),
        "            elif lease is not None:\n                del rows[offset]",
        ("tests/unit/mq/test_leases.py::test_a_handle_is_void_from_its_visible_time_on",),
        "assert not ack\\(leases, 0, taken\\[0\\], LATER_MS\\)",
    ),
    Mutation(
        "reset-without-a-new-generation",
        24,
        "libs/mq/strata_mq/leases/queue_leases.py",
        "        self.generation += 1\n",
        "",
        ("tests/unit/mq/test_leases.py::test_reset_voids_every_handle",),
        "assert leases\\.reset\\(0\\) == LeaseChange\\(1, 0, True, clear=True\\)",
    ),
    Mutation(
        "give-new-messages-behind-old-ones",
        24,
        "libs/mq/strata_mq/leases/order.py",
        "(was_delivered and not lease.attempts)",
        "False",
        (
            "tests/unit/mq/test_leases_fifo.py::test_fifo_gives_no_new_message_while_an_older_one_is_given_again_and_again",
        ),
        "assert seen == \\{0, 1, 2\\}",
    ),
    Mutation(
        "let-a-message-group-overtake-itself",
        24,
        "libs/mq/strata_mq/leases/order.py",
        "        return group_hash in self._groups and group_hash not in self._open",
        "        return False",
        (
            "tests/unit/mq/test_leases_fifo.py::test_fifo_gives_a_message_group_only_after_its_earlier_messages",
        ),
        "assert offsets\\(second\\.leases\\) == \\[2\\]",
    ),
    Mutation(
        "reset-and-keep-the-leases",
        24,
        "services/storage/strata_storage/rows/machine.py",
        ("            if section.clear:\n                leases.delete_all(batch, key)\n"),
        "",
        ("tests/unit/storage/test_machine.py::test_a_cleared_consumer_group_has_no_leases",),
        "assert state_of\\(log\\) == \\(0, 0\\)",
    ),
    Mutation(
        "never-call-a-client-dead",
        25,
        "services/storage/strata_storage/leading/pops/holders.py",
        "        return seen_at_s is None or now_s - self._stalls.total_s - seen_at_s >= "
        "self._silence_s",
        "        return seen_at_s is None",
        ("tests/unit/storage/test_holders.py::test_a_client_lives_while_some_broker_reports_it",),
        "assert holders\\.is_dead\\(8, 20\\.0, silent_too=True\\)",
    ),
    Mutation(
        "let-one-broker-end-a-client",
        25,
        "services/storage/strata_storage/leading/pops/holders.py",
        "            self._seen(client, reporter.heard_at_s)",
        "            self._seen_at_s.pop(client, None)",
        (
            "tests/unit/storage/test_holders.py::test_a_client_that_one_broker_hears_no_more_lives_by_another_one",
        ),
        "assert not holders\\.is_dead\\(7, 24\\.0, silent_too=True\\)",
    ),
    Mutation(
        "hold-a-lease-for-ever",
        25,
        "libs/mq/strata_mq/leases/indexes.py",
        "            return lease.taken_at_ms + self._auto_renew_limit_ms\n",
        "            return 1 << 62\n",
        ("tests/unit/mq/test_leases.py::test_an_auto_renewed_lease_ends_at_the_hard_limit",),
        "assert leases\\.next_deadline_ms\\(\\) == NOW_MS \\+ limit_ms",
    ),
    Mutation(
        "copy-a-dead-letter-and-keep-the-lease",
        26,
        "services/storage/strata_storage/rows/machine.py",
        (
            "        self._leases(batch, sections)\n"
            "        self._traces.leases(batch, entry.index, group_time_ms, "
            "sections, dead_letters=True)"
        ),
        (
            "        self._traces.leases(batch, entry.index, group_time_ms, "
            "sections, dead_letters=True)"
        ),
        ("tests/unit/storage/test_machine.py::test_a_dead_letter_is_in_one_of_the_two_places",),
        "assert \\(state_of\\(log\\), row\\.next_offset\\) == \\(\\(0, 1\\), 1\\)",
    ),
    Mutation(
        "never-let-a-message-go-to-the-dead-letters",
        26,
        "libs/mq/strata_mq/leases/ended.py",
        ("        if offset not in self._exhausted:\n            return None\n        return"),
        ("        return None\n        return"),
        (
            "tests/unit/mq/test_leases.py::test_used_up_attempts_go_to_the_dead_letter_list_and_stay_until_dropped",
        ),
        ("assert leases\\.drop_exhausted\\(0\\) == LeaseChange\\(0, 1, False, \\(\\), \\(0,\\)\\)"),
    ),
    Mutation(
        "wake-nobody-when-a-message-goes",
        26,
        "services/storage/strata_storage/leading/pops/lease_sets.py",
        "        return bool(change.deletes) and self._is_deliverable(lease_set)",
        "        return False",
        (
            "tests/unit/storage/test_lease_sets.py::test_a_message_that_goes_wakes_who_waits_behind_it",
        ),
        "assert waiting\\.done\\(\\)",
    ),
    Mutation(
        "pass-over-what-waits",
        27,
        "services/storage/strata_storage/rows/bound.py",
        "        self.key = min(self.key, key)",
        "        pass",
        ("tests/unit/storage/test_pending_bound.py::test_no_row_is_ever_below_the_bound",),
        (
            "assert next\\(rows\\.keys\\(bound\\.key\\), None\\) == "
            "next\\(rows\\.keys\\(\\), None\\)"
        ),
    ),
    Mutation(
        "scan-from-the-beginning",
        27,
        "services/storage/strata_storage/rows/bound.py",
        "        self._removed += 1",
        "        pass",
        ("tests/unit/storage/test_pending_bound.py::test_no_row_is_ever_below_the_bound",),
        "assert moved",
    ),
    Mutation(
        "give-up-what-the-tier-has-not",
        28,
        "services/storage/strata_storage/rows/tier_state.py",
        "            if known is None or offset > known.commit_offset:",
        "            if known is None:",
        ("tests/unit/storage/test_tier_state.py::test_a_stale_entry_changes_no_row",),
        "assert not STALE\\[name\\]\\(state\\)",
    ),
    Mutation(
        "give-up-without-reading-back",
        28,
        "services/storage/strata_storage/tiering/retain.py",
        "            await self._verify(ref)\n",
        "            pass\n",
        (
            "tests/integration/storage/test_tier_faults.py::test_a_damaged_copy_is_uploaded_again_from_the_log",
        ),
        "outcome: OUTCOME_OVERLOADED|assert not response\\.HasField",
    ),
    Mutation(
        "restore-from-the-oldest-manifest",
        29,
        "libs/tier/strata_tier/upkeep/bucket.py",
        "    for name in reversed(names):",
        "    for name in names:",
        ("tests/unit/tier/test_audit.py::test_the_newest_valid_manifest_wins",),
        ("assert \\(found\\.manifest\\.name, found\\.damaged\\) == \\(newer\\.name, \\[\\]\\)"),
    ),
    Mutation(
        "stop-at-a-damaged-manifest",
        29,
        "libs/tier/strata_tier/upkeep/bucket.py",
        (
            "        except DamagedObjectError as error:\n"
            "            damaged.append(error)\n"
            "    raise damaged[0]"
        ),
        ("        except DamagedObjectError as error:\n            raise\n    raise damaged[0]"),
        ("tests/unit/tier/test_audit.py::test_the_newest_valid_manifest_wins",),
        "DamagedObjectError",
    ),
    Mutation(
        "serve-a-damaged-message",
        31,
        "services/storage/strata_storage/reads/reader.py",
        "                and google_crc32c.value(message) == location.checksum\n",
        "",
        (
            "tests/integration/storage/test_damage.py::test_a_damaged_leader_gives_up_and_is_replaced",
        ),
        "assert response\\.refusal\\.outcome == pb\\.OUTCOME_CORRUPT",
    ),
    Mutation(
        "believe-rows-of-another-cluster",
        32,
        "services/storage/strata_storage/cluster/hosting.py",
        (
            "        return bool(self._cluster.value) and self._view.cluster_id == "
            "self._cluster.value"
        ),
        "        return True",
        (
            "tests/unit/storage/test_hosting.py::test_rows_that_are_not_of_this_cluster_remove_nothing",
        ),
        ("assert \\(sorted\\(host\\.groups\\), host\\.removed\\) == \\(\\[1\\], \\[\\]\\)"),
    ),
    Mutation(
        "remove-by-an-older-row",
        32,
        "services/storage/strata_storage/cluster/hosting.py",
        "        if wanted_at is not None and row.revision <= wanted_at:",
        "        if False:",
        (
            "tests/unit/storage/test_hosting.py::test_an_older_row_than_the_one_that_wanted_it_removes_nothing",
        ),
        "assert host\\.removed == \\[\\]",
    ),
    Mutation(
        "end-a-replica-before-it-stands-aside",
        32,
        "libs/multiraft/strata_multiraft/driver/node.py",
        (
            "        await before_end()\n"
            "        await self._writer.control([removed_frame(replica.replica_id, "
            "raft_group)])"
        ),
        (
            "        await self._writer.control([removed_frame(replica.replica_id, "
            "raft_group)])\n"
            "        await before_end()"
        ),
        ("tests/integration/storage/test_put_aside.py::test_a_removed_replica_comes_back",),
        "ValueError|removed",
    ),
    Mutation(
        "hold-a-leaders-own-stall-against-clients",
        25,
        "services/storage/strata_storage/leading/pops/holders.py",
        "now_s - self._stalls.total_s - seen_at_s >= self._silence_s",
        "now_s - seen_at_s >= self._silence_s",
        (
            "tests/integration/storage/test_undelivered.py::"
            "test_a_leader_that_stood_still_lets_clients_keep_their_leases",
        ),
        "assert await attempts_of_the_next_pop\\(node\\) == \\[\\]",
    ),
    Mutation(
        "count-a-release-as-an-attempt",
        36,
        "libs/mq/strata_mq/leases/queue_leases.py",
        "        return None if lease.state is _BLOCKED else lease.not_counted()",
        "        return None if lease.state is _BLOCKED else lease",
        ("tests/unit/mq/test_leases.py::test_a_release_without_delivery_is_no_attempt",),
        "assert leases\\.expire\\(NOW_MS \\+ 2\\) == \\(None, \\[\\]\\)",
    ),
    Mutation(
        "refuse-the-repeat-of-a-change",
        37,
        "libs/mq/strata_mq/leases/queue_leases.py",
        "        if lease.lease_number < number or (",
        "        if lease.lease_number <= number or (",
        ("tests/unit/mq/test_leases.py::test_a_repeated_change_finds_what_the_first_one_made",),
        "assert changed_before\\(leases, lease, invisible_ms\\) == changed",
    ),
    Mutation(
        "forget-how-a-message-ended",
        37,
        "services/storage/strata_storage/leading/pending/resolver.py",
        "        found = self._machine.rows.ended.get(day_of(self._proposer.now_ms()), ref)",
        "        found = None",
        ("tests/unit/storage/test_resolver.py::test_a_repeat_is_answered_as_the_first_one",),
        "no such message",
    ),
    Mutation(
        "leave-an-attempt-with-its-first-broker",
        36,
        "libs/mq/strata_mq/leases/queue_leases.py",
        "            if request.broker and lease.broker and lease.broker != request.broker:",
        "            if False:",
        (
            "tests/integration/storage/test_attempts_elsewhere.py::test_what_the_first_broker_gives_back_stays_with_the_client",
        ),
        "assert await release\\(node, first\\) == 0",
    ),
    Mutation(
        "give-an-attempt-back-to-a-late-pop",
        36,
        "services/storage/strata_storage/leading/pops/queue_order.py",
        "        return call.take.broker in self._passed_on.get(_attempt_of(call), ())",
        "        return False",
        (
            "tests/integration/storage/test_attempts_elsewhere.py::test_a_late_pop_of_the_first_broker_takes_nothing",
        ),
        "assert await pop\\(node, FIRST, repeated=True\\) == \\[\\]",
    ),
    Mutation(
        "tell-a-broker-of-leases-of-another",
        36,
        "services/storage/strata_storage/leading/pops/pop.py",
        "                if not lease.broker or lease.broker == call.take.broker",
        "                if True",
        (
            "tests/integration/storage/test_attempts_elsewhere.py::test_a_late_pop_of_the_first_broker_takes_nothing",
        ),
        "assert await pop\\(node, FIRST, repeated=True, taken_only=True\\) == \\[\\]",
    ),
    Mutation(
        "answer-a-repeat-before-the-first-is-committed",
        37,
        "services/storage/strata_storage/leading/proposer.py",
        "            await committed(self._in_flight[-1][0])",
        "            pass",
        ("tests/unit/storage/test_proposer.py::test_settled_waits_for_what_is_under_way",),
        "assert not waiting\\.done\\(\\)",
    ),
    Mutation(
        "settle-after-a-lost-leadership",
        37,
        "services/storage/strata_storage/leading/proposer.py",
        ("            await committed(self._in_flight[-1][0])\n        if self._dropped:"),
        ("            await committed(self._in_flight[-1][0])\n        if False:"),
        ("tests/unit/storage/test_proposer.py::test_nothing_is_settled_after_leadership_was_lost",),
        'with pytest\\.raises\\(Refused, match="leadership was lost"\\):',
    ),
    Mutation(
        "propose-in-another-term",
        38,
        "services/storage/strata_storage/leading/proposer.py",
        ("        if self._dropped:\n            # The"),
        ("        if False:\n            # The"),
        (
            "tests/unit/storage/test_proposer.py::test_what_was_decided_in_an_ended_term_is_not_proposed_in_the_next",
        ),
        "with pytest\\.raises\\(Refused\\) as refused:",
    ),
    Mutation(
        "publish-rows-that-are-being-replaced",
        38,
        "services/storage/strata_storage/tiering/publisher.py",
        "        if generation is None:",
        "        if False:",
        (
            "tests/unit/storage/test_installs_meanwhile.py::test_nothing_is_published_of_rows_that_are_being_replaced",
        ),
        "AssertionError: rows that are being replaced were touched",
    ),
)
