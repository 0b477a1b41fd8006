"""Mistakes that somebody could make in our code, and the tests that must fail for each.

A mistake is one change of one place of one file, so that the place is found again, or missed, when
the code moves on. `finds` is what the failing test must say: the violation that the mistake causes,
not just any trouble. Those that only a whole cluster under faults can find are in
`tests/sim/mutations.py`.
"""

from __future__ import annotations

from pathlib import Path

from tests.mutations.mutation import Mutation
from tests.mutations.of_edges import OF_EDGES
from tests.mutations.of_logs import OF_LOGS
from tests.mutations.of_raft import OF_RAFT
from tests.mutations.of_storage import OF_STORAGE
from tests.mutations.of_syncs import OF_SYNCS

ROOT = Path(__file__).parents[2]

MUTATIONS: tuple[Mutation, ...] = (*OF_SYNCS, *OF_RAFT, *OF_LOGS, *OF_STORAGE, *OF_EDGES)

BY_NAME = {mutation.name: mutation for mutation in MUTATIONS}
