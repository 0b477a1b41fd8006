"""The acts of the console: each is a command of `strata` with the options that a form may fill in.

A table describes an act: the page makes its form from it, the server its command line, and a test
checks that the command takes it. Only options of the table can reach a command line; a value never
becomes an option of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from strata_cli.errors import UsageError
from strata_cli.views import View
from strata_console.query import positional

Kind = Literal["text", "long", "number", "flag", "choice", "texts", "duration", "time"]

_MAX_TEXTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One input of a form.

    Attributes:
        name: key of the value, and of its label in the catalogues of texts.
        kind: input, and check of the value; `texts`: lines, each is an option of its own.
        option: option of the command; empty: the value has a position.
        required: there is no act without it.
        choices: of a `choice`.
        default: of the form.
    """

    name: str
    kind: Kind = "text"
    option: str = ""
    required: bool = False
    choices: tuple[str, ...] = ()
    default: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One act.

    Attributes:
        name: of the act, and of its texts.
        words: command and subcommand.
        fields: in the order of the form; those with a position in the order of the command.
        namespace: the command works in a namespace.
        danger: the page asks again.
        dry_run: the command has --dry-run.
        asks: the command has --yes.
        changes: lists that it makes old.
        fixed: options that are always given.
    """

    name: str
    words: tuple[str, ...]
    fields: tuple[Field, ...] = ()
    namespace: bool = False
    danger: bool = False
    dry_run: bool = False
    asks: bool = False
    changes: Literal["", "topics", "groups"] = ""
    fixed: tuple[str, ...] = ()

    def view(self) -> View:
        """Return what the page needs for the form."""
        return {
            "name": self.name,
            "namespace": self.namespace,
            "danger": self.danger,
            "dry_run": self.dry_run,
            "fields": [asdict(field) for field in self.fields],
        }

    def line(self, values: Mapping[str, Any], *, dry_run: bool = False) -> list[str]:
        """Return the command line of the act.

        Args:
            values: of the form.
            dry_run: only show the effect.

        Raises:
            UsageError: a value is missing, unknown or of the wrong kind.
        """
        known = {field.name for field in self.fields} | ({"namespace"} if self.namespace else set())
        if unknown := sorted(values.keys() - known):
            raise UsageError(f"{self.name} has no {', '.join(unknown)}")
        line, options = list(self.words), []
        for field in self.fields:
            texts = _texts(field, values.get(field.name))
            if field.required and not texts:
                raise UsageError(f"{field.name} is missing")
            if field.kind == "flag":
                options += [field.option] if texts else []
            elif field.option:
                options += [f"{field.option}={text}" for text in texts]
            else:
                line += [positional(field.name, text) for text in texts]
        if dry_run and not self.dry_run:
            raise UsageError(f"{self.name} has no dry run")
        if dry_run:
            options.append("--dry-run")
        elif self.asks:
            options.append("--yes")
        namespace = _text("namespace", values.get("namespace", ""))
        return [*line, *options, *self.fixed, *([f"--namespace={namespace}"] if namespace else [])]


def _texts(field: Field, value: Any) -> list[str]:
    """Return the texts of a value; none: it is not given."""
    if value is None or value == "":
        return []
    if field.kind == "flag":
        if not isinstance(value, bool):
            raise UsageError(f"{field.name}: a flag is true or false")
        return ["true"] if value else []
    if field.kind == "texts":
        lines = value.split("\n") if isinstance(value, str) else value
        if not isinstance(lines, list) or len(lines) > _MAX_TEXTS:
            raise UsageError(f"{field.name}: give up to {_MAX_TEXTS} lines")
        return [text for line in lines if (text := _text(field.name, line).strip())]
    text = _text(field.name, value)
    if field.kind == "number" and not (text.isascii() and text.isdigit()):
        raise UsageError(f"{field.name} {text}: give a whole number")
    if field.kind == "choice" and text not in field.choices:
        raise UsageError(f"{field.name} {text}: choose {', '.join(field.choices)}")
    return [text]


def _text(name: str, value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or "\0" in value:
        raise UsageError(f"{name}: give a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        # Half a character, which JSON can hold and no request.
        raise UsageError(f"{name}: give a text") from None
    return value


def acts_by_name(*lists: Sequence[Act]) -> Mapping[str, Act]:
    """Return acts by their names."""
    return {act.name: act for acts in lists for act in acts}
