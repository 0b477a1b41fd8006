"""Common parts of drivers: bodies cut into parts, listings of trees, meanings of S3's answers."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
)
from hypothesis import given
from hypothesis import strategies as st

from strata_tier.store.drivers.bodies import parts_in
from strata_tier.store.drivers.listing import FolderEntry, listing
from strata_tier.store.drivers.s3_errors import UploadGoneError, translated
from strata_tier.store.ports import (
    Body,
    CorruptTransferError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectPage,
    ObjectTooShortError,
    RefusedError,
    StoreError,
    StoreFullError,
    StoreMissingError,
    StoreTimeoutError,
    StoreUnavailableError,
    ThrottledError,
    parts_of,
)

PART = 10

segments = st.text("ab-.0", min_size=1, max_size=2).filter(lambda text: not text.startswith("."))
keys = st.lists(segments, min_size=1, max_size=4).map(lambda parts: "/".join(parts) + ".x")


def page_of(all_keys: set[str], prefix: str, after: str, limit: int) -> ObjectPage:
    """A page of a tree that holds these keys; whole folders, as a file system lists them."""

    def children(folder: str) -> list[FolderEntry]:
        names = {key[len(folder) :] for key in all_keys if key.startswith(folder)}
        files = [FolderEntry(name, 1, 0) for name in names if "/" not in name]
        folders = {name.split("/")[0] for name in names if "/" in name}
        return [
            *files,
            *(FolderEntry(name, None, 0) for name in folders),
            FolderEntry(".mark", 1, 0),
        ]

    steps = listing(prefix, after, limit)
    folder = next(steps)
    while True:
        try:
            folder = steps.send(children(folder))
        except StopIteration as end:
            page: ObjectPage = end.value
            return page


@given(st.sets(keys, max_size=12), st.text("ab-./0", max_size=4), keys, st.integers(1, 5))
def test_a_tree_is_listed_as_a_flat_store_would(
    all_keys: set[str], prefix: str, after: str, limit: int
) -> None:
    """The page of any folders is what sorting all keys gives, and says where to go on."""
    wanted = sorted(key for key in all_keys if key.startswith(prefix) and key > after)
    page = page_of(all_keys, prefix, after, limit)
    assert [info.key for info in page.objects] == wanted[:limit]
    assert page.next_after == (wanted[limit - 1] if len(wanted) > limit else None)


@given(st.lists(st.binary(max_size=25), max_size=6), st.booleans())
async def test_parts_are_the_body(pieces: list[bytes], as_source: bool) -> None:
    """Parts join to the body; all but the last are full; there is at least one."""
    whole = b"".join(pieces)
    body: Body = parts_of(pieces) if as_source else whole
    parts = [part.joined() async for part in parts_in(body, PART, len(whole))]
    assert b"".join(parts) == whole
    assert parts
    assert all(len(part) == PART for part in parts[:-1])
    assert len(parts[-1]) <= PART
    assert parts[-1] or len(parts) == 1


@given(st.lists(st.binary(max_size=25), max_size=6), st.integers(0, 100))
async def test_a_wrong_size_is_found_before_the_last_part(
    pieces: list[bytes], promised: int
) -> None:
    """A source of another length fails while at least its last part is still held back."""
    whole = b"".join(pieces)
    given_out: list[bytes] = []
    try:
        async for part in parts_in(parts_of(pieces), PART, promised):
            given_out.append(part.joined())  # noqa: PERF401 - what came before an error counts
    except ValueError:
        assert promised != len(whole)
        assert not whole or len(b"".join(given_out)) < len(whole)
    else:
        assert promised == len(whole)


def answer(status: int, code: str) -> ClientError:
    """An error as boto3 raises it."""
    response: Any = {
        "Error": {"Code": code, "Message": "said so"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(response, "GetObject")


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "NoSuchKey", ObjectNotFoundError),
        (404, "404", ObjectNotFoundError),
        (404, "NoSuchBucket", StoreMissingError),
        (404, "NoSuchUpload", UploadGoneError),
        (404, "XAdminUserNotFound", RefusedError),
        (403, "AccessDenied", RefusedError),
        (403, "403", RefusedError),
        (400, "ExpiredToken", RefusedError),
        (301, "PermanentRedirect", RefusedError),
        (412, "PreconditionFailed", ObjectExistsError),
        (416, "InvalidRange", ObjectTooShortError),
        (400, "BadDigest", CorruptTransferError),
        (400, "RequestTimeout", StoreTimeoutError),
        (503, "SlowDown", ThrottledError),
        (429, "anything", ThrottledError),
        (503, "ServiceUnavailable", StoreUnavailableError),
        (500, "InternalError", StoreUnavailableError),
        (507, "", StoreFullError),
        (400, "SomethingNew", StoreUnavailableError),
    ],
)
def test_answers_of_s3(status: int, code: str, kind: type[StoreError]) -> None:
    """Each answer has one meaning; what nobody knows is unavailable, never "not there"."""
    error = translated(answer(status, code), "s3://bucket", "key.x")
    assert type(error) is kind
    assert str(error) == f"s3://bucket: key.x: {status} {code} said so".replace("  ", " ")


def test_failures_of_boto3() -> None:
    """Failures before an answer came are told apart too."""
    url = "http://127.0.0.1:1"
    failures = {
        StoreTimeoutError: ConnectTimeoutError(endpoint_url=url),
        StoreUnavailableError: EndpointConnectionError(endpoint_url=url),
        RefusedError: NoCredentialsError(),
    }
    for kind, failure in failures.items():
        assert type(translated(failure, "s3://bucket", "")) is kind
