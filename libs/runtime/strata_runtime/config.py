"""Configuration: sections of typed keys, from a TOML file, overridden by the environment.

`STRATA_<SECTION>_<KEY>` overrides one key of one section, `STRATA_<KEY>` a key without a section.
An unknown key or a bad value ends the start with one line that names key and source. The
environment is read by `main` only and passed in, so that nothing else depends on it.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError

from strata_runtime.errors import ConfigError

PREFIX = "STRATA"

# Variables that Kubernetes sets for a Service whose name begins with "strata-":
# STRATA_STORAGE_PORT=tcp://..., STRATA_STORAGE_SERVICE_HOST, STRATA_STORAGE_PORT_10920_TCP_ADDR.
_SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?$")
# Variables of the `strata` command that begin like those of a section.
_OF_THE_COMMAND = frozenset(("STRATA_SESSION_TOKEN",))
_LINK_SCHEMES = ("tcp://", "udp://", "sctp://")


class Section(BaseModel):
    """Base of one `[section]`: unknown keys are errors, values cannot be changed.

    Secrets are `pydantic.SecretStr`; every field has a description, from which docs are made.

    Attributes:
        renamed_keys: former key -> its name now; a former key is refused with the new name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    renamed_keys: ClassVar[Mapping[str, str]] = {}


class Config(BaseModel):
    """Base of a process's configuration; a field is a `Section`, or rarely a key by itself."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


ConfigT = TypeVar("ConfigT", bound=Config)


def load(model: type[ConfigT], file: Path | None, environment: Mapping[str, str]) -> ConfigT:
    """Read a configuration; what is not given has the model's default.

    Args:
        model: the process's `Config`.
        file: TOML file; None: defaults and environment only.
        environment: usually `os.environ`.

    Raises:
        ConfigError: file missing or not TOML, unknown section or key, bad value.
    """
    values = read_toml(file) if file is not None else {}
    overridden = dict(_overrides(model, environment))
    values |= _overrides_without_section(model, environment)
    for variable, (section, key, value) in overridden.items():
        keys = values.setdefault(section, {})
        if not isinstance(keys, dict):
            raise ConfigError(f"{file}: {section} must be a section, {variable} overrides a key")
        keys[key] = value
    sources = {(section, key): name for name, (section, key, _) in overridden.items()}
    return from_values(model, values, file, sources)


def from_values(
    model: type[ConfigT],
    values: Mapping[str, Any],
    file: Path | None,
    sources: Mapping[tuple[str, str], str] = MappingProxyType({}),
) -> ConfigT:
    """Return the configuration that values make.

    Args:
        model: the process's `Config`.
        values: section -> key -> value.
        file: where they are from, for the error.
        sources: (section, key) -> where this value is from instead.

    Raises:
        ConfigError: unknown section or key, bad value.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_explain(error, file, sources, _renamed_keys(model))) from None


def keys_of(model: type[Config]) -> Iterator[tuple[str, str, str]]:
    """All keys as `(section, key, variable that overrides it)`, for documentation and tests."""
    for section, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            for key in annotation.model_fields:
                yield section, key, f"{PREFIX}_{section.upper()}_{key.upper()}"


def to_json(config: Config) -> str:
    """The values that hold, as JSON, secrets masked."""
    return json.dumps(config.model_dump(mode="json"), indent=2)


def to_private_json(config: Config) -> str:
    """The values that hold, as JSON with its secrets, for another process of ours only."""
    return json.dumps(config.model_dump(), default=_revealed)


def _revealed(value: object) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)


def to_toml(config: Config) -> str:
    """The values that hold, as TOML, secrets masked; keys without a value are comments."""
    lines: list[str] = []
    values = config.model_dump(mode="json")
    alone = {key: value for key, value in values.items() if not isinstance(value, dict)}
    lines += [f"{key} = {_toml(value)}" for key, value in alone.items()]
    lines += [""] if alone else []
    for section, keys in values.items():
        if section in alone:
            continue
        lines.append(f"[{section}]")
        for key, value in keys.items():
            lines.append(f"# {key} =" if value is None else f"{key} = {_toml(value)}")
        lines.append("")
    return "\n".join(lines)


def read_toml(file: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises:
        ConfigError: it is missing or not TOML.
    """
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from None


def _overrides_without_section(
    model: type[Config], environment: Mapping[str, str]
) -> dict[str, Any]:
    """`key: value` of every variable that overrides a key which is in no section."""
    sections = {section for section, _, _ in keys_of(model)}
    return {
        key: _from_text(variable, environment[variable])
        for key in model.model_fields.keys() - sections
        if (variable := f"{PREFIX}_{key.upper()}") in environment
    }


def _overrides(
    model: type[Config], environment: Mapping[str, str]
) -> Iterator[tuple[str, tuple[str, str, Any]]]:
    """`(variable, (section, key, value))` of every variable that overrides a key."""
    known = {variable: (section, key) for section, key, variable in keys_of(model)}
    sections = tuple(f"{PREFIX}_{section.upper()}_" for section in model.model_fields)
    for variable, text in environment.items():
        if variable in known:
            if not (variable.endswith("_PORT") and text.startswith(_LINK_SCHEMES)):
                yield variable, (*known[variable], _from_text(variable, text))
        elif variable in _OF_THE_COMMAND:
            continue
        elif variable.startswith(sections) and not _SERVICE_LINK.search(variable):
            # A misspelt key must not be ignored silently.
            now = _renamed_variables(model).get(variable)
            hint = f", {now} now" if now else ""
            raise ConfigError(f"{variable}: no such key{hint} (environment)")


def _renamed_variables(model: type[Config]) -> dict[str, str]:
    """Return the variable of every former key -> its variable now."""
    return {
        f"{PREFIX}_{section.upper()}_{former.upper()}": f"{PREFIX}_{section.upper()}_{now.upper()}"
        for section, keys in _renamed_keys(model).items()
        for former, now in keys.items()
    }


def _renamed_keys(model: type[Config]) -> dict[str, Mapping[str, str]]:
    """Return the former keys of every section."""
    return {
        section: field.annotation.renamed_keys
        for section, field in model.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
    }


def _from_text(variable: str, text: str) -> Any:
    """Lists and tables are written as in TOML; scalars are converted by the model."""
    if not text.startswith(("[", "{")):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{variable}: {error} (environment)") from None


def _explain(
    error: ValidationError,
    file: Path | None,
    sources: Mapping[tuple[str, str], str],
    renamed: Mapping[str, Mapping[str, str]],
) -> str:
    """The first problem as one line `source: section.key: what is wrong`."""
    problems = error.errors(include_url=False, include_context=False)
    first = problems[0]
    where = [str(part) for part in first["loc"]]
    source = sources.get((where[0], where[1])) if len(where) > 1 else None
    what = "unknown key" if first["type"] == "extra_forbidden" else first["msg"]
    now = renamed.get(where[0], {}).get(where[1], "") if len(where) > 1 else ""
    what += f", its name is {now} now" if now else ""
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{source or file or 'configuration'}: {'.'.join(where)}: {what}{more}"


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        pairs = (f"{_toml(key)} = {_toml(inner)}" for key, inner in value.items())
        return "{" + ", ".join(pairs) + "}"
    # JSON's strings, numbers and booleans are TOML's too, but TOML has no surrogate escapes (so
    # the text stays as it is) and wants DEL escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
