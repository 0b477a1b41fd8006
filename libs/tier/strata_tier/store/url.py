"""URLs of object stores, the value of `--tier`.

    posix:///DIRECTORY?existing=true
    s3://BUCKET/PREFIX?endpoint=http://HOST:PORT&region=NAME&dialect=minio
    gs://BUCKET/PREFIX?endpoint=http://HOST:PORT
    hdfs://HOST:PORT,HOST:PORT/PATH?replication=3&config=DIRECTORY&existing=true
    memory://NAME

A URL holds no secret: it is shown in logs, metrics and errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl, quote, urlsplit

from strata_runtime.errors import ConfigError
from strata_tier.store.ports import check_key

OPTIONS: Mapping[str, frozenset[str]] = {
    "posix": frozenset({"existing"}),
    "s3": frozenset({"endpoint", "region", "dialect"}),
    "gs": frozenset({"endpoint"}),
    "hdfs": frozenset({"config", "existing", "replication"}),
    "memory": frozenset(),
}

_SEGMENT = re.compile(r"[A-Za-z0-9_=~+.-]+")


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A URL, taken apart.

    Attributes:
        scheme: which driver.
        host: bucket, `HOST:PORT` or name; empty for `posix`.
        path: folder or prefix without slashes at its ends (`posix`: with the first one).
        options: what follows the question mark.
    """

    scheme: str
    host: str
    path: str
    options: Mapping[str, str]

    def __str__(self) -> str:
        query = "&".join(f"{name}={value}" for name, value in self.options.items())
        path = quote(self.path if self.path.startswith("/") else f"/{self.path}")
        end = "" if path == "/" and self.scheme != "posix" else path
        return f"{self.scheme}://{self.host}{end}{'?' if query else ''}{query}"

    @property
    def name(self) -> str:
        """The URL without its options, for logs and labels."""
        return str(replace(self, options={}))

    @property
    def prefix(self) -> str:
        """Return the prefix of every key of a bucket: empty, or the path and a slash."""
        return f"{self.path}/" if self.path else ""

    @property
    def must_exist(self) -> bool:
        """Whether the folder is never made, also when nothing is known to be in it."""
        return self.options.get("existing") == "true"

    def under(self, folder: str) -> StoreUrl:
        """The same store with a folder more: a namespace's own prefix.

        Raises:
            ValueError: the name cannot be a folder of keys (`ports.check_key`).
        """
        check_key(f"{folder}/name.end")
        return replace(self, path=f"{self.path}/{folder}" if self.path else folder)


def parse(text: str) -> StoreUrl:
    """Take a URL apart.

    Raises:
        ConfigError: it is no URL of a store; the message says what is wrong.
    """
    parts = urlsplit(text)
    scheme = parts.scheme
    if scheme not in OPTIONS:
        known = ", ".join(f"{name}://" for name in OPTIONS)
        raise ConfigError(f"{_shown(text)}: an object store's URL begins with one of {known}")
    if "@" in parts.netloc:
        raise ConfigError(f"{_shown(text)}: credentials do not belong into a URL")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(options) - OPTIONS[scheme])
    if unknown:
        raise ConfigError(f"{text}: {scheme}:// has no option {', '.join(unknown)}")
    if options.get("existing", "true") not in ("true", "false"):
        raise ConfigError(f"{text}: existing is true or false")
    if scheme == "posix":
        if parts.netloc or len(parts.path) < 2:
            raise ConfigError(f"{text}: write posix:///DIRECTORY, with three slashes")
        return StoreUrl(scheme, "", "/" + parts.path.strip("/"), options)
    if not parts.netloc:
        raise ConfigError(f"{text}: write {scheme}://NAME/...")
    path = parts.path.strip("/")
    segments = path.split("/") if path else []
    if not all(_SEGMENT.fullmatch(part) and part.strip(".") for part in segments):
        raise ConfigError(f"{text}: the path holds other characters than A-Z a-z 0-9 _ = ~ + . -")
    return StoreUrl(scheme, parts.netloc, path, options)


def _shown(text: str) -> str:
    """A text that may hold secrets, without its middle."""
    scheme, found, rest = text.partition("://")
    return f"{scheme}://...{rest.rpartition('@')[2]}" if found and "@" in rest else text
