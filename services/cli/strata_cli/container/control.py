"""Carries out what operators ask of a running container, one change at a time.

A change is written to its file before it is answered, so that the next start has it. A member that
cannot start with a change gets its old file back. A container that stops carries out no change that
waits for its turn, and takes back what an update has written that is not answered.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import SecretStr

from strata.admin.v1 import container_pb2
from strata_cli.container import file_edits, properties
from strata_cli.container.broker_container import BrokerContainer, check_together
from strata_cli.container.config import ContainerConfig, MemberConfig
from strata_cli.container.files import (
    MemberFile,
    is_properties,
    read_container,
    read_member,
)
from strata_cli.container.supervised import SupervisedMember
from strata_edge.ports import CallError
from strata_runtime.blocking import run_to_end
from strata_runtime.config import to_json, to_toml
from strata_runtime.errors import ConfigError
from strata_runtime.files import replace_file
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import RequestTasks
from strata_runtime.timeouts import Timeout

_REMOVE_GRACE_MARGIN_S = 5.0
# That wait for their turn or are carried out.
_MAX_CHANGES = 64
# Keys that would let who may change a container do more than that.
_BY_HAND = frozenset(("container.boot_hook", "node.audit_log", "node.audit_file"))
_SECTIONS_BY_HAND = frozenset(("access_control", "audit"))

Result = TypeVar("Result")


class ContainerControl:
    """See the module docstring; a `strata_broker.servicers.container_rpc.MemberControl`.

    Args:
        container: the members.
        path: of the container's file.
        metrics: changes that failed unexpectedly.
    """

    def __init__(self, container: BrokerContainer, path: Path, metrics: Metrics) -> None:
        self._container = container
        self._path = path
        self._one_at_a_time = asyncio.Lock()
        self._changes = RequestTasks("container change", metrics, max_tasks=_MAX_CHANGES)
        self._stops = False
        self._log = get_logger("container")

    async def add(self, config_path: str) -> container_pb2.ContainerMember:
        """Add the member of a file, and the file's name to the container's file.

        Raises:
            CallError: INVALID_ARGUMENT, ALREADY_EXISTS, FAILED_PRECONDITION, RESOURCE_EXHAUSTED.
        """
        return await self._whole("add", self._add(config_path))

    async def remove(self, name: str) -> None:
        """Drain and remove a member, and its file's name from the container's file.

        Raises:
            CallError: NOT_FOUND, FAILED_PRECONDITION.
        """
        await self._whole("remove", self._remove(name))

    async def update(
        self, name: str, values: Mapping[str, str]
    ) -> container_pb2.ContainerMember | None:
        """Change keys in a file; a member starts again with them, or gets its old file back.

        Raises:
            CallError: INVALID_ARGUMENT, NOT_FOUND, FAILED_PRECONDITION.
        """
        return await self._whole("update", self._update(name, values))

    async def stop(self, grace_s: float) -> None:
        """Begin no further change; the one under way has `grace_s` and is given up then."""
        self._stops = True
        await self._changes.drain(grace_s)
        await self._changes.stop()

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait for the turn of a change.

        Raises:
            CallError: UNAVAILABLE.
        """
        async with self._one_at_a_time:
            if self._stops:
                raise CallError("UNAVAILABLE", "the container stops: ask again when it runs")
            yield

    async def _whole(self, name: str, change: Coroutine[Any, Any, Result]) -> Result:
        """Carry a change out to its end, also if its caller goes away meanwhile."""

        async def carried_out() -> Result | CallError:
            try:
                return await change
            except CallError as refused:
                return refused

        result = await asyncio.shield(self._changes.spawn(name, carried_out()))
        if isinstance(result, CallError):
            raise result
        return result

    async def _add(self, config_path: str) -> container_pb2.ContainerMember:
        if not config_path:
            raise CallError("INVALID_ARGUMENT", "config_path is empty: name the member's file")
        path = self._path.parent / config_path
        async with self._turn():
            file = await self._read(path)
            members = self._container.members
            if any(each.name == file.name for each in members):
                raise CallError("ALREADY_EXISTS", f"the member {file.name} is there already")
            try:
                check_together([*(each.file for each in members), file])
            except ConfigError as error:
                raise CallError("FAILED_PRECONDITION", str(error)) from None
            limit = self._container.config.container.max_members
            if len(members) >= limit:
                raise CallError("RESOURCE_EXHAUSTED", f"the container holds {limit} members")
            member = await self._start(file)
            try:
                await self._write_members([*(each.file.path for each in members), path])
            except (ConfigError, OSError) as error:
                await self._container.remove(file.name, self._grace_s(member))
                raise CallError("FAILED_PRECONDITION", f"{self._path}: {error}") from None
            self._log.warning("member added", member=file.name, file=str(path))
            return described(member)

    async def _remove(self, name: str) -> None:
        async with self._turn():
            member = self._found(name)
            rest = [each.file.path for each in self._container.members if each is not member]
            try:
                await self._write_members(rest)
            except (ConfigError, OSError) as error:
                raise CallError("FAILED_PRECONDITION", f"{self._path}: {error}") from None
            await self._container.remove(name, self._grace_s(member))
            self._log.warning("member removed", member=name)

    def list(self) -> Sequence[container_pb2.ContainerMember]:
        """Return all members."""
        return [described(member) for member in self._container.members]

    def described(self) -> tuple[str, str]:
        """Return the machine's name and the path of the container's file."""
        return self._container.config.cluster.machine, str(self._path)

    def config(self, name: str) -> container_pb2.GetMemberConfigResponse:
        """Return the configuration of a member, or of the container for an empty name.

        Raises:
            CallError: NOT_FOUND.
        """
        if not name:
            config: ContainerConfig | MemberConfig = self._container.config
            path = self._path
        else:
            file = self._found(name).file
            config, path = file.config, file.path
        return container_pb2.GetMemberConfigResponse(
            text=to_toml(config), json=to_json(config), config_path=str(path)
        )

    async def _update(
        self, name: str, values: Mapping[str, str]
    ) -> container_pb2.ContainerMember | None:
        if not values:
            raise CallError("INVALID_ARGUMENT", "no key is given: write section.key=value")
        async with self._turn():
            if not name:
                await self._update_own(values)
                return None
            member = self._found(name)
            path = member.file.path
            before = await asyncio.to_thread(path.read_text, "utf-8")
            await self._edit(path, before, values, MemberConfig)
            try:
                file = await self._read(path)
                _check_change(file, name, values)
                return described(await self._restarted(member, file))
            except BaseException:
                try:
                    await self._put_back(path, before)
                finally:
                    await self._again(member.file)
                raise

    async def _put_back(self, path: Path, before: str) -> None:
        """Write a file as it was before a change.

        Raises:
            CallError: FAILED_PRECONDITION.
        """
        try:
            await run_to_end(partial(replace_file, path, before.encode()))
        except OSError as error:
            raise CallError(
                "FAILED_PRECONDITION", f"{path} still has the change: {error.strerror}"
            ) from error

    async def _again(self, before: MemberFile) -> None:
        """Start a member that could not start with a change as it was before."""
        if self._stops or any(each.name == before.name for each in self._container.members):
            return
        await self._container.add(before)

    async def _update_own(self, values: Mapping[str, str]) -> None:
        if any(key in ("container.members", "brokerConfigPaths") for key in values):
            raise CallError("INVALID_ARGUMENT", "members are added and removed, one by one")
        before = await asyncio.to_thread(self._path.read_text, "utf-8")
        await self._edit(self._path, before, values, ContainerConfig)
        try:
            await asyncio.to_thread(read_container, self._path, os.environ)
        except ConfigError as error:
            await self._put_back(self._path, before)
            raise CallError("INVALID_ARGUMENT", str(error)) from None
        except BaseException:
            await self._put_back(self._path, before)
            raise

    async def _restarted(self, member: SupervisedMember, file: MemberFile) -> SupervisedMember:
        await self._container.remove(member.name, self._grace_s(member))
        return await self._start(file)

    async def _start(self, file: MemberFile) -> SupervisedMember:
        """Start a member; one that fails at once is taken out again."""
        member = await self._container.add(file)
        timeout_s = self._container.config.container.max_start_wait_ms / 1_000
        try:
            async with Timeout(timeout_s):
                serves = await member.attempted()
        except TimeoutError:
            # A storage node waits for a nameserver as long as it takes: it is not refused for that.
            return member
        if serves:
            return member
        reason = member.failure
        await self._container.remove(file.name, self._grace_s(member))
        raise CallError("FAILED_PRECONDITION", f"the member {file.name} does not start: {reason}")

    async def _read(self, path: Path) -> MemberFile:
        try:
            return await asyncio.to_thread(read_member, path, self._container.config)
        except ConfigError as error:
            raise CallError("INVALID_ARGUMENT", str(error)) from None

    def _found(self, name: str) -> SupervisedMember:
        found = next((each for each in self._container.members if each.name == name), None)
        if found is None:
            names = ", ".join(each.name for each in self._container.members) or "none"
            raise CallError("NOT_FOUND", f"there is no member {name!r}; there are: {names}")
        return found

    async def _write_members(self, paths: Sequence[Path]) -> None:
        """Write which members there are, after the files' names in the container's file."""
        folder = self._path.parent
        names = [
            str(path.relative_to(folder) if path.is_relative_to(folder) else path) for path in paths
        ]
        text = await asyncio.to_thread(self._path.read_text, "utf-8")
        if is_properties(self._path):
            if odd := next((name for name in names if ":" in name), None):
                raise ConfigError(f"{odd}: brokerConfigPaths cannot hold a path with a colon")
            edited = file_edits.with_property(text, "brokerConfigPaths", ":".join(names))
        else:
            edited = file_edits.with_toml_key(text, "container", "members", names)
        await asyncio.to_thread(replace_file, self._path, edited.encode())

    async def _edit(
        self,
        path: Path,
        text: str,
        values: Mapping[str, str],
        model: type[ContainerConfig | MemberConfig],
    ) -> None:
        """Write keys to a file; a cancelled call leaves it as it was.

        Raises:
            CallError: INVALID_ARGUMENT, or FAILED_PRECONDITION if the file cannot be written.
        """
        edited = text
        try:
            for name, value in sorted(values.items()):
                edited = edited_text(path, edited, name, value, model)
            await run_to_end(partial(replace_file, path, edited.encode()))
        except asyncio.CancelledError:
            await self._put_back(path, text)
            raise
        except ConfigError as error:
            raise CallError("INVALID_ARGUMENT", f"{path}: {error}") from None
        except OSError as error:
            raise CallError("FAILED_PRECONDITION", f"{path}: {error.strerror}") from None

    def _grace_s(self, member: SupervisedMember) -> float:
        return member.file.config.node.drain_ms / 1_000 + _REMOVE_GRACE_MARGIN_S


