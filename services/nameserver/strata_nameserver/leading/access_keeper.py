"""Keeps what access control needs: a cluster key, and an admin where access is controlled.

The keys of the first admin are in a file before its row is proposed. A nameserver that was killed
in between finds the file and proposes the same keys again; if another nameserver was faster, the
row has other keys, and the file goes. So there is one first admin and one file that tells its keys,
however often nameservers crash. An order to replace a lost key is carried out as any other change,
through the leader, and deleted when the change is applied.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from strata.meta.v1 import meta_pb2
from strata_angelia.ports import AngeliaError
from strata_metadata.errors import MetaRefused
from strata_nameserver.base.admin_keys import (
    AdminKeyFiles,
    AdminKeys,
    delete_keys,
    read_keys,
    write_keys,
)
from strata_nameserver.leading.access import Access
from strata_nameserver.state.machine import MetadataMachine
from strata_runtime.audit import AuditSink
from strata_runtime.clock import Clock
from strata_runtime.errors import ConfigError, one_line
from strata_runtime.logs import AUDIT, get_logger
from strata_runtime.timeouts import Timeout
from strata_state.metadata_keys import MetadataRowKind, kind_range

FIRST_ADMIN = "admin"
"""Name of a first admin whose keys were not given."""

_INTERVAL_S = 1.0

Response = TypeVar("Response", bound=Message)


class CallLeader(Protocol):
    """`strata_metadata.client.MetadataClient.call`."""

    async def __call__(self, rpc: str, request: Message, response_type: type[Response]) -> Response:
        """Call an RPC of MetaService at the nameserver that leads."""


class AccessKeeper:
    """See the module docstring.

    Args:
        machine: rows and leadership.
        access: changes them.
        files: with keys of admins; None: no admin is made.
        call_leader: to another nameserver that leads; None: this process is the whole cluster.
        audit: is told which admins were made.
        clock: time of events.
    """

    def __init__(
        self,
        machine: MetadataMachine,
        access: Access,
        files: AdminKeyFiles | None,
        *,
        call_leader: CallLeader | None,
        audit: AuditSink,
        clock: Clock,
    ) -> None:
        self._machine = machine
        self._access = access
        self._files = files
        self._call_leader = call_leader
        self._audit = audit
        self._clock = clock
        self._may_be_ordered = files is not None
        self._may_be_stale = files is not None
        # Files are read and written in steps that must not meet.
        self._one_step = asyncio.Lock()
        self._told = ""
        self._logger = get_logger("access")

    async def check(self) -> None:
        """Read the given keys of the first admin, if they will be needed.

        Raises:
            ConfigError: they cannot be read.
        """
        files = self._files
        if files is None or files.given is None or not files.is_wanted:
            return
        try:
            if self._admins():
                return
        except MetaRefused:
            # A snapshot was interrupted: another nameserver leads, and has the admin if one does.
            return
        if await asyncio.to_thread(read_keys, files.given) is None:
            raise ConfigError(f"{files.given}: there is no such file (first admin)")

    async def run(self) -> None:
        """Keep what must exist until cancelled."""
        while True:
            try:
                await self.step()
            except (MetaRefused, AngeliaError, ConfigError, OSError) as error:
                self._tell(one_line(error))
            await self._pause()

    async def step(self) -> None:
        """Do what is missing, as far as this nameserver can.

        Raises:
            MetaRefused, AngeliaError: the change was not made.
            ConfigError, OSError: a file cannot be read or written.
        """
        async with self._one_step:
            await self._step()

    async def _step(self) -> None:
        if self._may_be_ordered:
            await self._carry_out_order()
        if self._machine.leading.is_set():
            if not self._machine.speculative.access.cluster_keys:
                await self._access.ensure_cluster_key()
            if self._files is not None and self._files.is_wanted:
                await self._ensure_first_admin(self._files)
        if self._may_be_stale and not self._may_be_ordered:
            await self._delete_stale_file()

    async def _ensure_first_admin(self, files: AdminKeyFiles) -> None:
        if self._machine.speculative.access.admins:
            return
        given = files.given or files.first_admin
        keys = await asyncio.to_thread(read_keys, given)
        if keys is None:
            if files.given is not None:
                raise ConfigError(f"{files.given}: there is no such file (first admin)")
            keys = AdminKeys(FIRST_ADMIN, self._access.new_secret())
            await asyncio.to_thread(write_keys, files.first_admin, keys)
        # Another nameserver may lead by now, and may have made one: the leader decides.
        if await self._access.ensure_admin(keys.access_key, keys.secret_key, unless_any=True):
            self._record("first admin made", keys.access_key)

    async def _carry_out_order(self) -> None:
        """Replace the keys of an admin by those of the order in the data folder."""
        assert self._files is not None, "orders are in a data folder"
        keys = await asyncio.to_thread(read_keys, self._files.recovery)
        if keys is None:
            self._may_be_ordered = False
            return
        if self._machine.leading.is_set():
            await self._access.ensure_admin(keys.access_key, keys.secret_key, unless_any=False)
        elif self._call_leader is not None:
            await _ensure_at_leader(self._call_leader, keys)
        else:
            return
        await asyncio.to_thread(delete_keys, self._files.recovery)
        self._may_be_ordered = False
        self._record("admin recovered", keys.access_key)

    async def _delete_stale_file(self) -> None:
        """Delete keys of a first admin that the admin does not have: another nameserver made it."""
        assert self._files is not None, "the file is in a data folder"
        admins = self._admins()
        if not admins:
            return
        keys = await asyncio.to_thread(read_keys, self._files.first_admin)
        if keys is not None:
            user = admins.get(keys.access_key, meta_pb2.User())
            if keys.secret_key not in (user.secret_key, user.previous_secret_key):
                await asyncio.to_thread(delete_keys, self._files.first_admin)
                self._logger.warning(
                    "keys of a first admin are not valid: file deleted",
                    file=str(self._files.first_admin),
                )
        self._may_be_stale = False

    async def _pause(self) -> None:
        """Wait for a while, or until this nameserver leads."""
        if self._machine.leading.is_set():
            await asyncio.sleep(_INTERVAL_S)
            return
        with suppress(TimeoutError):
            async with Timeout(_INTERVAL_S):
                await self._machine.leading.wait()

    def _admins(self) -> dict[str, meta_pb2.User]:
        """Return the enabled admins of the applied rows, also where another nameserver leads.

        Raises:
            MetaRefused: UNAVAILABLE: a snapshot is replacing them, and some may be missing.
        """
        rows = map(meta_pb2.User.FromString, self._machine.rows(*kind_range(MetadataRowKind.USER)))
        return {row.name: row for row in rows if row.admin and not row.disabled}

    def _record(self, event: str, user: str) -> None:
        get_logger(AUDIT).info(event, user=user)
        self._audit.write(
            {
                "time_ms": self._clock.wall_ms(),
                "event": event,
                "outcome": "done",
                "user": user,
                "peer": "",
            }
        )

    def _tell(self, reason: str) -> None:
        """Write down a reason once, not every second."""
        if reason != self._told:
            self._told = reason
            self._logger.warning("access control is not complete", reason=reason)


async def _ensure_at_leader(call: CallLeader, keys: AdminKeys) -> None:
    """Make a user an enabled admin with these keys, by the RPCs of the nameserver that leads."""
    user = meta_pb2.User(name=keys.access_key, secret_key=keys.secret_key, admin=True)
    try:
        create = meta_pb2.CreateUserRequest(user=user)
        await call("CreateUser", create, meta_pb2.CreateUserResponse)
    except MetaRefused as refused:
        if refused.outcome != meta_pb2.META_OUTCOME_ALREADY_EXISTS:
            raise
        mask = ["admin", "disabled", "secret_key"]
        update = meta_pb2.UpdateUserRequest(user=user, update_mask=mask)
        await call("UpdateUser", update, meta_pb2.UpdateUserResponse)
