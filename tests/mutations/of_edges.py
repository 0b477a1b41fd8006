"""Mistakes in brokers, nameservers and what all processes share."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_EDGES = (
    Mutation(
        "wait-for-nameservers-for-ever",
        16,
        "libs/metadata/strata_metadata/follower.py",
        "                    if silence_ms >= self._options.fallback_after_ms:",
        "                    if False:",
        ("tests/unit/metadata/test_follower.py::test_fallbacks_serve_while_no_nameserver_answers",),
        "NeverHeld",
    ),
    Mutation(
        "give-a-new-epoch-before-the-old-one",
        18,
        "services/broker/strata_broker/receives/popper.py",
        "            if request.fifo and not await self._may_serve(key, place, request, ticket):",
        "            if False:",
        ("tests/unit/broker/test_moved_queues.py::test_an_ordered_group_gets_the_old_epoch_first",),
        "assert not none\\.response\\.messages",
    ),
    Mutation(
        "hash-fields-without-their-lengths",
        19,
        "libs/mq/strata_mq/slots.py",
        "_LENGTH.pack(len(field)) + field for field",
        "field for field",
        ("tests/unit/mq/test_slots.py::test_stored_hashes_never_change",),
        'assert slot_base\\("", "orders", crc32c\\) == 1968',
    ),
    Mutation(
        "put-all-queues-into-one-slot",
        19,
        "libs/mq/strata_mq/slots.py",
        "    return (base + queue) % SLOT_COUNT",
        "    return base % SLOT_COUNT",
        ("tests/unit/mq/test_slots.py::test_queues_of_a_topic_are_spread_over_raft_groups",),
        "assert set\\(owners\\) == \\{1, 2, 3\\}",
    ),
    Mutation(
        "rename-a-queue-that-moved",
        20,
        "services/broker/strata_broker/metadata/metadata.py",
        ("            if not rows:\n                rows = self._homes_by_slot(topic)"),
        ("            if True:\n                rows = self._homes_by_slot(topic)"),
        (
            "tests/unit/broker/test_metadata.py::test_a_changed_slot_moves_queues_but_not_their_public_names",
        ),
        "assert view\\.homes\\(topic\\) == before",
    ),
    Mutation(
        "apply-a-revision-that-does-not-follow",
        21,
        "services/nameserver/strata_nameserver/state/machine.py",
        "            if command.counters.revision != counters.revision + 1:",
        "            if False:",
        (
            "tests/unit/nameserver/test_speculation.py::test_a_command_that_does_not_follow_stops_apply",
        ),
        (
            'with pytest\\.raises\\(RevisionMismatch, match="entry 50 brings '
            'revision 99, revision 1"\\):'
        ),
    ),
    Mutation(
        "move-a-message-group-at-once",
        23,
        "services/broker/strata_broker/sends/message_groups.py",
        "            if not self.has_left(topic, queue):",
        "            if False:",
        (
            "tests/unit/broker/test_message_groups.py::test_a_message_group_stays_in_its_queue_until_that_is_left",
        ),
        "assert groups\\.choose\\(topic, messages, range\\(5\\)\\) == stay",
    ),
    Mutation(
        "keep-the-default-switch-interval",
        30,
        "libs/runtime/strata_runtime/loop.py",
        "    sys.setswitchinterval(SWITCH_INTERVAL_S)\n",
        "",
        ("tests/unit/runtime/test_loop.py::test_run_sets_the_switch_interval_and_returns",),
        "assert round\\(run\\(main\\(\\)\\), 6\\) == SWITCH_INTERVAL_S == 0\\.0001",
    ),
    Mutation(
        "talk-to-another-cluster",
        32,
        "libs/angelia/strata_angelia/cluster_id.py",
        "        return not other or not self._value or other == self._value",
        "        return True",
        ("tests/contract/test_angelia_clusters.py::test_a_process_of_another_cluster_is_refused",),
        "with pytest\\.raises\\(AngeliaError\\) as refused:",
    ),
    Mutation(
        "let-a-call-end-its-turn",
        33,
        "services/broker/strata_broker/servicers/hot.py",
        (
            "        except Exception as failure:  # noqa: BLE001 - it ends this "
            "call, not those beside it"
        ),
        "        except ZeroDivisionError as failure:",
        (
            "tests/unit/broker/test_contained_failures.py::test_a_call_that_fails_leaves_the_others_of_its_turn_alone",
        ),
        "OddError: odd",
    ),
    Mutation(
        "believe-any-duration",
        34,
        "services/broker/strata_broker/metadata/requests.py",
        "    return max(-_MOST_MS, min(wanted_ms, _MOST_MS))",
        "    return wanted_ms",
        ("tests/unit/broker/test_requests.py::test_times_stay_within_63_bits",),
        ("assert milliseconds\\(Timestamp\\(seconds=seconds, nanos=nanos\\)\\) == expected_ms"),
    ),
    Mutation(
        "parse-any-number-of-elements",
        34,
        "services/broker/strata_broker/base/parsing.py",
        "            if found > shape.limits[number]:",
        "            if False:",
        (
            "tests/unit/broker/test_parsing.py::test_millions_of_empty_elements_are_refused_before_they_are_made",
        ),
        (
            'with pytest\\.raises\\(TooManyElements, match=f"at most '
            '\\{MAX_ELEMENTS\\} elements"\\):'
        ),
    ),
    Mutation(
        "wait-as-long-as-a-client-says",
        34,
        "services/broker/strata_broker/metadata/requests.py",
        "    return min(left_s - min(_ANSWER_S, left_s * _ANSWER_SHARE), most_s)",
        "    return left_s - min(_ANSWER_S, left_s * _ANSWER_SHARE)",
        ("tests/unit/broker/test_requests.py::test_a_client_chooses_its_time_within_the_brokers",),
        "assert time_for\\(left_s, 3\\.0, 600\\.0\\) == ",
    ),
    Mutation(
        "give-everything-to-one-client",
        34,
        "libs/runtime/strata_runtime/shares.py",
        "            if held.get(owner, 0) + n > self._most[owner[0]]:",
        "            if False:",
        ("tests/unit/broker/test_shares.py::test_nobody_holds_more_than_its_share",),
        "assert not shares\\.try_take\\(ann\\)",
    ),
    Mutation(
        "wait-at-the-own-broker-name-only",
        35,
        "services/broker/strata_broker/receives/popper.py",
        "            near, far = known[2], () if target.repeats else known[3]",
        "            near, far = known[2], ()",
        ("tests/unit/broker/test_popper.py::test_a_message_at_any_raft_group_ends_the_wait",),
        "assert .*storage\\.pops == \\[1, 2\\]",
    ),
    Mutation(
        "forget-what-came-while-somebody-looked",
        35,
        "services/broker/strata_broker/storage_client/quiet_places.py",
        "        if not told_later or self.told or not self._stream:",
        "        if not told_later or not self._stream:",
        (
            "tests/unit/broker/test_quiet_places.py::"
            "test_what_comes_while_somebody_looks_is_not_forgotten",
        ),
        "assert not one\\.settle\\(told_later=True\\)",
    ),
    Mutation(
        "forget-what-a-pop-took-whose-answer-was-lost",
        36,
        "services/broker/strata_broker/storage_client/storage_client.py",
        "(failure.unknown and bool(request.attempt))",
        "(failure.unknown and request.auto_renew)",
        (
            "tests/unit/broker/test_failover.py::"
            "test_a_pop_whose_answer_was_lost_is_repeated_as_such",
        ),
        "assert \\(first\\.repeated, again\\.repeated\\) == \\(False, True\\)",
    ),
    Mutation(
        "take-back-what-the-receive-got",
        36,
        "services/broker/strata_broker/receives/takebacks.py",
        "given if seen is None else given.without(seen)",
        "given",
        (
            "tests/unit/broker/test_takebacks.py::"
            "test_a_take_back_leaves_what_the_receive_got_at_the_same_raft_group",
        ),
        "assert releases\\(storage\\) == \\[\\]",
    ),
    Mutation(
        "promise-to-tell-and-leave-something-behind",
        35,
        "services/storage/strata_storage/leading/pops/pop.py",
        "            or self._may_give_more(call, scan)\n            or (scan",
        "            or (scan",
        (
            "tests/integration/storage/test_deliverables.py::"
            "test_a_pop_that_leaves_something_behind_arms_nothing",
        ),
        "assert",
    ),
    Mutation(
        "store-a-repeat-after-a-move-again",
        37,
        "services/broker/strata_broker/storage_client/earlier_sends.py",
        ("        if not changed_ms or self._clock.now_ms() - changed_ms > self._window_ms:"),
        "        if True:",
        (
            "tests/unit/broker/test_earlier_sends.py::test_a_repeat_after_a_move_gets_the_first_offset",
        ),
        "assert again\\.entries\\[0\\]\\.offset == first\\.entries\\[0\\]\\.offset",
    ),
    Mutation(
        "take-a-sealed-end-for-the-end",
        38,
        "services/broker/strata_broker/storage_client/holder_calls.py",
        (
            "            if self._last_epochs(topic) == epochs:\n"
            "                return answers\n\n"
            "    async def _ask_each("
        ),
        "            return answers\n\n    async def _ask_each(",
        (
            "tests/unit/broker/test_holder_calls.py::"
            "test_metadata_that_come_with_the_answer_change_who_is_asked",
        ),
        "assert await ends",
    ),
    Mutation(
        "gather-a-repeat-after-a-move",
        37,
        "services/broker/strata_broker/sends/gathered_sends.py",
        "        return _TopicSends(topic, owners, self._earlier.may_suspect(topic))",
        "        return _TopicSends(topic, owners, False)",
        (
            "tests/unit/broker/test_gathered_sends.py::"
            "test_sends_to_a_topic_with_moved_queues_are_gathered_by_destination",
        ),
        "assert",
    ),
    Mutation(
        "stage-a-send-before-those-it-follows",
        23,
        "services/broker/strata_broker/sends/gathered_sends.py",
        "            if sends.is_ordered:\n                self._stage_entries(sends)\n",
        "",
        (
            "tests/unit/broker/test_gathered_kinds.py::"
            "test_ordered_sends_of_a_turn_are_gathered_in_their_order",
        ),
        "assert entry_sizes\\(app\\) ==",
    ),
    Mutation(
        "take-sends-together-without-asking-for-the-right",
        33,
        "services/broker/strata_broker/sends/alike_sends.py",
        "            principal.require(*send_right(topic))\n",
        "",
        ("tests/unit/broker/test_access_checks.py::test_sends_of_a_turn_are_those_of_their_user",),
        "assert",
    ),
    Mutation(
        "take-sends-together-past-the-line-of-their-connection",
        34,
        "services/broker/strata_broker/sends/alike_sends.py",
        "if not (lets_pass(alike.peer) and self._takes(alike, started_s)):",
        "if not self._takes(alike, started_s):",
        (
            "tests/unit/broker/test_alike_sends.py::"
            "test_sends_of_a_connection_that_waits_go_into_its_line",
        ),
        "assert not taken",
    ),
    Mutation(
        "take-ordered-sends-of-a-client-in-groups",
        23,
        "services/broker/strata_broker/sends/alike_sends.py",
        "        if one.message_type == MessageType.FIFO and one.peer in alone:",
        "        if False:",
        (
            "tests/unit/broker/test_alike_sends.py::"
            "test_ordered_messages_of_a_client_keep_the_order_of_a_turn",
        ),
        "assert offsets ==",
    ),
    Mutation(
        "repeat-calls-of-the-metadata-without-an-id",
        37,
        "libs/metadata/strata_metadata/client.py",
        "        request = _named(request)\n",
        "",
        (
            "tests/unit/nameserver/test_repeated_calls.py::test_the_key_before_a_repeated_rotation_stays_valid",
        ),
        "== 'old-secret-key'",
    ),
    Mutation(
        "go-on-from-half-a-snapshot",
        32,
        "libs/metadata/strata_metadata/cache.py",
        "            self._store.write([(INSTALLING_KEY, applied)], [APPLIED_KEY])\n"
        "            self._is_replaced, self._stamp = True, 0\n",
        "",
        (
            "tests/unit/metadata/test_install.py::test_a_snapshot_that_breaks_off_must_come_again[False-False]",
        ),
        "assert \\(cache\\.revision, cache\\.known\\) == \\(0, \\(4, 0\\)\\)",
    ),
    Mutation(
        "let-one-client-name-what-it-likes",
        34,
        "services/broker/strata_broker/metadata/first_uses.py",
        "            if bucket is not None and not bucket.in_credit(now_s):",
        "            if False:",
        (
            "tests/unit/broker/test_first_uses.py::test_one_client_that_names_many_namespaces_has_its_pace",
        ),
        "assert made == 5 \\* 30",
    ),
)