def described(member: SupervisedMember) -> container_pb2.ContainerMember:
    """Return a member as operators see it."""
    section, (used_bytes, quota_bytes) = member.file.config.member, member.disk_bytes()
    return container_pb2.ContainerMember(
        name=member.name,
        role=section.role,
        state=member.state,
        failure=member.failure,
        restarts=member.restarts,
        config_path=str(member.file.path),
        data_dir=str(section.data_dir),
        added_ms=member.added_ms,
        used_bytes=used_bytes,
        quota_bytes=quota_bytes,
        shown={key: str(value) for key, value in member.shown.items() if key != "data"},
    )


def edited_text(
    path: Path, text: str, name: str, value: str, model: type[ContainerConfig | MemberConfig]
) -> str:
    """Return the text of a file in which a key has a value.

    Raises:
        ConfigError: there is no such key, or it holds a secret.
    """
    section, _, key = name.partition(".")
    known = {**properties.NAMES[0], **properties.NAMES[1], "listenPort": ("node", "")}
    if is_properties(path) and name in known:
        return file_edits.with_property(text, name, value)
    field = model.model_fields.get(section)
    fields: Mapping[str, Any] = getattr(field.annotation, "model_fields", {}) if field else {}
    if key not in fields:
        raise ConfigError(f"{name}: there is no such key: write section.key=value")
    if name in _BY_HAND or section in _SECTIONS_BY_HAND:
        raise ConfigError(f"{name} decides who may do what: write it to the file by hand")
    if fields[key].annotation is SecretStr or "SecretStr" in str(fields[key].annotation):
        raise ConfigError(f"{name} is a secret: write it to the file by hand")
    if is_properties(path):
        return file_edits.with_property(text, name, value)
    return file_edits.with_toml_key(text, section, key, file_edits.value_of(value))


def _without_effect(file: MemberFile, values: Mapping[str, str]) -> str:
    """Return a changed key that has no effect in a member's file; empty: there is none."""
    names = {"namesrvAddr": "cluster.nameservers"}
    return next((each for each in values if names.get(each, each) in file.ignored), "")


def _check_change(file: MemberFile, name: str, values: Mapping[str, str]) -> None:
    """Refuse a change that renames a member, or that has no effect.

    Raises:
        CallError: INVALID_ARGUMENT.
    """
    if file.name != name:
        raise CallError(
            "INVALID_ARGUMENT", f"the name {name} is fixed: remove the member and add another one"
        )
    lost = _without_effect(file, values)
    if lost:
        raise CallError(
            "INVALID_ARGUMENT", f"{lost} is the container's own: change the container's file"
        )
