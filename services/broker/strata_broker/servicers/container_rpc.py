"""Serves `strata.admin.v1.ContainerService` on an edge: bytes in, bytes out.

The container itself carries the calls out; it is above this layer and comes as `MemberControl`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from strata.admin.v1 import container_pb2
from strata_broker.base.audit import AuditTrail
from strata_broker.base.failures import Methods
from strata_broker.servicers import admin_rpc

_SERVICE = container_pb2.DESCRIPTOR.services_by_name["ContainerService"]
SERVICE: str = _SERVICE.full_name


class MemberControl(Protocol):
    """Carries out what operators ask of a container; every method may raise `CallError`."""

    async def add(self, config_path: str) -> container_pb2.ContainerMember:
        """Add the member of a file; the container's file has it, too."""

    async def remove(self, name: str) -> None:
        """Drain and remove a member, also from the container's file."""

    def list(self) -> Sequence[container_pb2.ContainerMember]:
        """Return all members."""

    def described(self) -> tuple[str, str]:
        """Return the machine's name and the path of the container's file."""

    def config(self, name: str) -> container_pb2.GetMemberConfigResponse:
        """Return the configuration of a member, or of the container for an empty name."""

    async def update(
        self, name: str, values: Mapping[str, str]
    ) -> container_pb2.ContainerMember | None:
        """Change keys of a member's file, or of the container's for an empty name."""


class ContainerAdminServicer:
    """The methods of the service; it translates and decides nothing."""

    def __init__(self, control: MemberControl) -> None:
        self._control = control

    async def add_broker(
        self, request: container_pb2.AddBrokerRequest
    ) -> container_pb2.AddBrokerResponse:
        """Add a member."""
        return container_pb2.AddBrokerResponse(member=await self._control.add(request.config_path))

    async def remove_broker(
        self, request: container_pb2.RemoveBrokerRequest
    ) -> container_pb2.RemoveBrokerResponse:
        """Remove a member."""
        await self._control.remove(request.name)
        return container_pb2.RemoveBrokerResponse()

    async def list_members(
        self, _: container_pb2.ListMembersRequest
    ) -> container_pb2.ListMembersResponse:
        """List the members."""
        machine, path = self._control.described()
        return container_pb2.ListMembersResponse(
            members=self._control.list(), machine=machine, config_path=path
        )

    async def get_member_config(
        self, request: container_pb2.GetMemberConfigRequest
    ) -> container_pb2.GetMemberConfigResponse:
        """Show a configuration."""
        return self._control.config(request.name)

    async def update_member_config(
        self, request: container_pb2.UpdateMemberConfigRequest
    ) -> container_pb2.UpdateMemberConfigResponse:
        """Change a configuration."""
        member = await self._control.update(request.name, request.values)
        return container_pb2.UpdateMemberConfigResponse(member=member)


def serve(edge: Methods, servicer: object, *, trail: AuditTrail) -> None:
    """Serve every RPC by the method of its name; changes are told to `trail`.

    Raises:
        TypeError: an RPC has no method.
    """
    admin_rpc.serve_service(_SERVICE, edge, servicer, trail=trail)
