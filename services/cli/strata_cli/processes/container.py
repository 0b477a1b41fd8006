"""A container: members of a cluster in one process, with add, remove and list.

A member could also be a separate process (a nameserver, a storage node, a broker). Members know
each other only by endpoints of Angelia's in-process transport, so that a container with one of
each is a composition like any other, not a special case inside the services.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from strata_runtime.clock import Clock
from strata_runtime.closing import close_all


class ContainerMember(Protocol):
    """A service that a container can hold; `strata_runtime.lifecycle.Service` is one."""

    @property
    def name(self) -> str:
        """Name among the members."""

    async def start(self) -> None:
        """Return when it serves; a failed start leaves nothing running."""

    async def stop(self, grace_s: float) -> None:
        """End what runs within `grace_s`, free everything."""


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """An entry of `Container.list`."""

    name: str
    kind: str
    since_ms: int


class Container:
    """Holds running members, in the order they were added.

    Args:
        clock: when members were added, and the grace at the end.
        max_members: limit on members.
    """

    def __init__(self, clock: Clock, *, max_members: int = 64) -> None:
        self._clock = clock
        self._max_members = max_members
        self._members: dict[str, tuple[ContainerMember, MemberInfo]] = {}

    async def add(self, kind: str, member: ContainerMember) -> None:
        """Start a member and hold it.

        Raises:
            ValueError: a member of that name is there, or the container is full.
        """
        if member.name in self._members:
            raise ValueError(f"a member named {member.name} is there already")
        if len(self._members) >= self._max_members:
            raise ValueError(f"the container holds {self._max_members} members")
        await member.start()
        info = MemberInfo(member.name, kind, self._clock.wall_ms())
        self._members[member.name] = (member, info)

    async def remove(self, name: str, grace_s: float) -> None:
        """Drain and stop a member; the other members keep running.

        Raises:
            KeyError: there is no such member.
        """
        member, _ = self._members[name]
        # Out of the list first: the list must not show a member that stops.
        del self._members[name]
        await member.stop(grace_s)

    def list(self) -> list[MemberInfo]:
        """Return the members in the order they were added."""
        return [info for _, info in self._members.values()]

    async def close(self, grace_s: float) -> None:
        """Remove all members, the last one first, within `grace_s` together."""
        deadline_s = self._clock.monotonic_s() + grace_s

        def removed(name: str) -> Awaitable[None]:
            return self.remove(name, max(1.0, deadline_s - self._clock.monotonic_s()))

        await close_all("container", *(partial(removed, name) for name in reversed(self._members)))
