"""The built page: a few files in the package, read once, named by their hashes for caches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

Endpoint = Callable[[Request], Awaitable[Response]]

_TYPES = {
    "index.html": "text/html; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "app.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


def static_routes() -> Sequence[Route]:
    """Return the routes of the page's files."""
    folder = files("strata_console") / "static"
    found = {name: (folder / name).read_bytes() for name in _TYPES}
    return [
        Route("/", _served(found["index.html"], _TYPES["index.html"])),
        *(Route(f"/{name}", _served(content, _TYPES[name])) for name, content in found.items()),
    ]


def _served(content: bytes, media_type: str) -> Endpoint:
    async def serve(request: Request) -> Response:
        return Response(content, media_type=media_type, headers={"cache-control": "no-cache"})

    return serve
