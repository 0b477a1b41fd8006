"""Which broker a new connection gets, and how the forwarder learns of brokers."""

from __future__ import annotations

import os
from pathlib import Path

from strata_cli.processes.forwarder import Broker, BrokerList, candidates
from strata_cli.processes.forwarder_link import Link, Side


def ignore(side: Side) -> None:
    """A side that is opened or closed."""


def broker(address: str, *, serving: bool | None, links: int) -> Broker:
    made = Broker(address, serving=serving)
    for _ in range(links):
        client, server = (Side(1, ignore, ignore) for _ in range(2))
        made.links.add(Link(client, server, made.links.discard))
    return made


def test_those_that_serve_come_first_the_least_loaded_at_the_front() -> None:
    """A broker that does not serve is a last resort, whatever its load."""
    down = broker("down", serving=False, links=0)
    unknown = broker("unknown", serving=None, links=1)
    busy = broker("busy", serving=True, links=3)
    idle = broker("idle", serving=True, links=2)
    assert candidates([down, unknown, busy, idle]) == [idle, busy, down, unknown]


def test_brokers_from_a_file_are_read_when_it_changes(tmp_path: Path) -> None:
    """Fixed ones stay; a file that is away for a moment changes nothing."""
    file = tmp_path / "brokers"
    brokers = BrokerList(["a:1"], file)
    assert brokers.addresses() == ("a:1",)
    file.write_text("b:2\nc:3\n")
    assert brokers.addresses() == ("a:1", "b:2", "c:3")
    file.write_text("c:3\n")
    os.utime(file, ns=(1, 1))
    assert brokers.addresses() == ("a:1", "c:3")
    file.unlink()
    assert brokers.addresses() == ("a:1", "c:3")
