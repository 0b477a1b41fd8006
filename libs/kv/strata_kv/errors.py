"""Errors of the client's calls."""

from __future__ import annotations

import grpc


class KvError(Exception):
    """A call failed; the text is for people."""


class KvUnknownOutcomeError(KvError):
    """Nobody answered in time: the write was carried out, or not. Read to find out."""


class KvRefusedError(KvError):
    """Nothing was done: the request is wrong, or a limit is reached."""


class KvNotFoundError(KvRefusedError):
    """There is no such table."""


class KvCompactedError(KvRefusedError):
    """Changes since that revision are not kept any more: read the table, then watch anew."""


class KvNotLoadedError(KvRefusedError):
    """The broker does not have the plugin `kv`."""


_KINDS: dict[grpc.StatusCode, type[KvError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: KvRefusedError,
    grpc.StatusCode.NOT_FOUND: KvNotFoundError,
    grpc.StatusCode.FAILED_PRECONDITION: KvRefusedError,
    grpc.StatusCode.ALREADY_EXISTS: KvRefusedError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: KvRefusedError,
    grpc.StatusCode.PERMISSION_DENIED: KvRefusedError,
    grpc.StatusCode.UNAUTHENTICATED: KvRefusedError,
    grpc.StatusCode.UNIMPLEMENTED: KvNotLoadedError,
}


def error_of(failure: grpc.RpcError) -> KvError:
    """Return the error of a failed call."""
    code = failure.code()
    return _KINDS.get(code, KvUnknownOutcomeError)(failure.details() or code.name)


def is_worth_repeating(failure: grpc.RpcError) -> bool:
    """Whether a read may succeed when it is made again."""
    return failure.code() is grpc.StatusCode.UNAVAILABLE
