"""Metrics of several processes as one page in the Prometheus text format.

Each series has the id of its node as a label, so pages are joined without a change of any line;
only the lines of one metric have to stand together.
"""

from __future__ import annotations

from collections.abc import Iterable


def joined(pages: Iterable[bytes]) -> bytes:
    """Return one page with the series of all pages.

    Args:
        pages: in the text format; a metric's description is that of the first page that has it.
    """
    heads: dict[bytes, list[bytes]] = {}
    series: dict[bytes, list[bytes]] = {}
    for page in pages:
        described = set(heads)
        name = b""
        for line in page.splitlines():
            if line.startswith((b"# HELP ", b"# TYPE ")):
                name = line.split(b" ", 3)[2]
                if name not in described:
                    heads.setdefault(name, []).append(line)
            elif line and not line.startswith(b"#"):
                heads.setdefault(name, [])
                series.setdefault(name, []).append(line)
    lines = (line for name in heads for line in (*heads[name], *series.get(name, ())))
    return b"".join(line + b"\n" for line in lines)
