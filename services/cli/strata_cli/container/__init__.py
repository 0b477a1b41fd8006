"""`strata container`: brokers and storage nodes in one process (RIP-31).

    container file --> supervised members: build, start, watch, start again, stop
                       each with its data folder, ports, limits, metrics and log

A member is a broker or storage node like any other; the cluster sees no difference. The members
share the event loop, connections to nameservers and the block cache (`processes.shared_parts`).
"""
