"""All dashboards."""

from __future__ import annotations

from scripts.dashboards.boards_of_nodes import NAMESERVER, PLACEMENT, STORAGE, TIER
from scripts.dashboards.model import (
    CLUSTER,
    Board,
    Figure,
    Graph,
    Section,
    Series,
    highest,
    quantile,
    quantiles,
    rate,
    total,
)

_GROUP = 'namespace=~"$namespace", topic=~"$topic", consumer_group=~"$consumer_group"'
_TOPIC = 'namespace=~"$namespace", topic=~"$topic"'
_SENDS = 'request_code="send_message", response_code="ok"'
_GONE = 'state=~"down|unreachable"'
_SOON = f'{_SENDS}, le="250.0"'
_BAD = 'response_code!~"ok|message_not_found"'

OVERVIEW = Board(
    "stratamq-overview",
    "Overview",
    "Is the cluster healthy, and how much does it carry?",
    (
        Section(
            "Health",
            (
                Figure(
                    "Status",
                    "0 healthy, 1 degraded, 2 down. `strata cluster health` says why.",
                    "short",
                    highest("strata_cluster_status"),
                    1,
                    2,
                ),
                Figure(
                    "Raft groups without a leader",
                    "Their queues take and give nothing.",
                    "short",
                    highest("strata_cluster_raft_groups", matchers='state="LEADERLESS"'),
                    1,
                    1,
                ),
                Figure(
                    "Under-replicated raft groups",
                    "They serve, with less protection.",
                    "short",
                    highest("strata_cluster_raft_groups", matchers='state="DEGRADED"'),
                    1,
                    1_000_000,
                ),
                Figure(
                    "Nodes down",
                    "Nodes that neither the nameserver nor their peers hear.",
                    "short",
                    f"{highest('strata_cluster_nodes', '', _GONE)} or vector(0)",
                    1,
                    2,
                ),
                Graph(
                    "Problems",
                    "Problems that processes see, by kind and state.",
                    "short",
                    (Series(highest("strata_problems", "kind, state"), "{{kind}} {{state}}"),),
                ),
                Graph(
                    "Nodes",
                    "Nodes by kind and state.",
                    "short",
                    (Series(highest("strata_cluster_nodes", "kind, state"), "{{kind}} {{state}}"),),
                ),
                Graph(
                    "Raft groups",
                    "Raft groups by state.",
                    "short",
                    (Series(highest("strata_cluster_raft_groups", "state"), "{{state}}"),),
                ),
            ),
        ),
        Section(
            "Traffic",
            (
                Graph(
                    "Messages",
                    "Messages produced and delivered.",
                    "ops",
                    (
                        Series(rate("rocketmq_messages_in_total"), "produced"),
                        Series(rate("rocketmq_messages_out_total"), "delivered"),
                    ),
                ),
                Graph(
                    "Bytes",
                    "Bytes produced and delivered.",
                    "Bps",
                    (
                        Series(rate("rocketmq_throughput_in_total"), "produced"),
                        Series(rate("rocketmq_throughput_out_total"), "delivered"),
                    ),
                ),
                Graph(
                    "Time of a send",
                    "From the request's arrival at the broker to its answer.",
                    "ms",
                    quantiles("rocketmq_rpc_latency", matchers=_SENDS),
                ),
                Graph(
                    "Refusals",
                    "Answers other than OK, by code.",
                    "ops",
                    (
                        Series(
                            rate("rocketmq_rpc_latency_count", "response_code", _BAD),
                            "{{response_code}}",
                        ),
                    ),
                ),
                Graph(
                    "Lag",
                    "Messages that consumer groups have not acked, the ten largest.",
                    "short",
                    (
                        Series(
                            "topk(10, "
                            f"{total('rocketmq_consumer_lag_messages', 'topic, consumer_group')})",
                            "{{topic}} / {{consumer_group}}",
                        ),
                    ),
                ),
                Graph(
                    "Clients",
                    "Producers and consumers connected.",
                    "short",
                    (
                        Series(total("rocketmq_producer_connections"), "producers"),
                        Series(total("rocketmq_consumer_connections"), "consumers"),
                    ),
                ),
            ),
        ),
        Section(
            "Processes",
            (
                Graph(
                    "Event loop",
                    "Longest delay of each process's event loop.",
                    "ms",
                    (Series(highest("strata_loop_lag_max_ms", "node_id"), "{{node_id}}"),),
                ),
                Graph(
                    "Limits",
                    "How full the fullest limits are.",
                    "percentunit",
                    (
                        Series(
                            f"topk(10, max by (limit) (strata_limit_used{{{CLUSTER}}} / "
                            f"strata_limit_maximum{{{CLUSTER}}}))",
                            "{{limit}}",
                        ),
                    ),
                ),
                Graph(
                    "Unexpected failures",
                    "Requests that ended with an exception: bugs, with a stack in the log.",
                    "ops",
                    (Series(rate("strata_request_failures_total", "component"), "{{component}}"),),
                ),
            ),
        ),
    ),
)

