"""Acts: the command takes each line, and nothing is in it that the table does not name."""

from __future__ import annotations

from typing import Any

import pytest

from strata_cli.errors import UsageError
from strata_cli.main import app
from strata_console import sending
from strata_console.act_table import ACTS
from strata_console.acts import Act, Field

_VALUES: dict[str, Any] = {
    "number": "3",
    "flag": True,
    "texts": "a=1\nb=2",
    "duration": "15m",
    "time": "latest",
    "long": "two pizzas",
}


def value_of(field: Field) -> Any:
    """A value of the field's kind."""
    return field.choices[0] if field.kind == "choice" else _VALUES.get(field.kind, "orders")


def full(act: Act) -> dict[str, Any]:
    """Every field of an act."""
    values = {field.name: value_of(field) for field in act.fields}
    return values | ({"namespace": "shop"} if act.namespace else {})


@pytest.mark.parametrize("name", sorted(ACTS))
def test_the_command_takes_the_line_of_every_act(name: str) -> None:
    """All fields at once, and only the required ones, are arguments of the command."""
    act = ACTS[name]
    required = {field.name: value_of(field) for field in act.fields if field.required}
    for values in (full(act), required):
        for dry_run in {False, act.dry_run}:
            command, bound, _ = app.parse_args(
                act.line(values, dry_run=dry_run), exit_on_error=False, print_error=False
            )
            assert callable(command)
            if act.namespace and "namespace" in values:
                assert bound.arguments["common"].namespace == "shop"


@pytest.mark.parametrize("name", sorted(ACTS))
def test_no_value_becomes_an_option(name: str) -> None:
    """A value that looks like an option is refused, or stays the value of its own option."""
    act = ACTS[name]
    for field in act.fields:
        if field.kind in ("flag", "choice", "number"):
            continue
        values = full(act) | {field.name: "--endpoint=elsewhere:1"}
        if field.option:
            assert f"{field.option}=--endpoint=elsewhere:1" in act.line(values)
        else:
            with pytest.raises(UsageError, match="must not begin with -"):
                act.line(values)


def test_a_value_that_no_field_has_is_refused() -> None:
    """Options that the table does not name cannot be reached."""
    with pytest.raises(UsageError, match="has no secret_key_file"):
        ACTS["user-create"].line({"name": "shop", "secret_key_file": "/etc/passwd"})


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "name is missing"),
        ({"name": "orders", "queues": "many"}, "give a whole number"),
        ({"name": "orders", "type": "BIG"}, "choose NORMAL"),
        ({"name": ["orders"]}, "give a text"),
        ({"name": "or\0ders"}, "give a text"),
        ({"name": "orders", "attributes": {"a": 1}}, "give up to"),
    ],
)
def test_a_wrong_value_is_named(values: dict[str, Any], reason: str) -> None:
    """The refusal says which value is wrong and what to give."""
    with pytest.raises(UsageError, match=reason):
        ACTS["topic-create"].line(values)


def test_a_dry_run_needs_a_command_that_has_one() -> None:
    """An act without a dry run is never done by mistake."""
    with pytest.raises(UsageError, match="no dry run"):
        ACTS["topic-create"].line({"name": "orders"}, dry_run=True)
    assert "--dry-run" in ACTS["topic-delete"].line({"name": "orders"}, dry_run=True)
    assert "--yes" in ACTS["topic-delete"].line({"name": "orders"})


def test_a_body_that_a_command_line_cannot_hold_is_shown_as_standard_input() -> None:
    """Bytes, and a text that the command would read from standard input, are shown as -."""
    for values in ({"body": "00ff", "body_encoding": "hex"}, {"body": "-"}):
        shown = sending.shown_values({"topic": "orders", **values})
        assert "--body=-" in ACTS["message-send"].line(shown)
    plain = sending.shown_values({"topic": "orders", "body": "x", "body_encoding": "text"})
    assert "--body=x" in ACTS["message-send"].line(plain)
