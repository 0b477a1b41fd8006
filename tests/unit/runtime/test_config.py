"""Configuration: defaults, file, environment, errors of one line, rendering."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, SecretStr

from strata_runtime import config
from strata_runtime.errors import ConfigError


class Broker(config.Section):
    renamed_keys: ClassVar[Mapping[str, str]] = {"port_number": "port"}

    port: int = Field(default=8081, ge=0, le=65_535, description="Port.")
    host: str = Field(default="127.0.0.1", description="Host.")
    seeds: list[str] = Field(default=[], description="Seeds.")
    password: SecretStr = Field(default=SecretStr("hush"), description="Password.")
    folder: Path | None = Field(default=None, description="Folder.")


class Log(config.Section):
    level: str = "info"


class Root(config.Config):
    broker: Broker = Broker()
    log: Log = Log()


def _write(folder: Path, text: str) -> Path:
    file = folder / "strata.toml"
    file.write_text(text)
    return file


def test_defaults_file_environment(tmp_path: Path) -> None:
    """The environment wins over the file, the file over the default."""
    file = _write(tmp_path, '[broker]\nport = 1\nhost = "a"\n')
    environment = {"STRATA_BROKER_PORT": "2", "STRATA_BROKER_SEEDS": '["x", "y"]', "HOME": "/"}
    loaded = config.load(Root, file, environment)
    assert (loaded.broker.port, loaded.broker.host, loaded.log.level) == (2, "a", "info")
    assert loaded.broker.seeds == ["x", "y"]


@pytest.mark.parametrize(
    ("text", "environment", "expected"),
    [
        ("[broker]\nprot = 1\n", {}, "{file}: broker.prot: unknown key"),
        (
            "[broker]\nport_number = 1\n",
            {},
            "{file}: broker.port_number: unknown key, its name is port now",
        ),
        (
            "",
            {"STRATA_BROKER_PORT_NUMBER": "1"},
            "STRATA_BROKER_PORT_NUMBER: no such key, STRATA_BROKER_PORT now (environment)",
        ),
        ("[brokr]\nport = 1\n", {}, "{file}: brokr: unknown key"),
        ("[broker]\nport = 70000\n", {}, "{file}: broker.port: Input should be less"),
        ("[broker\n", {}, "{file}: Expected ']'"),
        ("broker = 1\n", {"STRATA_BROKER_PORT": "1"}, "{file}: broker must be a section"),
        ("", {"STRATA_BROKER_PORT": "x"}, "STRATA_BROKER_PORT: broker.port: Input should be"),
        ("", {"STRATA_BROKER_PROT": "1"}, "STRATA_BROKER_PROT: no such key (environment)"),
        ("", {"STRATA_BROKER_SEEDS": "[1"}, "STRATA_BROKER_SEEDS: "),
        ("[broker]\nport = -1\nx = 1\n", {}, "(and 1 more)"),
    ],
)
def test_errors_are_one_clear_line(
    tmp_path: Path, text: str, environment: dict[str, str], expected: str
) -> None:
    """An unknown key or a bad value names key and source in one line."""
    file = _write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        config.load(Root, file, environment)
    message = str(caught.value)
    assert expected.format(file=file) in message
    assert "\n" not in message


def test_what_kubernetes_tells_of_services_is_no_configuration() -> None:
    """A Service called strata-broker puts such variables into every container beside it."""
    links = {
        "STRATA_BROKER_PORT": "tcp://10.0.0.1:8081",
        "STRATA_BROKER_PORT_8081_TCP": "tcp://10.0.0.1:8081",
        "STRATA_BROKER_PORT_8081_TCP_ADDR": "10.0.0.1",
        "STRATA_BROKER_SERVICE_HOST": "10.0.0.1",
        "STRATA_BROKER_SERVICE_PORT_GRPC": "8081",
        "STRATA_LOG_PORT": "udp://10.0.0.1:514",
    }
    assert config.load(Root, None, links) == Root()
    assert config.load(Root, None, {"STRATA_BROKER_PORT": "7"}).broker.port == 7


def test_missing_file(tmp_path: Path) -> None:
    """A file that is not there is named."""
    with pytest.raises(ConfigError, match=r"nothing\.toml: No such file"):
        config.load(Root, tmp_path / "nothing.toml", {})


def test_secrets_are_masked() -> None:
    """No rendering shows a secret."""
    for rendered in (config.to_toml(Root()), config.to_json(Root())):
        assert "hush" not in rendered
        assert "****" in rendered


def test_keys_for_documentation() -> None:
    """Every key is listed with the variable that overrides it."""
    assert ("broker", "port", "STRATA_BROKER_PORT") in list(config.keys_of(Root))
    assert len(list(config.keys_of(Root))) == 6


@given(
    host=st.text(st.characters(codec="utf-8")),
    seeds=st.lists(st.text(st.characters(codec="utf-8"))),
)
def test_toml_and_json_render_back(host: str, seeds: list[str]) -> None:
    """The rendered TOML or JSON reads as the values that hold, for any text."""
    root = Root(broker=Broker(host=host, seeds=seeds))
    for parsed in (tomllib.loads(config.to_toml(root)), json.loads(config.to_json(root))):
        assert (parsed["broker"]["host"], parsed["broker"]["seeds"]) == (host, seeds)
        assert parsed["broker"].get("folder") is None
