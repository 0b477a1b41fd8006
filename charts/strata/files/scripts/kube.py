"""A few calls of the Kubernetes API with the token of the pod's service account."""

from __future__ import annotations

import json
import os
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_S = 30

Object = dict[str, Any]


class KubeError(Exception):
    """The API server refused a call or did not answer; one line."""


def get(path: str) -> Object | None:
    """Return an object or a list; None: there is no such object."""
    return call("GET", path, missing_is_none=True)


def call(
    method: str,
    path: str,
    body: Object | None = None,
    *,
    content_type: str = "application/json",
    missing_is_none: bool = False,
) -> Object | None:
    """Call the API server and return its answer.

    Args:
        method: of HTTP.
        path: with a slash in front, and its query.
        body: object to send.
        content_type: of the body; a patch has one of its own.
        missing_is_none: return None where there is no such object.

    Raises:
        KubeError: the call failed.
    """
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(f"{_server()}{path}", data=data, method=method)
    request.add_header("Content-Type", content_type)
    account = Path(os.environ.get("CHART_ACCOUNT", str(ACCOUNT)))
    request.add_header("Authorization", f"Bearer {(account / 'token').read_text().strip()}")
    context = None
    if request.type == "https":
        context = ssl.create_default_context(cafile=account / "ca.crt")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as answer:
            found: Object = json.loads(answer.read())
            return found
    except urllib.error.HTTPError as error:
        if error.code == 404 and missing_is_none:
            return None
        raise KubeError(f"{method} {path}: {error.code} {_reason(error)}") from None
    except OSError as error:
        raise KubeError(f"{method} {path}: {error}") from None


def _server() -> str:
    if server := os.environ.get("CHART_API_SERVER", ""):
        return server
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read()).get("message", error.reason))
    except ValueError:
        return str(error.reason)
