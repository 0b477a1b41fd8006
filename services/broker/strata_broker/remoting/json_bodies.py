"""JSON in the bodies of remoting requests: bounded before it is parsed, refused with a reason.

A text of a body goes into rows, answers and protobuf, which hold UTF-8 only. So a body with half of
a surrogate pair is refused here, for all requests at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from strata_remoting import RemotingError

_ESCAPE = "\\u"


def read_object(body: bytes, max_bytes: int) -> dict[str, Any]:
    """Return the JSON object of a body.

    Raises:
        RemotingError: it is none, has more than `max_bytes`, or a text in it is no UTF-8.
    """
    if len(body) > max_bytes:
        raise RemotingError(
            f"the body has {len(body)} bytes; {max_bytes} are allowed (remoting.max_json_bytes)"
        )
    try:
        # The parser takes bytes of half a pair, which are no UTF-8.
        text = body.decode()
        data = json.loads(text)
        if _ESCAPE in text:
            # An escape may be half a pair, in a key too; few bodies have any escape.
            json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise RemotingError("a text in the body is no UTF-8: half of a surrogate pair") from None
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
