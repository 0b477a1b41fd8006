"""The reads of the console: each is a command line, or a few calls where a page needs more.

A read gives the data of a page and the command line that shows the same. Used in worker threads.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from strata_cli.client import AdminClient
from strata_cli.embedded import run_line
from strata_cli.options import DEFAULT_ENDPOINT
from strata_cli.views import View
from strata_console.catalogue import Catalogue
from strata_console.errors import ConsoleError, held_by_requests
from strata_console.query import Query


@dataclass(frozen=True, slots=True)
class Reader:
    """The user who reads.

    Attributes:
        client: with the user's keys.
        user: whose lists are kept.
        catalogue: the lists.
    """

    client: AdminClient
    user: str
    catalogue: Catalogue


Line = Callable[[Query], Sequence[str]]
Answer = tuple[View, Sequence[str]]
"""Data, and the command line for it."""

Read = Callable[[Reader, Query], Answer]

LINES: Mapping[str, Line] = {
    "health": lambda _: ("cluster", "health"),
    "cluster": lambda _: ("cluster", "show"),
    "node": lambda query: ("node", "show", query.name("name")),
    "raft-group": lambda query: ("raft-group", "show", str(query.number("number", 0))),
    "slots": lambda _: ("slot", "list"),
    "topic": lambda query: ("topic", "show", query.name("name"), *query.namespace),
    "queue": lambda query: (
        *("queue", "explain", query.name("topic"), str(query.number("queue", 0))),
        *query.namespace,
    ),
    "trace": lambda query: _trace(query),
    "messages": lambda query: _messages(query),
    "dead-letter-groups": lambda _: ("dlq", "list", "--all-namespaces"),
    "dead-letters": lambda query: (
        *("dlq", "show", query.name("group"), f"--count={query.page_size}", *_page(query)),
        *query.namespace,
    ),
    "transactions": lambda query: (
        *("transaction", "list", f"--count={query.page_size}"),
        *_given(query, "topic"),
        *(query.namespace if query.text("topic") else ("--all-namespaces",)),
    ),
    "transaction": lambda query: (
        *("transaction", "show", query.name("id"), *_given(query, "topic")),
        *query.namespace,
    ),
    "tier": lambda _: ("tier", "status"),
    "tables": lambda query: ("kv", "tables", *query.namespace),
    "table": lambda query: ("kv", "show", query.name("name"), *query.namespace),
    "items": lambda query: (
        *("kv", "list", f"--table={query.name('name')}", f"--limit={query.page_size}"),
        *_given(query, "prefix", "after"),
        *query.namespace,
    ),
    "plans": lambda _: ("placement", "history"),
    "plan": lambda query: ("placement", "explain", str(query.number("id", 0))),
    "quotas": lambda _: ("quota", "list", "--all-namespaces"),
    "quota": lambda query: ("quota", "show", *_given(query, "topic"), *query.namespace),
    "users": lambda _: ("user", "list"),
    "user": lambda query: ("user", "show", query.name("name")),
    "policies": lambda query: ("policy", "list", *_given(query, "user")),
}


def run_read(reads: Mapping[str, Read], name: str, reader: Reader, query: Query) -> View:
    """Return a read's data with its command line.

    Args:
        reads: those that are more than a command line.
        name: of the read.
        reader: who reads.
        query: its parameters.

    Raises:
        CliError: there is no such read, or it failed.
    """
    with held_by_requests():
        if name in reads:
            data, line = reads[name](reader, query)
        elif name in LINES:
            line = LINES[name](query)
            data = run_line(reader.client, line)
        else:
            raise ConsoleError(f"there is no read named {name}", 404, "not_found")
    return {"data": data, "command": shown_line(reader.client, line)}


def shown_line(client: AdminClient, line: Sequence[str]) -> str:
    """Return a command line as a user types it."""
    elsewhere = client.endpoint != DEFAULT_ENDPOINT
    endpoint = (f"--endpoint={client.endpoint}",) if elsewhere else ()
    return shlex.join(("strata", *line, *endpoint))


def _given(query: Query, *names: str) -> tuple[str, ...]:
    """Return the options whose parameters are given."""
    return tuple(f"--{name}={query.text(name)}" for name in names if query.text(name))


def _page(query: Query) -> tuple[str, ...]:
    return _given(query, "page")


def _messages(query: Query) -> tuple[str, ...]:
    """Return the line for messages by id or place, else by time, key and tag."""
    topic = query.name("topic")
    if query.text("id"):
        return ("message", "show", topic, *_given(query, "id"), *query.namespace)
    if query.text("offset"):
        return ("message", "show", topic, *_given(query, "offset"), *query.namespace)
    return (
        *("message", "query", topic, *_given(query, "from", "to", "key", "tag", "queue")),
        *(f"--count={query.page_size}", *_page(query), *query.namespace),
    )


def _trace(query: Query) -> tuple[str, ...]:
    topic = f"--topic={query.name('topic')}"
    if query.text("offset"):
        return ("message", "trace", topic, *_given(query, "offset"), *query.namespace)
    return ("message", "trace", query.name("id"), topic, *query.namespace)
