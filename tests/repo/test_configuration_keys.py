"""Keys of the configuration have one pattern, and a key that was renamed leads to its new name."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from pydantic.fields import FieldInfo

from strata_cli.processes.cluster_config import ClusterConfig
from strata_runtime.config import Section, load
from strata_runtime.errors import ConfigError

LIMIT = re.compile(r"(?:At most|Most|Longest|Largest|Highest)\b")
# Limits that are named otherwise: rates by their unit, time limits of calls, quotas by their owner.
OF_ANOTHER_PATTERN = re.compile(r".*_per_s$|.*_timeout_ms$|(?:namespace|topic)_\w+$")
# Names that are older than the pattern; the list only becomes shorter.
OLDER = {
    "console.sign_in_failures",
    "edge.relay_buffer_bytes",
    "send.repeat_slack_ms",
    "storage.filter_steps_per_turn",
    "storage.pending_window",
    "storage.relocate_bytes_per_turn",
    "storage.relocate_live_ratio",
    "telemetry.lite_subscription_quota",
    "tier.object_bytes",
    "transaction.check_patience_ms",
}


def sections() -> Iterator[tuple[str, type[Section]]]:
    for name, field in ClusterConfig.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield name, field.annotation


def keys() -> Iterator[tuple[str, str, FieldInfo]]:
    for name, section in sections():
        for key, field in section.model_fields.items():
            yield name, key, field


RENAMED = [
    (name, former, now)
    for name, section in sections()
    for former, now in section.renamed_keys.items()
]


def test_a_limit_is_named_max() -> None:
    """Its description says so with the first word; units come last, so `max_` comes first."""
    limits = {
        f"{name}.{key}"
        for name, key, field in keys()
        if LIMIT.match(field.description or "")
        and "max_" not in key
        and not OF_ANOTHER_PATTERN.match(key)
    }
    assert limits == OLDER


@pytest.mark.parametrize(("section", "former", "now"), RENAMED)
def test_a_former_key_is_refused_with_the_new_name(section: str, former: str, now: str) -> None:
    """The operator reads what to write instead; the former key itself is a key no longer."""
    known = dict(sections())[section].model_fields
    assert now in known
    assert former not in known
    variable = f"STRATA_{section.upper()}_{former.upper()}"
    message = f"{variable}: no such key, STRATA_{section.upper()}_{now.upper()} now (environment)"
    with pytest.raises(ConfigError) as refused:
        load(ClusterConfig, None, {variable: "1"})
    assert str(refused.value) == message
