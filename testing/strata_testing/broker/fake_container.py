"""A container's service on a broker under test, with no member in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strata.admin.v1 import container_pb2
from strata_broker.access.principals import Principal
from strata_broker.base.failures import Methods
from strata_broker.servicers import container_rpc
from strata_broker.servicers.plugins import PluginParts
from strata_edge.ports import CallError, HotCall


class EmptyContainer:
    """A `container_rpc.MemberControl` that knows no member and no file."""

    async def add(self, config_path: str) -> container_pb2.ContainerMember:
        """See `MemberControl`."""
        raise CallError("INVALID_ARGUMENT", f"{config_path}: No such file or directory")

    async def remove(self, name: str) -> None:
        """See `MemberControl`."""
        raise CallError("NOT_FOUND", f"there is no member {name!r}")

    def list(self) -> Sequence[container_pb2.ContainerMember]:
        """See `MemberControl`."""
        return ()

    def described(self) -> tuple[str, str]:
        """See `MemberControl`."""
        return "", ""

    def config(self, name: str) -> container_pb2.GetMemberConfigResponse:
        """See `MemberControl`."""
        raise CallError("NOT_FOUND", f"there is no member {name!r}")

    async def update(
        self, name: str, values: Mapping[str, str]
    ) -> container_pb2.ContainerMember | None:
        """See `MemberControl`."""
        raise CallError("NOT_FOUND", f"there is no member {name!r}")


class ContainerOnBroker:
    """A `BrokerPlugin` that serves it."""

    service = container_rpc.SERVICE
    marks = ()

    def register(self, edge: Methods, parts: PluginParts) -> None:
        """See `BrokerPlugin`."""
        servicer = container_rpc.ContainerAdminServicer(EmptyContainer())
        container_rpc.serve(edge, servicer, trail=parts.audit)

    def takes_send(self, call: HotCall, principal: Principal) -> bool:
        """Messages are the broker's."""
        return False

    def end_all(self) -> None:
        """There are no streams."""
