"""The processes of one machine: `strata broker --workers N`, `strata storage --shards N`.

    supervisor -- starts, restarts, ends --> child 0 .. child N-1, each a member of the cluster

The supervisor serves no call: it has the data folder, the metrics port, the `ready` line and the
signals of all. A worker is a broker and a shard is a storage node like any other.
"""
