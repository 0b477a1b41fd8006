"""Changes of the file with profiles: a table is added, replaced or removed, the rest stays.

Comments and the order of other profiles are kept, because people write this file, too.
"""

from __future__ import annotations

import json
import re
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path

from strata_cli.errors import CliError, UsageError

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HEADER = re.compile(r"^\s*\[")


def read_profiles(path: Path) -> dict[str, dict[str, str | bool]]:
    """Return the profiles of a file by name; a file that is missing has none.

    Raises:
        CliError: the file cannot be read.
    """
    return {
        name: values for name, values in _tables(_text(path), path).items() if type(values) is dict
    }


def put_profile(path: Path, name: str, values: Mapping[str, str | bool]) -> None:
    """Add a profile, or replace the one of that name.

    Raises:
        CliError: the file cannot be read or written.
        UsageError: no profile can have that name.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a name: write letters, digits, - and _")
    # A JSON text is a TOML text, too; truth values are the same.
    table = [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    rest = _without(_text(path), name).rstrip("\n")
    _write(path, (f"{rest}\n\n" if rest else "") + "\n".join(table) + "\n")


def remove_profile(path: Path, name: str) -> None:
    """Remove a profile.

    Raises:
        CliError: there is none of that name, or the file cannot be read or written.
    """
    if name not in read_profiles(path):
        raise CliError(f"{path} has no profile {name}", "not_found")
    _write(path, _without(_text(path), name))


def _without(text: str, name: str) -> str:
    """Return the text without a table: from its header up to the next header."""
    kept, inside = [], False
    for line in text.splitlines(keepends=True):
        if _HEADER.match(line):
            inside = line.split("#")[0].strip() in (f"[{name}]", f'["{name}"]')
        if not inside:
            kept.append(line)
    return "".join(kept)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "the file is not text"
        raise CliError(f"{path}: {reason}") from None


def _tables(text: str, path: Path) -> dict[str, dict[str, str | bool]]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CliError(f"{path}: {error}") from None


def _write(path: Path, text: str) -> None:
    """Replace the file as a whole; only its owner can read and write it."""
    _tables(text, path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            file.write(text)
        Path(file.name).replace(path)
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}") from None
