"""Profiles: what a command needs to connect, under a name, in a file of the user.

The file is `$STRATA_CONFIG`, else `$XDG_CONFIG_HOME/strata/profiles.toml`, else
`~/.config/strata/profiles.toml`. A table of it is a profile: `endpoint`, `namespace`, `tls`, `ca`,
`access_key`, `secret_key_file`, `session_token_file`; paths are relative to the file. The command
line and the environment win over a profile. Files with secrets must be readable for their owner
only, and nobody else may be able to change the profiles.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from strata_cli.errors import CliError, UsageError

_OTHERS_READ = 0o077
_OTHERS_WRITE = 0o022
_TEXTS = ("endpoint", "namespace", "ca", "access_key", "secret_key_file", "session_token_file")


@dataclass(frozen=True, slots=True)
class Profile:
    """One profile.

    Attributes:
        values: as they are in the file.
        folder: that paths in it begin at.
    """

    values: Mapping[str, str | bool]
    folder: Path

    def defaults(self, access_key: str) -> dict[str, str | bool]:
        """Return defaults of the options of every command.

        Args:
            access_key: given elsewhere: then no key of the profile belongs to it.

        Raises:
            CliError: a file with a secret cannot be read, or others can read it.
        """
        found: dict[str, str | bool] = {
            name: self.values[name]
            for name in ("endpoint", "namespace", "tls")
            if name in self.values
        }
        if ca := self.values.get("ca"):
            found["ca"] = str(self.folder / str(ca))
        if not access_key and (own := self.values.get("access_key")):
            found["access_key"] = own
            found["secret_key"] = self._secret("secret_key_file")
            found["session_token"] = self._secret("session_token_file")
        return found

    def _secret(self, key: str) -> str:
        name = self.values.get(key)
        return read_secret(self.folder / str(name), key, on_shared=_refuse) if name else ""


def load_profile(name: str) -> Profile:
    """Return a profile.

    Raises:
        CliError: there is none of that name, or the file cannot be used.
    """
    path = profiles_file(os.environ)
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            tables = tomllib.load(file)
    except OSError as error:
        raise CliError(f"--profile {name}: {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CliError(f"{path}: {error}") from None
    if mode & _OTHERS_WRITE:
        raise CliError(f"{path}: other users can write it; chmod go-w {path}")
    values = tables.get(name)
    if not isinstance(values, dict):
        known = ", ".join(key for key, value in tables.items() if isinstance(value, dict))
        raise UsageError(f"--profile {name}: {path} has {known or 'no profiles'}")
    for key, value in values.items():
        if key not in (*_TEXTS, "tls"):
            raise CliError(f"{path}: {name}.{key}: unknown key; known are {', '.join(_TEXTS)}, tls")
        if not isinstance(value, bool if key == "tls" else str):
            raise CliError(f"{path}: {name}.{key}: a {'truth value' if key == 'tls' else 'text'}")
    return Profile(values, path.parent)


def profiles_file(environment: Mapping[str, str]) -> Path:
    """Return where the profiles are."""
    if given := environment.get("STRATA_CONFIG"):
        return Path(given)
    folder = environment.get("XDG_CONFIG_HOME")
    return (Path(folder) if folder else Path.home() / ".config") / "strata" / "profiles.toml"


def _refuse(text: str) -> NoReturn:
    raise CliError(text)


def read_secret(path: Path, what: str, *, on_shared: Callable[[str], None]) -> str:
    """Return the text of a file with a secret, without the end of its line.

    Args:
        path: of the file.
        what: for the error.
        on_shared: told in one line if other users can read the file.

    Raises:
        CliError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & _OTHERS_READ:
                on_shared(f"{what}: other users can read {path}; chmod 600 {path}")
            return file.read().decode().strip()
    except OSError as error:
        raise CliError(f"{what} {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CliError(f"{what} {path}: the file is not text") from None
