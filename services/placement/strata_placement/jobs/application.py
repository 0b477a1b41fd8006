"""The frame of every job: a session, arguments for the source, progress and a report.

The report is one JSON object on stdout; `--report FILE` writes the same as a page: one HTML file
that needs no script and no network.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamReader, StreamingQuery

_BAR_PX = 420
_STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:960px;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse}td,th{padding:.2em .8em;border-bottom:1px solid #ddd;"
    "text-align:right}td:first-child,th:first-child{text-align:left}"
)
_SETTINGS = {
    "spark.ui.showConsoleProgress": "true",
    # A query that was killed while it wrote its first offsets leaves a temporary file: Spark 4.1
    # would refuse to continue from that checkpoint forever.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
}


class Job:
    """One application.

    Args:
        name: for the session, for progress and for the report.
        description: of `--help`.
    """

    def __init__(self, name: str, description: str) -> None:
        self.name = name
        self.parser = argparse.ArgumentParser(name, description=description)
        self.parser.add_argument("--report", type=Path, help="HTML file to write")

    def with_source(self) -> Job:
        """Take the arguments that say where messages come from."""
        add = self.parser.add_argument
        add("--endpoint", default="", help="host:port of brokers, by comma")
        add("--tier", default="", help="URL of an object store, to read without brokers")
        add("--namespace", default="", help="of the topic")
        return self

    def with_tier(self) -> Job:
        """Take the arguments that say which objects, and who decides about them."""
        add = self.parser.add_argument
        add("--tier", required=True, help="URL of the object store")
        add("--home", default="", help="id of the cluster, if there are several")
        add("--endpoint", required=True, help="host:port of brokers, by comma")
        add("--ca-file", default="", help="certificates of the brokers; without it no TLS")
        return self

    def session(self) -> SparkSession:
        """Return Spark's session; other settings come from `spark-submit`."""
        builder = SparkSession.builder.appName(f"strata-{self.name}")
        for setting, value in _SETTINGS.items():
            builder = builder.config(setting, value)
        return builder.getOrCreate()

    def messages(self, spark: SparkSession, given: argparse.Namespace, topic: str) -> DataFrame:
        """Return a topic as a stream."""
        reader: DataStreamReader = spark.readStream.format("strata").option("topic", topic)
        for name in ("endpoint", "tier", "namespace"):
            if value := getattr(given, name):
                reader = reader.option(name, value)
        return reader.load()

    def say(self, line: str) -> None:
        """Tell on stderr how far it is."""
        print(f"strata {self.name}: {line}", file=sys.stderr, flush=True)

    def follow(self, query: StreamingQuery, poll_s: int = 2) -> int:
        """Tell of each micro-batch until the query ends; return how many rows it read.

        Raises:
            StreamingQueryException: it failed.
        """
        rows, told = 0, -1
        ended = False
        while not ended:
            ended = query.awaitTermination(poll_s)
            for progress in query.recentProgress:
                if progress["batchId"] > told:
                    told = progress["batchId"]
                    rows += progress["numInputRows"]
                    self.say(f"micro-batch {told}: {rows} messages so far")
        return rows

    def end(
        self,
        given: argparse.Namespace,
        figures: Mapping[str, Any],
        rows: Sequence[Mapping[str, Any]] = (),
        bar: str = "",
    ) -> None:
        """Print figures, and write the page if one is wanted.

        Args:
            given: the arguments.
            figures: of the whole job.
            rows: a table beside them; shown on the page and printed under `rows`.
            bar: column of the table that is drawn, too.
        """
        view = {"job": self.name, **figures}
        print(json.dumps(view | {"rows": list(rows)} if rows else view), flush=True)
        if given.report is not None:
            given.report.write_text(page(self.name, figures, rows, bar), encoding="utf-8")
            self.say(f"report: {given.report}")


def page(
    title: str, figures: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], bar: str = ""
) -> str:
    """Return the page of a report."""
    facts = "".join(
        f"<tr><td>{escape(name)}</td><td>{_text(value)}</td></tr>"
        for name, value in figures.items()
    )
    parts = [f"<h1>{escape(title)}</h1><table>{facts}</table>"]
    if rows:
        columns = list(rows[0])
        head = "".join(f"<th>{escape(column)}</th>" for column in columns)
        most = max((float(row[bar] or 0) for row in rows), default=0.0) if bar else 0.0
        lines = []
        for row in rows:
            cells = "".join(f"<td>{_text(row[column])}</td>" for column in columns)
            lines.append(f"<tr>{cells}{_bar(row, bar, most)}</tr>")
        parts.append(f"<h2>Rows</h2><table><tr>{head}</tr>{''.join(lines)}</table>")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _bar(row: Mapping[str, Any], bar: str, most: float) -> str:
    if not most:
        return ""
    width = _BAR_PX * float(row[bar] or 0) / most
    return (
        f'<td><svg width="{_BAR_PX}" height="14" role="img"><rect width="{width:.1f}" height="14" '
        'fill="#1f4e9c"/></svg></td>'
    )


def _text(value: object) -> str:
    return escape(f"{value:,.4g}" if isinstance(value, float) else str(value))
