"""What all tests share: lanes of a parallel run, and property tests without time limits.

`make test` runs three lanes (pytest-xdist). Tests that share a server stay in one lane, or each
lane would start its own; the long ones that mostly wait come first, and the short ones that mostly
compute fill what is left.
"""

import pytest
from hypothesis import HealthCheck, settings

# A busy machine makes a good test slow; Hypothesis would call that a failure.
settings.register_profile("strata", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("strata")

# Two clusters at once would not fit on two cores.
CLUSTERS = ("tests/e2e/test_cluster", "tests/compat/test_cluster")
# Folders whose tests share servers: by the whole folder, or by module.
ONE_LANE = (*CLUSTERS, "tests/compat/")
LANE_PER_MODULE = ("tests/contract/", "tests/e2e/", "tests/integration/")
FIRST = ("tests/e2e/test_cluster", "tests/compat/", "tests/e2e/", "tests/sim/")


@pytest.hookimpl(tryfirst=True)  # xdist reads the marks in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Name the lane of each test, and put the long ones first."""
    for item in items:
        path = item.path.relative_to(item.config.rootpath).as_posix()
        lane = path if path.startswith(LANE_PER_MODULE) else ""
        if path.startswith(ONE_LANE):
            lane = "clusters" if path.startswith(CLUSTERS) else "clients"
        if lane:
            item.add_marker(pytest.mark.xdist_group(lane))
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    path = item.path.relative_to(item.config.rootpath).as_posix()
    turns = [turn for turn, start in enumerate(FIRST) if path.startswith(start)]
    return min(turns, default=len(FIRST))
