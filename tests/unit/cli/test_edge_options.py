"""TLS settings of the section `[edge]` must make sense, and are refused in one line if not."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata_cli.processes.edge_options import edge_options
from strata_cli.processes.standalone_config import EdgeSection, StandaloneConfig
from strata_edge.guard_limits import GuardLimits
from strata_edge.options import EdgeOptions
from strata_runtime.errors import ConfigError
from strata_runtime.tls import self_signed


def _options(tmp_path: Path, **edge: object) -> EdgeOptions:
    config = StandaloneConfig(edge=EdgeSection.model_validate(edge))
    return edge_options(config, tmp_path / "made", "localhost")


@pytest.mark.parametrize(
    ("edge", "reason"),
    [
        ({"certificate_file": "a.crt"}, "edge.certificate_file is set but edge.key_file is not"),
        ({"key_file": "a.key"}, "edge.key_file is set but edge.certificate_file is not"),
        ({"certificate_file": "a.crt", "key_file": "a.key"}, "a.crt does not exist"),
        ({"tls": False, "tls_only": True}, "edge.tls_only is set but edge.tls is not"),
    ],
)
def test_what_makes_no_sense(tmp_path: Path, edge: dict[str, object], reason: str) -> None:
    """The line names the key or the file."""
    with pytest.raises(ConfigError, match=reason):
        _options(tmp_path, **edge)


def test_the_limits_of_the_section_reach_the_edge(tmp_path: Path) -> None:
    """Own files are taken, and every limit of the section is an option of the edge."""
    own = self_signed(tmp_path / "own")
    edge = {
        "certificate_file": str(own.certificate_file),
        "key_file": str(own.key_file),
        "tls_only": True,
        "max_connections_per_address": 11,
        "max_streams_per_connection": 12,
        "max_calls_per_address": 13,
        "max_unread_bytes_per_address": 14,
        "max_unread_bytes_per_connection": 15,
        "slow_upload_ms": 16,
        "max_upload_ms": 17,
        "max_slow_uploads": 18,
        "max_slow_uploads_per_address": 19,
        "max_hot_calls": 20,
        "max_rare_calls": 21,
        "max_metadata_bytes": 2_200,
    }
    options = _options(tmp_path, **edge)
    assert options.certificate == own
    limits = {name: value for name, value in edge.items() if name.startswith(("max", "slow"))}
    assert {name: getattr(options, name) for name in limits} == limits
    assert options.tls_only is True
    sizes = options.method_limits
    assert sizes["/apache.rocketmq.v2.MessagingService/SendMessage"].max_request_bytes == 16 << 20


NUMBERS = [name for name, field in EdgeSection.model_fields.items() if field.annotation is int]


@pytest.mark.parametrize("key", NUMBERS)
def test_every_number_of_the_section_is_a_limit_of_the_edge(tmp_path: Path, key: str) -> None:
    """A key that changes nothing would be a promise that nobody keeps."""
    default = EdgeSection.model_fields[key].default
    changed = _options(tmp_path, **{"tls": False, key: default + 1})
    assert changed != _options(tmp_path, tls=False)


def test_the_edge_and_its_section_have_the_same_defaults(tmp_path: Path) -> None:
    """Tests of the edge hold for a broker that is started without configuration."""
    assert _options(tmp_path, tls=False).guard == GuardLimits()
