"""Addresses that a resolver may be asked for."""

from __future__ import annotations

import pytest

from strata_runtime.addresses import host_and_port, is_host


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("storage-1:10920", ("storage-1", 10920)),
        ("10.0.0.7:1", ("10.0.0.7", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("my_host.strata.svc.cluster.local:9877", ("my_host.strata.svc.cluster.local", 9877)),
        (f"{'a' * 63}.example:5", (f"{'a' * 63}.example", 5)),
        ("m\u00fcnchen.example:80", ("m\u00fcnchen.example", 80)),
    ],
)
def test_an_address_has_a_host_and_a_port(address: str, parts: tuple[str, int]) -> None:
    assert host_and_port(address) == parts


@pytest.mark.parametrize(
    "address",
    [
        *("", "storage-1", ":10920", "storage-1:", "storage-1:x", "storage-1:0", "a:65536", "a:-1"),
        *("a:\u0661", "a:100000000000", "storage..example:1", ".storage:1", f"{'a' * 64}:1"),
        *("a\0b:1", "a b:1", "a\n:1", "[]:1"),
    ],
)
def test_nothing_else_is_an_address(address: str) -> None:
    """Resolvers raise errors of many kinds for some of them."""
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        host_and_port(address)


def test_a_host_can_be_looked_up() -> None:
    assert is_host("storage-1.strata")
    assert not is_host("storage-1..strata")
    assert not is_host("")
