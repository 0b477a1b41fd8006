"""Changes of keys in a file of a container or member; comments and other keys stay. Pure.

A change that cannot be made this way for certain is refused: the file is an operator's.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from strata_runtime.errors import ConfigError

_HEADER = re.compile(r"^\s*\[([A-Za-z0-9_.-]+)\]\s*(#.*)?$")


def with_toml_key(text: str, section: str, key: str, value: Any) -> str:
    """Return a TOML text in which a key of a section has a value.

    Args:
        text: of the file.
        section: name of a table.
        key: in it.
        value: text, number, boolean or list of these.

    Raises:
        ConfigError: the text is written in a form that is not understood here.
    """
    before = tomllib.loads(text)
    wanted = {**before, section: {**before.get(section, {}), key: value}}
    lines = text.splitlines()
    begin, end = _section(lines, section)
    written = f"{key} = {_toml(value)}"
    if begin is None:
        lines += ["", f"[{section}]", written] if lines else [f"[{section}]", written]
    else:
        first, last = _key(lines, key, begin, end)
        lines[first:last] = [written]
    edited = "\n".join(lines) + "\n"
    try:
        is_right = tomllib.loads(edited) == wanted
    except tomllib.TOMLDecodeError:
        is_right = False
    if not is_right:
        raise ConfigError(f"{section}.{key} cannot be changed in the file: change it by hand")
    return edited


def with_property(text: str, name: str, value: str) -> str:
    """Return a properties text in which a name has a value.

    Raises:
        ConfigError: the value has several lines: each further one would be a setting of its own.
    """
    if value.splitlines() not in ([], [value]):
        raise ConfigError(f"{name}: a value in a properties file is one line")
    written, found = f"{name}={value}", False
    lines: list[str] = []
    for line in text.splitlines():
        if line.partition("=")[0].strip() == name and not line.lstrip().startswith(("#", "!")):
            # The last of a repeated name counts: one stays.
            if not found:
                lines.append(written)
            found = True
        else:
            lines.append(line)
    return "\n".join(lines if found else [*lines, written]) + "\n"


def value_of(text: str) -> Any:
    """Return the value that a text means in TOML; a text that means nothing there is itself."""
    try:
        meant = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    # A text with further keys is not the value of one.
    return meant["value"] if len(meant) == 1 else text


def _section(lines: Sequence[str], section: str) -> tuple[int | None, int]:
    """Return the lines of a section: the first after its header, and the first that is not its."""
    begin: int | None = None
    for number, line in enumerate(lines):
        header = _HEADER.match(line) or re.match(r"^\s*\[\[", line)
        if not header:
            continue
        if begin is not None:
            return begin, number
        if header.lastindex and header.group(1) == section:
            begin = number + 1
    return begin, len(lines)


def _key(lines: Sequence[str], key: str, begin: int, end: int) -> tuple[int, int]:
    """Return the lines of a key's value, which may be a list over several; else where to add it."""
    for first in range(begin, end):
        if not re.match(rf"^\s*{re.escape(key)}\s*=", lines[first]):
            continue
        for last in range(first + 1, end + 1):
            try:
                tomllib.loads("\n".join(lines[first:last]))
            except tomllib.TOMLDecodeError:
                continue
            return first, last
    return begin, begin


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Mapping):
        raise ConfigError("a table cannot be the value of a key: change the file by hand")
    if not isinstance(value, str | int | float):
        raise ConfigError("a date or time cannot be the value of a key: write it as text")
    return json.dumps(value, ensure_ascii=False)
