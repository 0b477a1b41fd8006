"""How many clients a broker with too many of them asks to connect again."""

from __future__ import annotations

import pytest

from strata_broker.clients.connection_balance import surplus_connections


@pytest.mark.parametrize(
    ("own", "others", "surplus"),
    [
        pytest.param(100, [0], 50, id="a new broker beside an old one"),
        pytest.param(90, [90, 0], 30, id="a third broker comes"),
        pytest.param(60, [40], 0, id="just within the tolerance"),
        pytest.param(61, [40], 10, id="just beyond it: down to the even share"),
        pytest.param(0, [100], 0, id="the new broker itself"),
        pytest.param(2, [1], 0, id="no whole connection too many"),
        pytest.param(3, [0], 1, id="few connections"),
        pytest.param(0, [0, 0], 0, id="nobody is connected"),
        pytest.param(20_000, [20_000, 20_000, 0], 5_000, id="many"),
    ],
)
def test_the_surplus_is_what_exceeds_the_even_share(
    own: int, others: list[int], surplus: int
) -> None:
    """Within the tolerance there is none."""
    assert surplus_connections(own, others, 0.2) == surplus


def test_it_comes_to_rest() -> None:
    """When each client that goes gets any of the brokers in turn, the brokers end up even."""
    counts = [600, 0, 0]
    turn = 0
    for _ in range(100):
        moves = [
            surplus_connections(own, counts[:at] + counts[at + 1 :], 0.2)
            for at, own in enumerate(counts)
        ]
        if not any(moves):
            break
        for at, moving in enumerate(moves):
            for _ in range(min(moving, 10)):
                counts[at] -= 1
                counts[turn % 3] += 1
                turn += 1
    assert sum(counts) == 600
    assert max(counts) <= 240
    assert min(counts) > 150
