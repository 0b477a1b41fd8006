"""Structured logging: lines for people on a terminal, one JSON object per line elsewhere.

Events are short constant sentences; variable parts are keys. Request and trace ids are context
variables, so that every line of a request carries them without being passed around.

A stack is written without the local variables of its frames, which can contain bodies of messages,
keys and signed requests. Warnings and errors are limited per event (`log_limiter`), also those of
libraries.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, TextIO, cast

import structlog

from strata_runtime.log_limiter import LogLimiter

LogFormat = Literal["auto", "console", "json"]

AUDIT = "audit"
"""Component whose lines are written at every level, or never (`configure`)."""

_LEVELS = logging.getLevelNamesMapping()
_STACKS = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
)
_CALLER_GONE = "ExecuteBatchError raised in core"
# Lowest level that is written, of this process: loggers that exist already obey a change, too.
_threshold = logging.INFO
_audits = True


def configure(
    *,
    level: str = "info",
    log_format: LogFormat = "auto",
    stream: TextIO | None = None,
    audits: bool = True,
    **common: str,
) -> None:
    """Set up logging of the process; called once by `main`.

    Args:
        level: lowest level written: debug, info, warning, error.
        log_format: "auto" is console on a terminal, JSON otherwise.
        stream: where to; standard error by default.
        audits: whether lines of the component `AUDIT` are written, whatever the level.
        common: keys of every line (process, node).

    Raises:
        ValueError: the level is unknown.
    """
    global _audits
    if level.upper() not in _LEVELS:
        raise ValueError(f"unknown log level {level!r}")
    _audits = audits
    out = stream or sys.stderr
    console = log_format == "console" or (log_format == "auto" and out.isatty())
    renderer: list[Any] = (
        [
            structlog.dev.ConsoleRenderer(
                colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback
            )
        ]
        if console
        else [_STACKS, structlog.processors.JSONRenderer()]
    )
    limiter = LogLimiter()

    def add_common(_: Any, __: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
        return {**common, **event}

    structlog.configure(
        processors=[
            _drop_below_threshold,
            partial(_drop_floods, limiter),
            structlog.contextvars.merge_contextvars,
            add_common,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    # Libraries that use the standard module (grpc, asyncio) write warnings to the same stream.
    logging.basicConfig(stream=out, force=True)
    for handler in logging.getLogger().handlers:
        handler.addFilter(partial(_is_wanted, limiter))
    set_level(level)


def set_level(level: str) -> str:
    """Change which lines of this process are written, from now on.

    Args:
        level: as in `configure`.

    Returns:
        The level before.

    Raises:
        ValueError: the level is unknown.
    """
    global _threshold
    if level.upper() not in _LEVELS:
        raise ValueError(f"unknown log level {level!r}")
    before = logging.getLevelName(_threshold).lower()
    _threshold = _LEVELS[level.upper()]
    logging.getLogger().setLevel(max(_threshold, logging.WARNING))
    return before


def _drop_below_threshold(
    _: Any, method_name: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    if event.get("component") == AUDIT:
        if not _audits:
            raise structlog.DropEvent
        return event
    # "exception" is the one method that is no level.
    if _LEVELS.get(method_name.upper(), logging.ERROR) < _threshold:
        raise structlog.DropEvent
    return event


def _drop_floods(
    limiter: LogLimiter, _: Any, method_name: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    if _LEVELS.get(method_name.upper(), logging.ERROR) < logging.WARNING:
        return event
    # A member of a container that floods its log takes no lines of the other members.
    member = str(structlog.contextvars.get_contextvars().get("member", ""))
    source = f"{member}{event.get('component', '')}"
    left_out = limiter.admit(source, str(event.get("event")), stack=bool(event.get("exc_info")))
    if left_out is None:
        raise structlog.DropEvent
    if left_out:
        event["lines_left_out"] = left_out
    return event


def _is_wanted(limiter: LogLimiter, record: logging.LogRecord) -> bool:
    """Whether a library's line is written; its text before the values are filled in is its event.

    gRPC's "ExecuteBatchError" says that a caller has gone before its answer: no failure of ours.
    """
    event = str(record.msg)
    if event.startswith(_CALLER_GONE):
        return False
    stack = bool(record.exc_info)
    left_out = limiter.admit(record.name, event, stack=stack)
    if left_out:
        record.msg = f"{event} ({left_out} more lines like this were left out)"
    return left_out is not None


def get_logger(component: str) -> structlog.typing.FilteringBoundLogger:
    """A logger whose lines carry `component`."""
    logger = structlog.get_logger().bind(component=component)
    return cast("structlog.typing.FilteringBoundLogger", logger)


@contextmanager
def request_context(*, request_id: str = "", trace_parent: str = "") -> Iterator[None]:
    """Give every line inside the ids of a request.

    Args:
        request_id: the client's id of the request, if any.
        trace_parent: W3C `traceparent`; its trace id is logged as `trace_id`.
    """
    keys = {"request_id": request_id, "trace_id": _trace_id(trace_parent)}
    with structlog.contextvars.bound_contextvars(**{k: v for k, v in keys.items() if v}):
        yield


def _trace_id(trace_parent: str) -> str:
    parts = trace_parent.split("-")
    return parts[1] if len(parts) == 4 and len(parts[1]) == 32 else ""
