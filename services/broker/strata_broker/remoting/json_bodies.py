"""JSON in the bodies of remoting requests: bounded before it is parsed, refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from strata_remoting import RemotingError


def read_object(body: bytes, max_bytes: int) -> dict[str, Any]:
    """Return the JSON object of a body.

    Raises:
        RemotingError: it is none, or has more than `max_bytes`.
    """
    if len(body) > max_bytes:
        raise RemotingError(
            f"the body has {len(body)} bytes; {max_bytes} are allowed (remoting.max_json_bytes)"
        )
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RemotingError(f"the body is no JSON: {error}") from None
    if not isinstance(data, dict):
        raise RemotingError("the body is no JSON object")
    return data


def objects_in(data: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the list of objects under a name.

    Raises:
        RemotingError: there is something else.
    """
    found = data.get(name) or []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise RemotingError(f"{name} is no list of objects")
    return found
