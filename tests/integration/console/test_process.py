"""The console's process: started by a standalone node when it is used, live streams, its end."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from strata_testing.waiting import until_blocking
from tests.integration.cli.conftest import STRATA, Node


def console_of(node: Node) -> str:
    """The address in the ready line of a node."""
    return dict(part.split("=", 1) for part in node.ready_line.split()[1:])["console"]


def children(node: Node) -> list[int]:
    """Processes that run the node's console."""
    found = []
    for path in Path(f"/proc/{node.process.pid}/task").glob("*/children"):
        pids = path.read_text(encoding="ascii").split()
        found += [int(pid) for pid in pids if b"strata_console" in command_line(pid)]
    return found


def command_line(pid: str) -> bytes:
    """The command line of a process; empty: it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


@pytest.fixture
def browser(node: Node) -> Iterator[httpx.Client]:
    """A client of the node's console with a session."""
    with httpx.Client(base_url=f"http://{console_of(node)}", timeout=60, trust_env=False) as client:
        session = client.get("/api/session").json()
        client.headers["x-strata-csrf"] = session["csrf"]
        yield client


def act(client: httpx.Client, act_name: str, /, **values: Any) -> None:
    """Do an act that must succeed."""
    answer = client.post(f"/api/acts/{act_name}", json={"values": values})
    assert answer.status_code == 200, answer.text


def events(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    """The events of a stream."""
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def test_a_node_starts_its_console_when_it_is_used(node: Node) -> None:
    """A node that nobody looks at has one process; the first request starts the second."""
    assert children(node) == []
    page = httpx.get(f"http://{console_of(node)}/", timeout=60, trust_env=False)
    assert (page.status_code, '<div id="app">' in page.text) == (200, True)
    assert len(children(node)) == 1


def test_a_console_that_dies_is_started_again(node: Node, browser: httpx.Client) -> None:
    """The node goes on, and so does the console with the next request."""
    before = children(node)
    os.kill(before[0], signal.SIGKILL)
    until_blocking(lambda: children(node) != before)
    with httpx.Client(base_url=f"http://{console_of(node)}", timeout=60, trust_env=False) as again:
        assert again.get("/api/session").json()["signed_in"]
    assert len(children(node)) == 1


def test_a_live_page_gets_what_changes(browser: httpx.Client) -> None:
    """The stream begins with the present state and sends it again when it is another."""
    with browser.stream("GET", "/api/live/topics", params={"search": "live-"}) as stream:
        stream_events = events(stream.iter_lines())
        assert next(stream_events)[1]["data"]["total"] == 0
        with httpx.Client(
            base_url=browser.base_url, cookies=browser.cookies, headers=browser.headers
        ) as other:
            act(other, "topic-create", name="live-1")
        name, event = next(stream_events)
        assert (name, event["data"]["total"]) == ("data", 1)


def test_a_live_tail_has_every_new_message_and_no_old_one(browser: httpx.Client) -> None:
    """Each message comes once; those that were stored before the tail do not."""
    act(browser, "topic-create", name="tailed", queues="2")
    act(browser, "message-send", topic="tailed", body="before")
    with browser.stream("GET", "/api/tail", params={"topic": "tailed"}) as stream:
        lines = stream.iter_lines()
        name, shown = next(events(lines))
        assert (name, shown["command"].split()[:4]) == (
            "command",
            ["strata", "message", "tail", "tailed"],
        )
        bodies: list[str] = []
        with httpx.Client(
            base_url=browser.base_url, cookies=browser.cookies, headers=browser.headers
        ) as other:
            # The first look of a tail only finds the ends of the queues.
            number = 0
            reader = ThreadPoolExecutor(1)
            first = reader.submit(next, events(lines))
            while not first.done():
                act(other, "message-send", topic="tailed", body=f"{number:04}")
                number += 1
            act(other, "message-send", topic="tailed", body=f"{number:04}")
        found = first.result()[1]
        stream_events = events(lines)
        while True:
            bodies += [message["body"] for message in found]
            if bodies[-1] == f"{number:04}":
                break
            found = next(stream_events)[1]
        reader.shutdown()
    assert "before" not in bodies
    begin = int(bodies[0])
    # Two queues: within one look messages are ordered by their store time.
    assert sorted(bodies) == [f"{each:04}" for each in range(begin, number + 1)]


def test_a_stream_of_a_missing_topic_says_so(browser: httpx.Client) -> None:
    """A failure is an event; the browser shows it."""
    with browser.stream("GET", "/api/tail", params={"topic": "missing"}) as stream:
        told = dict(itertools.islice(events(stream.iter_lines()), 2))
        assert told["failed"]["status"] == 404


def test_the_command_serves_the_console_of_any_cluster(node: Node) -> None:
    """`strata console` prints one ready line, serves, and ends with 0 at SIGTERM."""
    process = subprocess.Popen(
        [*STRATA, "console", "--endpoint", node.endpoint, "--port", "0", "--metrics-port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        url = f"http://{ready.split('console=')[1].split()[0]}"
        assert httpx.get(f"{url}/api/session", trust_env=False).json()["endpoint"] == node.endpoint
    finally:
        process.terminate()
        assert process.wait(30) == 0
        assert process.stdout is not None
        process.stdout.close()


def test_the_console_of_a_node_can_be_switched_off(tmp_path: Path) -> None:
    """Then there is no port, and the ready line names none."""
    node = Node(tmp_path / "data", environment={"STRATA_CONSOLE_ENABLED": "false"})
    code, _, err = node.stop()
    assert "console=" not in node.ready_line
    assert (code, err) == (0, "")
