"""Choice of the broker for a new connection, and how the forwarder learns of brokers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import structlog

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


BAD_LINES = [
    "d",
    "d:",
    "d:x",
    ":4",
    "d:0",
    "d:65536",
    "d:4444444444444444444444",
    "d:²",
    "d:-4",
    "d:0000019999999",
]


@pytest.mark.parametrize("line", [*BAD_LINES, "x" * 70 + ":4", "a..b:4"])
def test_what_is_no_address_is_left_out(tmp_path: Path, line: str) -> None:
    """A line that is half written, or a mistake, is told once; the others count."""
    file = tmp_path / "brokers"
    file.write_text(f"b:2\n{line}\n[::1]:3\n")
    brokers = BrokerList(["a:1"], file)
    with structlog.testing.capture_logs() as lines:
        for _ in range(2):
            assert brokers.addresses() == ("a:1", "b:2", "[::1]:3")
    assert len(lines) == 1
    with pytest.raises(ValueError, match=r"HOST:PORT|label"):
        BrokerList([line], None)


def test_a_file_that_cannot_be_read_changes_nothing(tmp_path: Path) -> None:
    """Bytes that are no text are no address; a folder in its place leaves the list as it is."""
    file = tmp_path / "brokers"
    file.write_bytes(b"b:2\n\xff\xfe:7\xff\n")
    brokers = BrokerList([], file)
    assert brokers.addresses() == ("b:2",)
    file.unlink()
    file.mkdir()
    with structlog.testing.capture_logs() as lines:
        for _ in range(2):
            assert brokers.addresses() == ("b:2",)
    assert [line["event"] for line in lines] == ["list of brokers stays as it is"]