TOPICS = Board(
    "stratamq-topics",
    "Topics and consumer groups",
    "Rates of topics; lag, age and retries of consumer groups.",
    (
        Section(
            "Topics",
            (
                Graph(
                    "Messages produced",
                    "By topic.",
                    "ops",
                    (Series(rate("rocketmq_messages_in_total", "topic", _TOPIC), "{{topic}}"),),
                ),
                Graph(
                    "Bytes produced",
                    "By topic.",
                    "Bps",
                    (Series(rate("rocketmq_throughput_in_total", "topic", _TOPIC), "{{topic}}"),),
                ),
                Graph(
                    "Messages by type",
                    "Normal, FIFO, delayed, transactional.",
                    "ops",
                    (
                        Series(
                            rate("rocketmq_messages_in_total", "message_type", _TOPIC),
                            "{{message_type}}",
                        ),
                    ),
                ),
            ),
        ),
        Section(
            "Consumer groups",
            (
                Graph(
                    "Lag",
                    "Messages not acked.",
                    "short",
                    (
                        Series(
                            total(
                                "rocketmq_consumer_lag_messages", "consumer_group, topic", _GROUP
                            ),
                            "{{consumer_group}} / {{topic}}",
                        ),
                    ),
                ),
                Graph(
                    "Age of the oldest message",
                    "Not acked yet; needs metric windows (observability.windows).",
                    "ms",
                    (
                        Series(
                            highest(
                                "rocketmq_consumer_lag_latency", "consumer_group, topic", _GROUP
                            ),
                            "{{consumer_group}} / {{topic}}",
                        ),
                    ),
                ),
                Graph(
                    "In flight",
                    "Messages given and not acked.",
                    "short",
                    (
                        Series(
                            total(
                                "rocketmq_consumer_inflight_messages",
                                "consumer_group, topic",
                                _GROUP,
                            ),
                            "{{consumer_group}} / {{topic}}",
                        ),
                    ),
                ),
                Graph(
                    "Delivered",
                    "Messages delivered.",
                    "ops",
                    (
                        Series(
                            rate("rocketmq_messages_out_total", "consumer_group", _GROUP),
                            "{{consumer_group}}",
                        ),
                    ),
                ),
                Graph(
                    "Retries",
                    "Messages delivered again.",
                    "ops",
                    (
                        Series(
                            rate(
                                "rocketmq_messages_out_total",
                                "consumer_group",
                                f'{_GROUP}, is_retry="true"',
                            ),
                            "{{consumer_group}}",
                        ),
                    ),
                ),
                Graph(
                    "Dead letters",
                    "Messages whose attempts were used up.",
                    "ops",
                    (Series(rate("rocketmq_send_to_dlq_messages_total"), "dead letters"),),
                ),
            ),
        ),
    ),
    ("namespace", "topic", "consumer_group"),
)

