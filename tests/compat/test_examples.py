"""The programs of docs/examples, as their readers run them, against a standalone node."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.compat.conftest import require
from tests.compat.drivers import BUILD, LANGUAGES
from tests.e2e.cluster import Cluster
from tests.e2e.standalone import Standalone

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
TIMEOUT_S = 60.0
SPOKEN = {"python": "Python", "node": "Node", "java": "Java", "go": "Go"}


def command(language: str, home: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command of an example, and what it needs from its environment."""
    client, folder = BUILD / language, EXAMPLES / language
    match language:
        case "python":
            return [str(client / "venv/bin/python"), str(folder / "orders.py")], {}
        case "node":
            modules = {"NODE_PATH": str(client / "node_modules")}
            return ["node", str(folder / "orders.js")], modules
        case "java":
            options = [f"-Duser.home={home}", "-Xmx256m", "-XX:TieredStopAtLevel=1"]
            return ["java", *options, "-cp", f"{client}/lib/*", str(folder / "Orders.java")], {}
        case _:
            return [str(client / "example")], {}


@pytest.mark.parametrize("language", LANGUAGES)
def test_an_example_sends_and_receives_one_message(
    language: str, node: Standalone | Cluster, tmp_path: Path
) -> None:
    """The message that an example sends is the message that it receives, and it is acked."""
    require(language)
    topic = node.create_topic(f"examples-{language}")
    group = f"examples-{language}-readers"
    program, environment = command(language, tmp_path)
    done = subprocess.run(
        [*program, node.endpoint, topic, group],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "HOME": str(tmp_path), **environment},
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith(("sent", "received"))]
    message_id = lines[0].removeprefix("sent ")
    assert lines == [f"sent {message_id}", f"received {message_id} Hello from {SPOKEN[language]}"]
    assert node.strata("group", "show", group)["lag"] == 0


def test_every_example_is_run_or_named() -> None:
    """A folder of examples that no test runs says so on the page about clients."""
    # tests/e2e/test_container_machines.py runs those of containers.
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir()} - {"container"}
    assert folders == {*LANGUAGES, "csharp"}
    page = " ".join((EXAMPLES.parent / "clients.md").read_text().split())
    assert "The C# example is not run by our tests" in page
