"""A connection of the command line is one client: of one user, with subscriptions of its own."""

from __future__ import annotations

from strata_cli.client import AdminClient
from strata_cli.options import Common

NOWHERE = Common(endpoint="127.0.0.1:1")


def client_id(client: AdminClient) -> str:
    return dict(client.metadata())["x-mq-client-id"]


def test_each_connection_has_a_client_id_of_its_own() -> None:
    """A console runs commands of several users in one process; brokers refuse a shared id."""
    one, other = AdminClient(NOWHERE), AdminClient(NOWHERE)
    try:
        assert client_id(one) != client_id(other)
        assert client_id(one).startswith("strata-cli@")
        assert client_id(one) == client_id(one), "its calls belong together"
        in_namespace = one.under(Common(namespace="shop"))
        assert client_id(in_namespace) == client_id(one), "a command over it is the same client"
    finally:
        one.close()
        other.close()
