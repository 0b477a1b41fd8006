"""Clusters to plan for, drawn by seed."""

from __future__ import annotations

from random import Random

from strata_placement.cluster import ClusterModel, GroupModel, NodeModel

CAPACITY = 100e6
GIB = 1024**3


def node(number: int, racks: int = 3, **changes: object) -> NodeModel:
    values = {
        "node_id": f"node-{number}",
        "capacity_bytes_per_s": CAPACITY,
        "rack": f"rack-{number % racks}",
        "disk_free_bytes": 60 * GIB,
        "disk_total_bytes": 100 * GIB,
    }
    return NodeModel(**(values | changes))  # type: ignore[arg-type]


def random_cluster(
    seed: int,
    *,
    nodes: int = 6,
    groups: int = 12,
    queues: int = 60,
    points: int = 3,
    utilisation: float = 0.5,
) -> ClusterModel:
    """Return a cluster with queues of very different loads, placed at random."""
    random = Random(seed)
    members = tuple(node(number) for number in range(nodes))
    placed = []
    for number in range(groups):
        voters = tuple(members[(number + step) % nodes].node_id for step in range(3))
        placed.append(GroupModel(number + 1, voters[0], voters, stored_bytes=GIB))
    weights = [random.paretovariate(1.2) for _ in range(queues)]
    scale = utilisation * nodes * CAPACITY / 1.7 / sum(weights)
    loads = [
        [weight * scale * random.uniform(0.7, 1.3) for weight in weights] for _ in range(points)
    ]
    return ClusterModel(
        members,
        tuple(placed),
        [f"/topic/{number}" for number in range(queues)],
        [random.randint(1, groups) for _ in range(queues)],
        loads,
    )
