"""Windows of another time do not count, and what is said of them stays short."""

from __future__ import annotations

import pytest

from strata_placement.timely import Flaw, LeftOut, TimelyWindows
from strata_runtime.windows import WINDOW_MS, WindowBatch, WindowKind, batches_of

BEGIN_MS, NOW_MS = 1_000 * WINDOW_MS, 2_000 * WINDOW_MS


def batch(start_ms: int, length_ms: int = WINDOW_MS) -> WindowBatch:
    [made] = batches_of(WindowKind.NODE, "node-1", start_ms, length_ms, [{"node_kind": "storage"}])
    return made


@pytest.mark.parametrize(
    ("start_ms", "length_ms", "flaw"),
    [
        (BEGIN_MS - WINDOW_MS, WINDOW_MS, None),
        (BEGIN_MS - WINDOW_MS - 1, WINDOW_MS, Flaw.EARLY),
        (BEGIN_MS - WINDOW_MS - 1, 6 * WINDOW_MS, None),
        (NOW_MS - WINDOW_MS, WINDOW_MS, None),
        (NOW_MS, WINDOW_MS, None),
        (NOW_MS + 1, WINDOW_MS, Flaw.LATE),
        (NOW_MS, 0, Flaw.IMPOSSIBLE),
        (NOW_MS, 3_600_001, Flaw.IMPOSSIBLE),
        (2**63, WINDOW_MS, Flaw.IMPOSSIBLE),
    ],
)
def test_a_batch_may_reach_over_an_end_by_its_own_length(
    start_ms: int, length_ms: int, flaw: Flaw | None
) -> None:
    """[begin - window, now + window]; what lies outside is counted with its node and reason."""
    left_out = LeftOut()
    taken = TimelyWindows(BEGIN_MS, NOW_MS, left_out).take(batch(start_ms, length_ms))
    assert taken is (flaw is None)
    told = f"batches of metric windows that do not count: 1 of node-1 {flaw}"
    assert str(left_out) == ("" if flaw is None else told)


def test_a_cluster_of_wrong_clocks_is_told_in_one_short_line() -> None:
    """Five nodes by name, the others together."""
    left_out = LeftOut()
    for number in range(1_000):
        left_out.add(Flaw.LATE, f"node-{number % 100}")
    assert left_out.total == 1_000
    line = str(left_out)
    assert line.count(Flaw.LATE) == 5
    assert "10 of node-4 begin after now" in line
    assert line.endswith("; 950 of other nodes")
