"""Metrics of a broker: RocketMQ's documented names first, then our own.

RocketMQ's names have no unit suffix, so their unit is in the description. The use of each limit is
under the names of `strata_runtime.limits`.
"""

from __future__ import annotations

from strata_runtime.metrics import MetricSpec

_TOPIC = ("namespace", "topic", "message_type")
_CONSUMER = ("namespace", "topic", "consumer_group", "is_retry")

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "strata_broker_earlier_sends_total",
        "counter",
        "1",
        "Repeated sends that were found in a raft group that the topic used before it changed.",
    ),
    MetricSpec(
        "rocketmq_messages_in_total", "counter", "1", "Messages that producers sent.", _TOPIC
    ),
    MetricSpec("rocketmq_messages_out_total", "counter", "1", "Messages delivered.", _CONSUMER),
    MetricSpec("rocketmq_throughput_in_total", "counter", "bytes", "Bytes produced.", _TOPIC),
    MetricSpec("rocketmq_throughput_out_total", "counter", "bytes", "Bytes delivered.", _CONSUMER),
    MetricSpec(
        "rocketmq_rpc_latency",
        "histogram",
        "ms",
        "Time from a request's arrival to its answer.",
        ("request_code", "response_code"),
    ),
    MetricSpec("rocketmq_producer_connections", "gauge", "1", "Producers connected."),
    MetricSpec("rocketmq_consumer_connections", "gauge", "1", "Consumers connected."),
    MetricSpec("rocketmq_message_size", "histogram", "bytes", "Size of produced messages."),
    MetricSpec(
        "rocketmq_consumer_lag_messages",
        "gauge",
        "1",
        "Messages that a consumer group has not acked, on the storage nodes that this broker asks.",
        ("namespace", "topic", "consumer_group"),
    ),
    MetricSpec(
        "rocketmq_consumer_inflight_messages",
        "gauge",
        "1",
        "Messages that a consumer group was given and has not acked.",
        ("namespace", "topic", "consumer_group"),
    ),
    MetricSpec(
        "rocketmq_consumer_ready_messages",
        "gauge",
        "1",
        "Messages that a consumer group was not given yet.",
        ("namespace", "topic", "consumer_group"),
    ),
    MetricSpec(
        "rocketmq_consumer_lag_latency",
        "gauge",
        "ms",
        "Age of the oldest message that a consumer group has not acked, as of the last window.",
        ("namespace", "topic", "consumer_group"),
    ),
    MetricSpec(
        "rocketmq_consumer_queueing_latency",
        "gauge",
        "ms",
        "Age of the oldest message that a consumer group was never given, as of the last window.",
        ("namespace", "topic", "consumer_group"),
    ),
    MetricSpec(
        "rocketmq_commit_messages_total",
        "counter",
        "1",
        "Transactions committed.",
        ("namespace", "topic"),
    ),
    MetricSpec(
        "rocketmq_rollback_messages_total",
        "counter",
        "1",
        "Transactions rolled back.",
        ("namespace", "topic"),
    ),
    MetricSpec(
        "rocketmq_processor_watermark",
        "gauge",
        "1",
        "Requests that are not answered yet: send (a request for several queues counts for each),"
        " ack, pull (receives), lite_pull (pulls), client_manager (all other calls).",
        ("processor",),
    ),
    MetricSpec("rocketmq_topic_number", "gauge", "1", "Topics of the cluster."),
    MetricSpec("rocketmq_consumer_group_number", "gauge", "1", "Consumer groups of the cluster."),
    MetricSpec("rocketmq_proxy_up", "gauge", "1", "Whether this broker takes calls."),
    MetricSpec(
        "strata_broker_windows_total",
        "counter",
        "1",
        "Batches of metric windows for __strata_metrics: stored, failed (and sent again), or lost.",
        ("result",),
    ),
    MetricSpec(
        "strata_broker_audit_events_total",
        "counter",
        "1",
        "Events of the audit trail, by kind: changed, refused, signed in.",
        ("event",),
    ),
    MetricSpec(
        "strata_broker_audit_left_out_total",
        "counter",
        "1",
        "Refusals and sign-ins above the rates of [audit]: no event tells of them.",
        ("event",),
    ),
    MetricSpec(
        "strata_broker_audit_sent_total", "counter", "1", "Events stored in __strata_audit."
    ),
    MetricSpec(
        "strata_broker_audit_dropped_total",
        "counter",
        "1",
        "Events that did not come into __strata_audit: too many waited, or storage refused them.",
    ),
    MetricSpec(
        "strata_broker_audit_waiting", "gauge", "1", "Events that wait to be sent to the topic."
    ),
    MetricSpec("strata_broker_audit_waiting_maximum", "gauge", "1", "Most events that may wait."),
    MetricSpec(
        "strata_broker_audit_addresses", "gauge", "1", "Addresses whose refusals have a rate."
    ),
    MetricSpec(
        "strata_broker_audit_addresses_maximum", "gauge", "1", "Most addresses remembered for it."
    ),
    MetricSpec("strata_broker_append_batches_total", "counter", "1", "Append batches sent."),
    MetricSpec("strata_broker_append_messages", "histogram", "1", "Messages per append batch."),
    MetricSpec("strata_broker_append_latency", "histogram", "ms", "Duration of an Append call."),
    MetricSpec("strata_broker_clients", "gauge", "1", "Clients known to be alive."),
    MetricSpec(
        "strata_broker_topics", "gauge", "1", "Topics in this broker's copy of the metadata."
    ),
    MetricSpec(
        "strata_broker_topics_in_use",
        "gauge",
        "1",
        "Topics that this broker keeps ready, at most `metadata.max_topics_in_use`.",
    ),
    MetricSpec(
        "strata_broker_metadata_revision",
        "gauge",
        "1",
        "Revision of this broker's copy of the metadata.",
    ),
    MetricSpec(
        "strata_broker_rehashing_topics",
        "gauge",
        "1",
        "Topics that got more queues and whose message groups still use the old ones.",
    ),
    MetricSpec(
        "strata_broker_pending_drops",
        "gauge",
        "1",
        "Deleted topics and consumer groups whose data is not dropped everywhere yet.",
    ),
    MetricSpec(
        "strata_broker_storage_retries_total",
        "counter",
        "1",
        "Calls repeated after a refusal or a lost connection.",
        ("reason",),
    ),
    MetricSpec(
        "strata_broker_replica_reads_total",
        "counter",
        "1",
        "Reads of messages at replicas, by result, and reads that were left to the leader.",
        ("result",),
    ),
    MetricSpec(
        "strata_broker_spread_topics",
        "gauge",
        "1",
        "Pairs of topic and raft group whose reads are counted in this window.",
    ),
    MetricSpec(
        "strata_broker_spread_topics_maximum",
        "gauge",
        "1",
        "Most pairs of topic and raft group whose reads are counted.",
    ),
    MetricSpec(
        "strata_broker_settings_pushed_total",
        "counter",
        "1",
        "Settings pushed to clients because their consumer group changed.",
    ),
    MetricSpec(
        "strata_broker_settings_waiting",
        "gauge",
        "1",
        "Clients whose settings wait for a check after a change of their consumer group; at most"
        " max_streams.",
    ),
    MetricSpec(
        "strata_broker_cached_filters",
        "gauge",
        "1",
        "Cached filter expressions, their characters, and the clients and addresses whose pace of"
        " new expressions is remembered (owners); all are limited.",
        ("of",),
    ),
    MetricSpec(
        "strata_broker_unread_filters_total",
        "counter",
        "1",
        "Filter expressions that were refused unread because of too many characters of new"
        " expressions of a client, of an address, or of all (receive.filter_characters_per_s).",
        ("by",),
    ),
    MetricSpec(
        "strata_broker_quota_refused_total",
        "counter",
        "1",
        "Requests refused because their namespace or topic used up a quota.",
        ("namespace", "quota"),
    ),
    MetricSpec(
        "strata_broker_quota_used",
        "gauge",
        "1",
        "Share of this broker's part of a namespace's quota that is used; over 1: a debt.",
        ("namespace", "quota"),
    ),
    MetricSpec(
        "strata_broker_quota_tracked",
        "gauge",
        "1",
        "Namespaces and topics whose rate is measured; at most quotas.max_tracked.",
    ),
    MetricSpec(
        "strata_broker_transactions_ended_total",
        "counter",
        "1",
        "Transactions committed, rolled back or given up; a repeat counts again.",
        ("end",),
    ),
    MetricSpec(
        "strata_broker_transaction_checks_total",
        "counter",
        "1",
        "Transaction checks by result: sent, given up, or dropped until the next check; sent ones "
        "also as not reported, if storage did not hear of it and asks once more.",
        ("result",),
    ),
    MetricSpec(
        "strata_broker_recalls_total",
        "counter",
        "1",
        "Recalls of messages, by result.",
        ("result",),
    ),
    MetricSpec(
        "strata_broker_peer_failures_total",
        "counter",
        "1",
        "Calls to other brokers that were not answered.",
        ("code",),
    ),
    MetricSpec(
        "strata_broker_surplus_connections",
        "gauge",
        "1",
        "Client connections beyond this broker's share of those behind its advertised endpoint; "
        "0 while they are within the tolerance, or unknown.",
    ),
    MetricSpec(
        "strata_broker_moved_connections_total",
        "counter",
        "1",
        "Client connections that were asked to connect again because this broker had too many.",
    ),
    MetricSpec(
        "strata_broker_redriven_total",
        "counter",
        "1",
        "Dead letters sent back to the topics they came from.",
    ),
    MetricSpec(
        "strata_broker_unclaimed_answers_total",
        "counter",
        "1",
        "Answers of receives that were taken back from clients that cancel and claim nothing.",
    ),
    MetricSpec(
        "strata_broker_unclaimed_clients",
        "gauge",
        "1",
        "Clients with auto-renewed leases that used no receipt handle since they got them.",
    ),
    MetricSpec(
        "strata_broker_unreleased_total",
        "counter",
        "1",
        "Leases of answers that no client took and that could not be released; they expire.",
    ),
    MetricSpec(
        "strata_broker_unseen_take_backs",
        "gauge",
        "1",
        "Receives without an answer whose raft groups are asked for the messages that they took.",
    ),
    MetricSpec(
        "strata_broker_refused_entries_total",
        "counter",
        "1",
        "Entries of sends, receives and acks refused because of what their client sent.",
    ),
    MetricSpec(
        "strata_broker_surplus_receives",
        "gauge",
        "1",
        "Receives beyond their client's limit that were refused after a pause.",
    ),
    MetricSpec(
        "strata_broker_answer_bytes",
        "gauge",
        "bytes",
        "Room of answers to receives and pulls that are being made.",
        ("of",),
    ),
    MetricSpec(
        "strata_broker_answers_waiting",
        "gauge",
        "1",
        "Answers to receives and pulls whose bytes wait for room.",
        ("of",),
    ),
    MetricSpec(
        "strata_broker_answers_by_place_total",
        "counter",
        "1",
        "Reads that found no room for the bytes and asked for the places of the messages only.",
        ("of",),
    ),
    MetricSpec(
        "strata_broker_waiting_receives",
        "gauge",
        "1",
        "Receives that wait in the broker for messages, and notifications of remoting clients.",
    ),
    MetricSpec(
        "strata_broker_kept_turns",
        "gauge",
        "1",
        "Clients whose receive ended without a message and that keep their place in line for some"
        " seconds; the limit is receive.max_parked.",
    ),
    MetricSpec(
        "strata_broker_serving_orders",
        "gauge",
        "1",
        "Pairs of a topic of type PRIORITY and a consumer group whose levels are known.",
    ),
    MetricSpec(
        "strata_broker_lower_level_messages_total",
        "counter",
        "1",
        "Messages of topics of type PRIORITY that were delivered before messages of a higher "
        "level, because lower levels have a share.",
    ),
    MetricSpec(
        "strata_broker_lite_subscriptions",
        "gauge",
        "1",
        "Subscriptions of lite topics: pairs of a client and a lite topic; the limit is "
        "lite.max_subscriptions.",
    ),
    MetricSpec(
        "strata_broker_lite_resting",
        "gauge",
        "1",
        "Lite topics for a consumer group that have no messages and are looked at again after"
        " storage_client.max_quiet_ms; the limit is storage_client.max_quiet_places.",
    ),
    MetricSpec(
        "strata_broker_lite_numbers",
        "gauge",
        "1",
        "Lite topics whose number is remembered; the limit is lite.max_cached_numbers.",
    ),
    MetricSpec(
        "strata_broker_lite_looks_total",
        "counter",
        "1",
        "Pops at lite topics.",
    ),
    MetricSpec(
        "strata_broker_quiet_places",
        "gauge",
        "1",
        "Raft groups and consumer groups without messages, of which storage nodes tell when some "
        "come.",
    ),
    MetricSpec(
        "strata_broker_share_refused_total",
        "counter",
        "1",
        "Calls refused because their client or connection has used up its share of a limit.",
        ("of", "by"),
    ),
    MetricSpec(
        "strata_broker_released_total",
        "counter",
        "1",
        "Leased messages that were released because their client had gone.",
    ),
    MetricSpec(
        "strata_broker_unreachable_raft_groups",
        "gauge",
        "1",
        "Raft groups that this broker cannot use now: they have no leader, or disks are full.",
    ),
    MetricSpec(
        "strata_broker_unauthorized_total",
        "counter",
        "1",
        "Calls without a right signature, by the reason.",
        ("reason",),
    ),
    MetricSpec(
        "strata_broker_forbidden_total",
        "counter",
        "1",
        "Calls that no policy allows.",
    ),
    MetricSpec(
        "strata_broker_signatures",
        "gauge",
        "1",
        "Signatures remembered as right, at most access_control.max_signatures.",
    ),
    MetricSpec(
        "strata_broker_principals",
        "gauge",
        "1",
        "Pairs of user and address with remembered decisions, at most "
        "access_control.max_principals.",
    ),
    MetricSpec(
        "strata_broker_wrong_signers",
        "gauge",
        "1",
        "Addresses and access keys whose wrong signatures are counted, at most "
        "access_control.max_wrong_signers.",
    ),
    MetricSpec(
        "strata_broker_remoting_request_ms",
        "histogram",
        "ms",
        "Time from a request of the remoting protocol to its answer, waits for messages included.",
        ("request",),
    ),
    MetricSpec(
        "strata_broker_remoting_dead_letters_total",
        "counter",
        "1",
        "Messages that consumers of the remoting protocol tried too often, stored as dead letters.",
    ),
    MetricSpec(
        "strata_broker_remoting_replies_total",
        "counter",
        "1",
        "Replies of consumers, by outcome: here (its client is connected to this broker), "
        "forwarded (to another broker), gone (no broker has the client), failed.",
        ("outcome",),
    ),
    MetricSpec(
        "strata_broker_remoting_reply_places",
        "gauge",
        "1",
        "Clients whose broker is remembered from their last reply, at most "
        "remoting.max_reply_places.",
    ),
    MetricSpec(
        "strata_broker_remoting_members",
        "gauge",
        "1",
        "Members of consumer groups that are connected by the remoting protocol.",
    ),
    MetricSpec(
        "strata_broker_remoting_transaction_groups",
        "gauge",
        "1",
        "Producer groups whose topics with transactional messages are remembered, at most "
        "remoting.max_transaction_groups.",
    ),
    MetricSpec(
        "strata_broker_remoting_locks",
        "gauge",
        "1",
        "Queues that orderly consumers of the remoting protocol have locked, at most "
        "remoting.max_locks; some may be over.",
    ),
)
