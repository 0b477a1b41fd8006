"""URLs of object stores."""

from __future__ import annotations

import pytest

from strata_runtime.errors import ConfigError
from strata_tier.store.opening import OpenWith, open_store
from strata_tier.store.ports import check_key
from strata_tier.store.url import parse


@pytest.mark.parametrize(
    ("text", "scheme", "host", "path", "options", "name"),
    [
        ("posix:///var/tier", "posix", "", "/var/tier", {}, "posix:///var/tier"),
        ("posix:///var/tier/", "posix", "", "/var/tier", {}, "posix:///var/tier"),
        ("posix:///t?existing=true", "posix", "", "/t", {"existing": "true"}, "posix:///t"),
        ("memory://tests", "memory", "tests", "", {}, "memory://tests"),
        ("hdfs://nn:8020/a/b", "hdfs", "nn:8020", "a/b", {}, "hdfs://nn:8020/a/b"),
        (
            "s3://bucket/pre/fix?endpoint=http://127.0.0.1:9000&region=eu-1",
            "s3",
            "bucket",
            "pre/fix",
            {"endpoint": "http://127.0.0.1:9000", "region": "eu-1"},
            "s3://bucket/pre/fix",
        ),
        ("gs://bucket", "gs", "bucket", "", {}, "gs://bucket"),
    ],
)
def test_parts(
    text: str, scheme: str, host: str, path: str, options: dict[str, str], name: str
) -> None:
    """A URL is taken apart, has a name without options, and its text means the same again."""
    url = parse(text)
    assert (url.scheme, url.host, url.path, url.options) == (scheme, host, path, options)
    assert url.name == name
    assert parse(str(url)) == url


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ftp://host/a", "begins with one of posix://"),
        ("bucket", "begins with one of"),
        ("posix://relative/path", "three slashes"),
        ("posix:///", "three slashes"),
        ("s3:///prefix", "write s3://NAME"),
        ("s3://bucket/a?region=x&speed=9", "has no option speed"),
        ("s3://bucket/a/../b", "the path holds"),
        ("hdfs://nn/a b", "the path holds"),
        ("posix:///var/tier?existing=yes", "existing is true or false"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    """A URL that cannot be meant is refused with the reason."""
    with pytest.raises(ConfigError, match=said):
        parse(text)


def test_secrets_are_refused_and_not_repeated() -> None:
    """Credentials in a URL are an error whose text does not show them."""
    with pytest.raises(ConfigError, match="do not belong") as refused:
        parse("s3://key:hidden@bucket/a")
    assert "hidden" not in str(refused.value)


def test_a_namespace_has_a_folder_of_its_own() -> None:
    """`under` adds one folder, and refuses what could not be one."""
    assert str(parse("s3://b/p?region=r").under("ns-1")) == "s3://b/p/ns-1?region=r"
    assert str(parse("gs://b").under("ns-1")) == "gs://b/ns-1"
    assert str(parse("posix:///var/t").under("ns-1")) == "posix:///var/t/ns-1"
    with pytest.raises(ValueError, match="object key"):
        parse("gs://b").under("a.b")


async def test_memory_is_shared_by_name() -> None:
    """Two stores opened with the same mapping and name see the same objects, others do not."""
    given = OpenWith()
    first = await open_store("memory://one", given)
    await first.put("a.x", b"1")
    assert await (await open_store("memory://one", given)).get("a.x") == b"1"
    assert (await (await open_store("memory://two", given)).list()).objects == ()


async def test_wrong_options_are_refused_when_opening() -> None:
    """A dialect or number that nobody knows ends the start with one line."""
    for text in ("s3://b?dialect=ftp", "hdfs://nn:1/a?replication=many"):
        with pytest.raises(ConfigError):
            await open_store(text)


def test_no_key_is_the_folder_of_another() -> None:
    """No allowed key is a prefix of another at a slash."""
    allowed = ["a.x", "a/b.x", "a/b/c.x", "seg-1/2_3.manifest.json"]
    for key in allowed:
        check_key(key)
    for key in ("a", "a/b", "a.x/b.x", "a" * 201 + ".x", "a/" * 400 + "b.x"):
        with pytest.raises(ValueError, match="object key"):
            check_key(key)
