"""Logs of the members of one process."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest

from strata_runtime import logs
from strata_runtime.member_logs import MemberStream, member_logs


@pytest.fixture
def process_log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    logs.configure(level="info", log_format="json", stream=MemberStream(stream))  # type: ignore[arg-type]
    yield stream
    logs.configure()


async def test_each_member_has_its_own_lines(process_log: io.StringIO) -> None:
    """Lines of tasks that began in a member are its; the others are the process's."""
    lines: list[bytes] = []

    async def work(text: str) -> None:
        await asyncio.sleep(0)
        logs.get_logger("x").warning(text)
        logging.getLogger("library").warning("of a library")

    async with asyncio.TaskGroup() as tasks:
        with member_logs("a", lines.append):
            tasks.create_task(work("of a"))
        with member_logs("b", None):
            tasks.create_task(work("of b"))
        tasks.create_task(work("of nobody"))

    own = b"".join(lines).splitlines()
    assert json.loads(own[0])["event"] == "of a"
    assert json.loads(own[0])["member"] == "a"
    assert own[1].endswith(b"of a library")
    shared = process_log.getvalue()
    assert 'of a"' not in shared
    assert '"member": "b"' in shared
    assert "of nobody" in shared


async def test_a_flood_of_one_member_takes_no_line_of_another(process_log: io.StringIO) -> None:
    """The limit on repeated lines counts for each member by itself."""
    with member_logs("loud", None):
        for _ in range(1_000):
            logs.get_logger("x").warning("again")
    with member_logs("calm", None):
        logs.get_logger("x").warning("again")

    members = [json.loads(line)["member"] for line in process_log.getvalue().splitlines()]
    assert members.count("calm") == 1
    assert members.count("loud") < 1_000