CLIENTS = Board(
    "stratamq-clients",
    "Client view",
    "Service that clients get from the brokers: times, refusals, connections.",
    (
        Section(
            "Calls",
            (
                Graph(
                    "Calls",
                    "Answered calls by RPC.",
                    "ops",
                    (
                        Series(
                            rate("rocketmq_rpc_latency_count", "request_code"), "{{request_code}}"
                        ),
                    ),
                ),
                Graph(
                    "Time of calls (p99)",
                    "By RPC; receives wait for messages.",
                    "ms",
                    (
                        Series(
                            quantile(0.99, "rocketmq_rpc_latency", "request_code"),
                            "{{request_code}}",
                        ),
                    ),
                ),
                Graph(
                    "Refusals",
                    "Answers other than OK.",
                    "ops",
                    (
                        Series(
                            rate("rocketmq_rpc_latency_count", "request_code, response_code", _BAD),
                            "{{request_code}} {{response_code}}",
                        ),
                    ),
                ),
                Graph(
                    "Refused by the edge",
                    "Calls that a limit of the client port refused.",
                    "ops",
                    (Series(rate("strata_edge_refused_calls_total", "limit"), "{{limit}}"),),
                ),
                Graph(
                    "Answers not taken",
                    "Answers whose client had gone.",
                    "ops",
                    (
                        Series(
                            rate("strata_edge_answers_not_taken_total", "node_id"), "{{node_id}}"
                        ),
                    ),
                ),
                Graph(
                    "Waiting receives",
                    "Receives that wait in brokers for messages.",
                    "short",
                    (Series(total("strata_broker_waiting_receives", "node_id"), "{{node_id}}"),),
                ),
            ),
        ),
        Section(
            "Connections",
            (
                Graph(
                    "Connections",
                    "Open connections by broker.",
                    "short",
                    (Series(total("strata_edge_connections", "node_id"), "{{node_id}}"),),
                ),
                Graph(
                    "Refused connections",
                    "Over the limit, or TLS that failed.",
                    "ops",
                    (
                        Series(rate("strata_edge_refused_connections_total"), "limit"),
                        Series(rate("strata_edge_tls_failures_total"), "TLS"),
                        Series(rate("strata_edge_handshake_timeouts_total"), "slow handshake"),
                    ),
                ),
                Graph(
                    "Unread answers",
                    "Bytes that clients have not read.",
                    "bytes",
                    (Series(total("strata_edge_unread_bytes", "node_id"), "{{node_id}}"),),
                ),
            ),
        ),
    ),
)

OBJECTIVES = Board(
    "stratamq-objectives",
    "Service level objectives",
    "The promises: nothing acked is lost, messages come in time, faults cost seconds.",
    (
        Section(
            "Objectives",
            (
                Figure(
                    "Damaged reads (24 h)",
                    "Objective: 0. Damaged bytes are never served.",
                    "short",
                    f"sum(increase(strata_storage_corrupt_total{{{CLUSTER}}}[24h]))",
                    1,
                    1,
                ),
                Figure(
                    "Sends within 250 ms (24 h)",
                    "Objective: 99 %.",
                    "percentunit",
                    f"sum(increase(rocketmq_rpc_latency_bucket{{{CLUSTER}, {_SOON}}}[24h])) / "
                    f"sum(increase(rocketmq_rpc_latency_count{{{CLUSTER}, {_SENDS}}}[24h]))",
                    0.99,
                    0.95,
                ),
                Figure(
                    "Delayed messages: lateness (p99, 24 h)",
                    "Objective: 1 s.",
                    "ms",
                    "histogram_quantile(0.99, sum by (le) "
                    f"(increase(strata_storage_late_ms_bucket{{{CLUSTER}}}[24h])))",
                    1_000,
                    10_000,
                ),
                Figure(
                    "Time without a leader (24 h)",
                    "Seconds in which some raft group had no leader. Objective: 60 s.",
                    "s",
                    "sum_over_time((max(strata_cluster_raft_groups"
                    f'{{{CLUSTER}, state="LEADERLESS"}}) > bool 0)[24h:15s]) * 15',
                    30,
                    60,
                ),
                Graph(
                    "Sends within 250 ms",
                    "Share of answered sends.",
                    "percentunit",
                    (
                        Series(
                            f"{rate('rocketmq_rpc_latency_bucket', '', _SOON)}"
                            f" / {rate('rocketmq_rpc_latency_count', '', _SENDS)}",
                            "share",
                        ),
                    ),
                ),
                Graph(
                    "Lateness of delayed messages",
                    "From the time asked for to the place in a queue.",
                    "ms",
                    quantiles("strata_storage_late_ms"),
                ),
                Graph(
                    "Oldest message not acked",
                    "The worst consumer group.",
                    "ms",
                    (Series(highest("rocketmq_consumer_lag_latency"), "age"),),
                ),
            ),
        ),
    ),
)

BOARDS = (OVERVIEW, TOPICS, STORAGE, TIER, NAMESERVER, PLACEMENT, CLIENTS, OBJECTIVES)
