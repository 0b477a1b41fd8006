"""The time of a plan: 100,000 queues on 100 nodes, skewed by seed; `--queues`, `--nodes`.

`--shards N` puts N nodes on each machine, as `strata storage --shards N` does, and leaves racks
out. It prints one JSON line: seconds for the model and the plan, the effect of the plan, and how
many raft groups have two replicas on one machine after it (0).
"""

from __future__ import annotations

import argparse
import json
import time
from random import Random

from strata_placement.cluster import ClusterModel, GroupModel, NodeModel, applied
from strata_placement.plan import Plan
from strata_placement.planner import PlannerOptions, Source, make_plan

POINTS = 5
CAPACITY = 1e9


def model(queues: int, nodes: int, seed: int, shards: int = 1) -> ClusterModel:
    """Return a cluster with two raft groups per node and loads by Zipf's law.

    Args:
        queues: of all topics.
        nodes: storage nodes.
        seed: of the loads and of the places of queues.
        shards: nodes of a machine; 1: every node is one, and there are ten racks.
    """
    random = Random(seed)
    names = [f"node-{number}" for number in range(nodes)]
    groups = tuple(
        GroupModel(
            number + 1,
            names[number % nodes],
            tuple(names[(number + step * shards) % nodes] for step in (0, 1 + number // nodes, 7)),
        )
        for number in range(2 * nodes)
    )
    weights = [1.0 / (rank + 10) ** 0.8 for rank in range(queues)]
    random.shuffle(weights)
    scale = 0.5 * nodes * CAPACITY / 1.7 / sum(weights)
    # A tenth of the raft groups has twice the queues of the others.
    popular = [group.raft_group for group in groups if group.raft_group % 10 == 0]
    everywhere = [group.raft_group for group in groups] + popular
    return ClusterModel(
        tuple(
            NodeModel(name, CAPACITY, machine=f"machine-{at // shards}")
            if shards > 1
            else NodeModel(name, CAPACITY, rack=f"rack-{at % 10}")
            for at, name in enumerate(names)
        ),
        groups,
        [f"/topic/{number}" for number in range(queues)],
        [random.choice(everywhere) for _ in range(queues)],
        [[weight * scale * random.uniform(0.8, 1.2) for weight in weights] for _ in range(POINTS)],
    )


def main() -> None:
    """Run once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shards", type=int, default=1)
    arguments = parser.parse_args()
    cluster = model(arguments.queues, arguments.nodes, arguments.seed, arguments.shards)
    options = PlannerOptions(max_steps=arguments.steps)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    plan = make_plan(cluster, options, Source("forecast", "bench", 0, 0))
    result = {
        "queues": arguments.queues,
        "nodes": arguments.nodes,
        "shards": arguments.shards,
        "plan_s": round(time.perf_counter() - began_s, 2),
        "plan_cpu_s": round(time.process_time() - began_cpu_s, 2),
        "steps": len(plan.steps),
        "peak_before": round(plan.before.peak, 3),
        "peak_after": round(plan.after.peak, 3),
        "max_over_mean_before": round(plan.before.max_over_mean, 3),
        "max_over_mean_after": round(plan.after.max_over_mean, 3),
        "raft_groups_that_share_a_machine": _sharing(cluster, plan),
    }
    print(json.dumps(result))


def _sharing(cluster: ClusterModel, plan: Plan) -> int:
    place_of = {node.node_id: node.place for node in cluster.nodes}
    after = applied(cluster, [step.action for step in plan.steps])
    replicas = ([*group.voters, *group.readers] for group in after.groups)
    return sum(len({place_of[node] for node in nodes}) < len(nodes) for nodes in replicas)


if __name__ == "__main__":
    main()
