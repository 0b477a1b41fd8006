"""Mistakes in the log, its retention and its checkpoints."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_LOGS = (
    Mutation(
        "serve-another-entrys-bytes",
        2,
        "libs/seglog/strata_seglog/reader.py",
        ("            _Expected(replica_id, index, term).check(header, segment_name(base))\n"),
        "            pass\n",
        ("tests/unit/seglog/test_log.py::test_a_frame_of_another_replica_is_not_served",),
        ('with pytest\\.raises\\(CorruptFrame, match="not entry 1 of term 1 of replica 1"\\):'),
    ),
    Mutation(
        "see-no-holes",
        2,
        "libs/seglog/strata_seglog/columns.py",
        "        if live[end - 1] - first != end - 1 - at:",
        "        if False:",
        ("tests/unit/seglog/test_codec.py::test_columns_find_runs_and_terms",),
        "assert offsets == wanted",
    ),
    Mutation(
        "raise-the-persisted-index-without-a-flush",
        6,
        "libs/state/strata_state/flush.py",
        "        await self._run_blocking(self._store.flush)\n",
        "",
        (
            "tests/unit/state/test_flush.py::test_persisted_index_moves_only_after_a_completed_flush",
        ),
        "with pytest\\.raises\\(StateError\\):",
    ),
    Mutation(
        "persist-what-came-during-the-flush",
        6,
        "libs/state/strata_state/flush.py",
        "        before, openings = dict(applied), dict(self._openings)",
        "        before, openings = applied, dict(self._openings)",
        (
            "tests/unit/state/test_flush.py::test_persisted_index_moves_only_after_a_completed_flush",
        ),
        "assert flusher\\.persisted_index\\(1\\) == 10",
    ),
    Mutation(
        "free-what-no-checkpoint-covers",
        6,
        "services/storage/strata_storage/upkeep/retention.py",
        (
            "            engine.machine.persisted_index(),\n"
            "            checkpoint_indexes.get(engine.replica_id, 0) + 1,"
        ),
        "            engine.machine.persisted_index(),",
        (
            "tests/unit/storage/test_installs_meanwhile.py::test_an_entry_goes_when_rows_can_do_without_it",
        ),
        "assert low_indexes\\(engine\\.as_list\\(\\), checkpoints\\) == \\{1: low\\}",
    ),
    Mutation(
        "write-on-after-a-failed-sync",
        7,
        "libs/seglog/strata_seglog/tail.py",
        ("        self._failure = LogFailed(text)\n        return self._failure"),
        "        return LogFailed(text)",
        ("tests/unit/seglog/test_crashes.py::test_a_failed_sync_is_final",),
        "DID NOT RAISE LogFailed",
    ),
    Mutation(
        "read-a-header-that-is-damaged",
        7,
        "libs/seglog/strata_seglog/frames.py",
        ("    if google_crc32c.value(data[offset : offset + _SUMMED.size]) != fields[14]:"),
        "    if False:",
        ("tests/unit/seglog/test_codec.py::test_a_changed_header_is_none",),
        "assert decode_header\\(bytes\\(data\\), 0, 5\\) is None",
    ),
    Mutation(
        "take-every-bad-frame-for-a-torn-tail",
        7,
        "libs/seglog/strata_seglog/recovery.py",
        "if item.position >= durable or item.next_position is None:",
        "if item.position >= 0 or item.next_position is None:",
        ("tests/unit/seglog/test_log.py::test_damage_before_a_torn_tail_names_the_replica",),
        (
            "assert \\[\\(each\\.position, each\\.replica_ids\\) for each in found\\] == "
            "\\[\\(position, \\(1,\\)\\)\\]"
        ),
    ),
    Mutation(
        "relocate-without-the-flag",
        9,
        "libs/seglog/strata_seglog/frames.py",
        ("        FLAG_MOVED,\n        (stored.payload,),"),
        ("        0,\n        (stored.payload,),"),
        ("tests/unit/seglog/test_retention.py::test_relocation_frees_the_oldest_segment",),
        "assert \\(copied, freed\\) == \\(3, oldest\\.name\\)",
    ),
    Mutation(
        "let-a-moved-frame-supersede",
        9,
        "libs/seglog/strata_seglog/columns.py",
        ("        if moved:\n            end = at"),
        ("        if False:\n            end = at"),
        ("tests/unit/seglog/test_codec.py::test_columns_leave_what_rule_9_leaves",),
        (
            "assert list\\(columns\\.live\\(\\)\\) == \\[\\(index, live\\[index\\] \\* 100\\) "
            "for index in sorted\\(live\\)\\]"
        ),
    ),
    Mutation(
        "show-what-a-newer-segment-cut-off",
        9,
        "libs/seglog/strata_seglog/spans.py",
        "if pieces and pieces[-1].last >= span.cut:",
        "if False:",
        ("tests/unit/seglog/test_spans.py::test_a_new_suffix_ends_what_older_segments_hold",),
        "assert table\\.find\\(7\\) is None",
    ),
    Mutation(
        "lose-what-a-step-of-relocation-left",
        9,
        "libs/seglog/strata_seglog/retention.py",
        "        self._left = found\n",
        "        pass\n",
        ("tests/unit/seglog/test_retention.py::test_steps_of_relocation_look_at_each_entry_once",),
        "assert \\(log\\.entry\\(1, index\\) is not None\\) == \\(index % 2 == 0\\)",
    ),
    Mutation(
        "free-a-segment-with-a-checkpoint",
        10,
        "libs/seglog/strata_seglog/retention.py",
        "min(lowest_pin, state.checkpoint, state.open_checkpoint, *pins)",
        "min([lowest_pin, *pins])",
        ("tests/unit/seglog/test_retention.py::test_a_checkpoint_may_span_segments_and_pins_them",),
        "assert log\\.free_before\\(\\{1: 99\\}\\) == \\[\\]",
    ),
    Mutation(
        "leave-out-what-is-needed",
        10,
        "libs/seglog/strata_seglog/retention.py",
        "            if not is_needed(section.replica_id, entry_index):",
        "            if True:",
        ("tests/unit/seglog/test_retention.py::test_relocation_frees_the_oldest_segment",),
        "assert \\(copied, freed\\) == \\(3, oldest\\.name\\)",
    ),
    Mutation(
        "carry-no-hard-states",
        10,
        "libs/seglog/strata_seglog/log.py",
        "                frames = [*self._carried_hard_states(), *frames]",
        "                frames = list(frames)",
        ("tests/unit/seglog/test_retention.py::test_hard_states_survive_the_freeing_of_segments",),
        "KeyError: 5",
    ),
    Mutation(
        "relocate-nothing-of-strangers",
        10,
        "services/storage/strata_storage/upkeep/reclaim.py",
        ("            return index > covered.get(replica_id, -1) or index in retained[replica_id]"),
        (
            "            return replica_id in retained and (index > "
            "covered.get(replica_id, -1) or index in retained[replica_id])"
        ),
        (
            "tests/unit/storage/test_installs_meanwhile.py::test_entries_of_replicas_that_nobody_knows_stay",
        ),
        "assert await needed\\(engine, replica_id=2\\) == \\[True, True\\]",
    ),
    Mutation(
        "leave-refused-bytes",
        11,
        "libs/seglog/strata_seglog/tail.py",
        ("        self._dirty.append((self.synced, end))\n        self.segment.used = self.synced"),
        "        self.segment.used = self.synced",
        ("tests/unit/seglog/test_crashes.py::test_a_refused_write_never_comes_back",),
        "assert kit\\.state_of\\(after\\) == model\\.state\\(\\), seed",
    ),
    Mutation(
        "call-a-failed-read-corruption",
        31,
        "libs/seglog/strata_seglog/reader.py",
        ('            raise ReadFailed(f"{name}: {error.strerror or error}") from error'),
        "            raise CorruptFrame(base, name, str(error)) from error",
        ("tests/unit/seglog/test_log.py::test_a_read_error_is_typed_and_passes",),
        "CorruptFrame",
    ),
    Mutation(
        "free-while-a-snapshot-is-installed",
        38,
        "services/storage/strata_storage/upkeep/retention.py",
        ("        if engine.whole_rows() is not None\n        else 0"),
        "",
        (
            "tests/unit/storage/test_installs_meanwhile.py::test_nothing_is_freed_while_a_snapshot_is_taken_in",
        ),
        "assert low_indexes\\(engine\\.as_list\\(\\), \\{1: 80\\}\\) == \\{1: 0\\}",
    ),
    Mutation(
        "finish-a-checkpoint-of-replaced-rows",
        38,
        "services/storage/strata_storage/upkeep/checkpointer.py",
        "            if some and writing.is_whole:",
        "            if some:",
        (
            "tests/unit/storage/test_checkpointer.py::test_an_install_voids_the_checkpoint_that_is_being_written",
        ),
        ('assert not any\\(part\\[1\\] for part in parts\\), "the last part was written"'),
    ),
    Mutation(
        "rebuild-no-rows-of-message-ids",
        6,
        "services/storage/strata_storage/upkeep/rebuild.py",
        (
            "                append_rows.write_part("
            "part.first, part.count, part.key.topic_id, resolution)"
        ),
        (
            "                from unittest import mock\n\n"
            "                with mock.patch.object(type(self._rows.ids), 'put_run'):\n"
            "                    append_rows.write_part("
            "part.first, part.count, part.key.topic_id, resolution)"
        ),
        (
            "tests/integration/storage/test_recovery.py::test_rows_are_rebuilt_from_checkpoint_and_retained_frames",
        ),
        "assert kept_rows\\(rows_of\\(node\\)\\) == before",
    ),
    Mutation(
        "begin-a-checkpoint-during-an-install",
        38,
        "services/storage/strata_storage/upkeep/checkpointer.py",
        ("has_rows = bool(engine.machine.applied_index()) and engine.whole_rows() is not None"),
        "has_rows = bool(engine.machine.applied_index())",
        (
            "tests/unit/storage/test_checkpointer.py::test_a_replica_whose_rows_are_being_replaced_gets_no_checkpoint",
        ),
        "assert node\\.small\\.written == \\[\\]",
    ),
    Mutation(
        "believe-a-torn-begin-of-a-segment",
        10,
        "libs/seglog/strata_seglog/log.py",
        "            self._may_lack_hard_states = self._lacks_hard_states()\n",
        "",
        (
            "tests/unit/seglog/test_hard_states.py::test_hard_states_that_a_power_loss_tore_are_written_before_others_are_freed",
        ),
        "assert votes\\(log\\) == set\\(REPLICAS\\)",
    ),
    Mutation(
        "forget-damage-at-a-start",
        8,
        "libs/seglog/strata_seglog/log.py",
        "        self._look_again()\n",
        "",
        ("tests/unit/seglog/test_damage_notes.py::test_a_start_knows_what_a_scrub_found",),
        "assert who_is_damaged\\(log\\) == \\{1\\}",
    ),
    Mutation(
        "free-a-truncation-that-is-needed",
        8,
        "services/storage/strata_storage/upkeep/reclaim.py",
        "if is_short or is_needed(replica_id, VOID_INDEX):",
        "if is_needed(replica_id, VOID_INDEX):",
        (
            "tests/unit/storage/test_reclaimed_installs.py::test_a_truncation_stays_until_the_log_is_as_long_again",
        ),
        "assert log\\.entry\\(INSTALLED, VOID_INDEX\\) is not None",
    ),
)
