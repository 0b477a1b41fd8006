"""Keys with which tasks sign their calls to brokers: from options, a file or the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from strata_mq.access import date_of, sign

ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE = "STRATA_ACCESS_KEY", "STRATA_SECRET_KEY"


class SourceKeys(NamedTuple):
    """SourceKeys of a user; without an access key nothing is signed."""

    access_key: str = ""
    secret_key: str = ""

    @classmethod
    def find(
        cls,
        access_key: str = "",
        secret_key: str = "",
        secret_key_file: str = "",
        environment: Mapping[str, str] = os.environ,
    ) -> SourceKeys:
        """Return the keys that are given, or those of the environment of the task.

        Raises:
            OSError: the file cannot be read.
        """
        if not access_key:
            return cls(
                environment.get(ACCESS_KEY_VARIABLE, ""), environment.get(SECRET_KEY_VARIABLE, "")
            )
        if secret_key_file:
            secret_key = Path(secret_key_file).read_text(encoding="utf-8").strip()
        return cls(access_key, secret_key or environment.get(SECRET_KEY_VARIABLE, ""))


class _Details(NamedTuple):
    """As `grpc.ClientCallDetails`."""

    method: str
    timeout: float | None
    metadata: tuple[tuple[str, str], ...]
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class _Signing(grpc.UnaryUnaryClientInterceptor):
    """Signs each call at its own time."""

    def __init__(self, keys: SourceKeys) -> None:
        self._keys = keys

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        date = date_of(datetime.now(UTC))
        headers = (
            *(details.metadata or ()),
            ("x-mq-date-time", date),
            ("authorization", sign(*self._keys, date)),
        )
        signed = _Details(
            details.method,
            details.timeout,
            headers,
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )
        return continuation(signed, request)


def signing(channel: grpc.Channel, keys: SourceKeys) -> grpc.Channel:
    """Return a channel whose calls are signed, if there are keys."""
    return grpc.intercept_channel(channel, _Signing(keys)) if keys.access_key else channel
