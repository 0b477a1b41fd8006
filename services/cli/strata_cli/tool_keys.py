"""JSON keys of the commands that look, load and check; `reference` puts them on the page."""

from __future__ import annotations

TOOL_KEYS = {
    "topic rates": "`topics`: a list of `namespace`, `name`, `messages` (that it holds), "
    "`messages_per_s` (that came since the last look), `last_store_time_ms`",
    "group lag": "`groups`: a list, the highest lag first, of `namespace`, `group`, `lag`, "
    "`in_flight`, `members` (how many), `consumed_per_s` (since the last look; null at the first "
    "one), `topics`: a list of `topic`, `queues` (how many), `lag`, `in_flight`, "
    "`consumed_per_s`",
    "doctor": "`status` (the worst verdict), `checks`: a list, the worst first, of `check` "
    "(broker, clock, disk, files, memory, port, certificate), `name`, `verdict` (ok, note, "
    "warning, failed), `detail`, `action` (empty: nothing to do), `values` (numbers: `skew_ms`, "
    "`error_ms`, `free_bytes`, `total_bytes`, `sync_p50_ms`, `sync_p99_ms`, `limit`, "
    "`available_bytes`, `days_left`, `call_ms`). Exit code 0: ok, 1: warning, 2: failed",
    "group skip": "as `group reset`",
    "group clone": "`name`, `source`, `queues`: as in `group show`, of the consumer group that got "
    "the cursors; with --dry-run `dry_run`, and `queues` of the other one",
    "bench send": "`topic`, `size`, `messages`, `failed`, `last_failure`, `duration_ms`, "
    "`messages_per_s`, `bytes_per_s`, `p50_ms`, `p90_ms`, `p99_ms`, `p999_ms`, `max_ms` (from when "
    "a send was due to its answer; null: no message)",
    "bench receive": "`topic`, `group`, and as `bench send` without `size`, the times being those "
    "from send to receive; `failed` counts acks, `redelivered` (messages that came before)",
    "apply": "`dry_run`, `created`, `updated`, `unchanged`, `deleted` (counts), `changes`: a list "
    "of `kind` (topic or group), `namespace`, `name`, `action` (create, update, none or, with "
    "--prune, delete), `fields`: a list of "
    "`field`, `before` (null: it is new), `after`",
    "export": "`topics`: a list of `name`, `namespace`, `type`, `queues`, `retention`, "
    "`attributes`; `groups`: a list of `name`, `namespace`, `fifo`, `broadcast`, `max_attempts`, "
    "`backoff`, `lite_topic`, `lite_exclusive`, as `group create`",
    "migrate plan": "`source`, `messages`, `topics`: a list of `topic`, `type`, `queues`, "
    "`messages`, `exists` (at the target), `problem` (why it cannot be copied; empty: it can), "
    "`notes`; `groups`: a list of `group`, `fifo`, `max_attempts`, `exists`, `topics` (where it "
    "has a position), `retries` (messages that wait for a retry at the source); `skipped`: a list "
    "of `kind` (topic or group), `name`, `reason`",
    "migrate access": "`dry_run`, `users`: a list of `user`, `exists` (at the target; its keys "
    "stay), `admin`, `disabled`, `secret_key` (that was made; empty: the source's own), `policies` "
    "(made): a list of `resource`, `actions`, `decision`, `sources`; `kept_policies` (a count: the "
    "target had them), `notes` (rights that differ), `problem` (empty: all was made); `notes`: of "
    "the source. Exit code 1: a user has a problem",
    "migrate run": "`state` (the file), `stopped` (by Ctrl-C); of all runs together `messages`, "
    "`bytes`, `repeated` (ids that the target had already), `refused`, `expired` (deleted at the "
    "source before they were read); `cursors_set`, `cursors_kept`, `cursors_left_alone` (their "
    "consumer groups consume at the target); with --dry-run as `migrate plan`",
    "migrate status": "`source`, `messages`, `bytes`, `repeated`, `refused`, `expired` as in "
    "`migrate run`, `queues`: a list of `topic`, `broker`, `queue`, `number` (of the queue at the "
    "target), `first_offset` and `next_offset` (at the source; null: not begun), `copied`, "
    "`bytes`, `repeated`, `refused`, `expired`, `digest`; `refusals`: a list of `topic`, "
    "`broker`, `queue`, `offset`, `reason`",
    "migrate verify": "`verified`, `wrong` (counts of queues), `queues`: a list as in `migrate "
    "status`, with `found` (messages at the target) and `problem` (empty: counts and checksums "
    "are equal). Exit code 1: a queue differs",
    "debug bundle": "`file`, `bytes`, `made_at_ms`, `files`: a list of `name`, `bytes`; `missing`: "
    "a list of `name`, `reason`",
    "profile list": "`file`, `profiles`: a list of profiles, as `profile show`",
    "profile set": "`file`, and the profile: `name`, `endpoint`, `namespace`, `tls`, `ca`, "
    "`access_key`, `secret_key_file`",
    "profile show": "the profile, as `profile set` without `file`",
    "profile delete": "`deleted`: the name",
    "completion install": "`shell`, `file`",
    "completion show": "`shell`, `script`",
    "status": "`status` and `exit_code` as `cluster health`, `endpoint`, `broker` (that answered; "
    "empty: none), `version`, `nodes` (by role: counts by state), `raft_groups` (counts by state), "
    "`topics` and `consumer_groups` (counts; null: the caller may not see them), "
    "`metadata_age_ms`, `checked_at_ms`, `findings`: a list, the worst first, of `kind`, `name`, "
    "`state`, `severity`, `detail` as the reasons of `cluster health` (also `dead_letters` and "
    "slow nodes, as notes), `next` (the command to type), `action` (what ends the problem), "
    "`runbook` (page of the repository; empty: none)",
}
