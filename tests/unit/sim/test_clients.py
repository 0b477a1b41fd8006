"""Simulated clients name their messages as official ones do."""

from __future__ import annotations

import random

from strata_mq.layout import made_ms, pack_message_id
from strata_sim.client import SimClient
from strata_sim.machine import EPOCH_MS
from strata_sim.network import SimNetwork
from strata_sim.virtual_loop import VirtualLoop


def test_an_id_says_when_its_message_was_made() -> None:
    """Brokers look for repeats by it; a clock is off by half a second, an id has whole ones."""
    loop = VirtualLoop(random.Random(1))
    try:
        network = SimNetwork(loop, random.Random(1))
        for number in range(20):
            name = f"c{number}"
            client = SimClient(network, name, ["b:1"], chance=random.Random(name))
            ids = [client.new_message_id() for _ in range(9)]
            assert len(set(ids)) == len(ids)
            for each in ids:
                made = made_ms(pack_message_id(each))
                assert made is not None
                assert abs(made - EPOCH_MS - loop.time() * 1_000) <= 1_500
    finally:
        loop.close()
