"""Command lines of the console: they mean what they say, wherever the console was started."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strata.admin.v1 import admin_pb2
from strata_cli.client import AdminClient
from strata_cli.embedded import run_line
from strata_cli.options import Common, milliseconds


class Connection:
    """Keeps the options that a command connects with, and what it asks for.

    Attributes:
        endpoint, timeout_s: of the console's configuration.
        asked: requests.
        under_options: of the last command.
    """

    endpoint = "127.0.0.1:1"
    timeout_s = 2.5

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.under_options = Common()
        self.admin = SimpleNamespace(DeleteTopic=None)

    def under(self, common: Common) -> Connection:
        """Note the options."""
        self.under_options = common
        return self

    def call(self, method: Any, request: Any) -> Any:
        """Answer."""
        self.asked.append(request)
        return admin_pb2.DeleteTopicResponse()


def test_a_profile_of_the_process_is_not_that_of_its_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic of the default namespace is deleted, not one of the namespace of a profile."""
    profiles = tmp_path / "profiles.toml"
    profiles.write_text('[own]\nnamespace = "shop"\nendpoint = "127.0.0.1:2"\n')
    profiles.chmod(0o600)
    monkeypatch.setenv("STRATA_CONFIG", str(profiles))
    monkeypatch.setenv("STRATA_PROFILE", "own")
    connection = Connection()
    run_line(cast(AdminClient, connection), ("topic", "delete", "orders", "--yes"))
    [request] = connection.asked
    assert (request.namespace, request.name) == ("", "orders")


def test_the_time_limit_is_that_of_the_connection() -> None:
    """`console.call_timeout_ms` holds for command lines, too."""
    connection = Connection()
    run_line(cast(AdminClient, connection), ("topic", "delete", "orders", "--yes"))
    assert milliseconds(connection.under_options.timeout) == 2_500
