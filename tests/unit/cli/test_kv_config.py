"""The key `plugins`, which is in no section: from the file, from the environment, and back."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from strata_cli.processes.cluster_config import ClusterConfig
from strata_cli.processes.plugins import broker_plugins, storage_plugins
from strata_runtime.config import load, to_toml
from strata_runtime.errors import ConfigError
from strata_storage.base.config import StorageConfig


def test_no_plugin_is_loaded_unless_it_is_named() -> None:
    """The default is none at all."""
    assert load(ClusterConfig, None, {}).plugins == ()
    assert broker_plugins(()) == []
    assert storage_plugins((), StorageConfig()) == []


@pytest.mark.parametrize("text", ["kv", " kv ", '["kv"]', "kv,"])
def test_the_environment_overrides_the_file(tmp_path: Path, text: str) -> None:
    """A comma-separated text and a TOML list mean the same."""
    file = tmp_path / "strata.toml"
    file.write_text('plugins = ["other"]\n[node]\nhost = "127.0.0.1"\n')
    assert load(ClusterConfig, file, {}).plugins == ("other",)
    assert load(ClusterConfig, file, {"STRATA_PLUGINS": text}).plugins == ("kv",)


def test_what_is_shown_can_be_read_again(tmp_path: Path) -> None:
    """A key in no section stands above the first section, as TOML wants it."""
    file = tmp_path / "strata.toml"
    shown = to_toml(load(ClusterConfig, None, {"STRATA_PLUGINS": "kv"}))
    file.write_text(shown)
    assert tomllib.loads(shown)["plugins"] == ["kv"]
    assert load(ClusterConfig, file, {}).plugins == ("kv",)


def test_a_plugin_that_there_is_not_is_named() -> None:
    """The error says which one, and which there are."""
    for wrong in (lambda: broker_plugins(["x"]), lambda: storage_plugins(["x"], config)):
        with pytest.raises(ConfigError, match="there is no plugin 'x'; there are: kv"):
            wrong()


config = StorageConfig()
