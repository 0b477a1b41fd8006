"""Takes secrets out of texts that leave the machine: configuration, environment, logs.

Values of keys whose names say that they are secret, keys in PEM, users and passwords in URLs, and
every secret that this process knows, wherever it stands. It rather takes too much.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

REDACTED = "<redacted>"

MIN_SECRET_CHARACTERS = 4
"""Known secrets that are shorter are no secrets: they would be found in every word."""

_WORDS = (
    r"secret|password|passwd|passphrase|token|credential|authorization|signature|"
    r"access_?-?key|api_?-?key|private_?-?key|account_?-?key|session_?-?key|cookie|(?<![a-z])sig"
)
_SECRET_NAME = re.compile(_WORDS, re.IGNORECASE)
_PAIR = re.compile(
    # The name with what may stand around it, then = or :, then a value up to its end.
    rf"(?P<head>[\"']?[\w.-]*(?:{_WORDS})[\w.-]*[\"']?\s*[=:]\s*)"
    r"(?:(?P<quote>[\"'])(?P<quoted>(?:\\.|(?!(?P=quote)).)*)(?P=quote)|(?P<bare>[^\s,;&}\"']+))",
    re.IGNORECASE,
)
_HEADER = re.compile(r"(?i)\b(bearer|basic|MQv2-HMAC-SHA1|AWS4-HMAC-SHA256)\s+[^\"'\n]+")
_PEM = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
_USER_IN_URL = re.compile(r"(://)[^/@\s\"']+@")
_AWS_KEY = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b")
# Files are named by keys such as secret_key_file: their paths help, and are no secrets.
_FILE_NAME = re.compile(r"(_file|_folder|_dir|_path|_ms|_s|_id)\b[\"']?\s*[=:]", re.IGNORECASE)


class Redactor:
    """See the module docstring.

    Args:
        secrets: values that are known, for instance the secret key of this command.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {each for each in secrets if len(each) >= MIN_SECRET_CHARACTERS}
        ordered = sorted(known, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        text = _PEM.sub(REDACTED, text)
        if self._known is not None:
            text = self._known.sub(REDACTED, text)
        text = _HEADER.sub(lambda match: f"{match[1]} {REDACTED}", text)
        text = _PAIR.sub(_without_value, text)
        text = _USER_IN_URL.sub(rf"\1{REDACTED}@", text)
        return _AWS_KEY.sub(REDACTED, text)


def secrets_of(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the values of variables whose names say that they are secret."""
    for name, value in environment.items():
        if _is_secret(name):
            yield value


def secrets_in_toml(text: str) -> Iterator[str]:
    """Yield the secret values of a configuration file; none if it cannot be read."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    yield from _secret_values(tables)


def _secret_values(tree: Mapping[str, Any]) -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _secret_values(value)
        elif isinstance(value, str) and _is_secret(name):
            yield value


def _is_secret(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None and not _FILE_NAME.search(f"{name}=")


def _without_value(match: re.Match[str]) -> str:
    if _FILE_NAME.search(match["head"]):
        return match[0]
    if match["quote"] is not None:
        return f"{match['head']}{match['quote']}{REDACTED}{match['quote']}"
    return f"{match['head']}{REDACTED}"
