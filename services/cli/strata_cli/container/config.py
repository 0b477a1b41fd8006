"""Configuration of a container, and of each of its members."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from strata_cli.processes.cluster_config import ClusterConfig
from strata_runtime.config import Section

_MIB = 1024 * 1024


class ContainerSection(Section):
    """The container itself; what its members are is in a file of each."""

    members: tuple[Path, ...] = Field(
        default=(),
        description="Configuration files of the members, relative to the folder of this file.",
    )
    max_members: int = Field(default=64, ge=1, le=256, description="Most members.")
    max_start_wait_ms: int = Field(
        default=15_000,
        ge=0,
        description="Longest time that the container waits for its members before it says that it "
        "is ready; members that are not, go on trying.",
    )
    block_cache_bytes: int = Field(
        default=256 * _MIB,
        ge=_MIB,
        description="Cache of blocks of rows for all storage nodes of the container together.",
    )
    log_dir: Path = Field(
        default=Path("logs"),
        description="Folder with a folder `Cluster_Broker_Id` for the log of each member with "
        "`member.isolate_log`; relative to the folder of this file.",
    )
    max_log_file_bytes: int = Field(
        default=64 * _MIB,
        ge=4_096,
        description="Largest size of such a log; then it is renamed to FILE.1, FILE.1 to FILE.2 "
        "and so on.",
    )
    max_log_files: int = Field(
        default=4, ge=1, le=1_000, description="Most files of each such log that are kept."
    )
    nameservers_from_address_server: bool = Field(
        default=False,
        description="Ask `address_server_url` for the nameservers when the container starts, if "
        "`cluster.nameservers` is empty.",
    )
    address_server_url: str = Field(
        default="",
        description="HTTP address that answers with the nameservers as host:port, separated by "
        "semicolons.",
    )
    boot_hook: tuple[str, ...] = Field(
        default=(),
        description="Program and arguments that run before each start of a member, with the "
        "variables STRATA_HOOK_MEMBER, STRATA_HOOK_ROLE, STRATA_HOOK_CONFIG and "
        "STRATA_HOOK_DATA_DIR; an exit code other than 0 fails that start. Empty: none.",
    )
    boot_hook_timeout_ms: int = Field(
        default=30_000, ge=1, description="Time after which the program is killed."
    )

    @field_validator("members", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """Accept paths separated by colons too, as brokerConfigPaths and variables have them."""
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(":") if part.strip())
        return value


class ContainerConfig(ClusterConfig):
    """The container's own file: a process's sections, for all members, and `[container]`."""

    container: ContainerSection = ContainerSection()


class MemberSection(Section):
    """One member of a container."""

    role: Literal["broker", "storage"] = Field(
        default="broker", description="Kind of the member: a broker or a storage node."
    )
    cluster: str = Field(
        default="DefaultCluster",
        pattern=r"^[A-Za-z0-9.-]+$",
        description="First part of the member's name `Cluster_Broker_Id`, as brokerClusterName.",
    )
    name: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9.-]*$",
        description="Second part of the member's name, as brokerName; required.",
    )
    id: int = Field(default=0, ge=0, description="Third part of the member's name, as brokerId.")
    data_dir: Path = Field(
        default=Path(),
        description="Data folder of the member, relative to the folder of its file; required.",
    )
    isolate_log: bool = Field(
        default=False,
        description="Write the member's log to a folder of its own below `container.log_dir` "
        "instead of the container's log, as isolateLogEnable.",
    )

    @property
    def full_name(self) -> str:
        """Name among the members: `Cluster_Broker_Id`."""
        return f"{self.cluster}_{self.name}_{self.id}"


class MemberConfig(ClusterConfig):
    """A member's own file: the sections of its role, and `[member]`."""

    member: MemberSection = MemberSection()
