"""`strata container`: runs brokers and storage nodes in one process, and changes it meanwhile."""

# ruff: noqa: D417

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from strata.admin.v1 import container_pb2, container_pb2_grpc
from strata_cli.client import AdminClient, connect
from strata_cli.commands.run import LogLevel
from strata_cli.errors import UsageError
from strata_cli.options import COMMON, Common, Unused
from strata_cli.output import show
from strata_cli.views import View

MemberName = Annotated[str, Parameter(help="Name of the member: Cluster_Broker_Id.")]

# A change waits for a member that drains, and for one that starts.
_CHANGE_S = 60.0
_COLUMNS = (
    "member",
    "role",
    "state",
    "restarts",
    "ports",
    "used_bytes",
    "quota_bytes",
    "data",
    "failure",
)

app = App(name="container")


@app.default
def container(
    *,
    config: Path,
    nameservers: str | None = None,
    metrics_port: int | None = None,
    log_level: LogLevel | None = None,
    common: Unused = COMMON,
) -> None:
    """Run brokers and storage nodes in one process, each with its own ports and data folder.

    It prints a line that starts with "ready" for each member that serves, and one for itself. A
    member that fails is started again, and the other members serve on. SIGTERM drains and ends all.

    For instance: strata container --config container.toml

    Args:
        config: File of the container: TOML, or properties with the names of RIP-31.
        nameservers: HOST:PORT of all nameservers, separated by commas.
        metrics_port: Port for Prometheus and health of the container and all members.
        log_level: Lowest level that is logged.
    """
    from strata_cli.container.run import run

    overrides: dict[str, dict[str, object]] = {
        "cluster": {"nameservers": nameservers},
        "node": {"metrics_port": metrics_port, "log_level": log_level},
    }
    run(config, overrides)


@app.command(name=["list", "ls"])
def list_(*, common: Common = COMMON) -> None:
    """List the members of a container; --endpoint is the container's (admin= in its ready line).

    For instance: strata container list --endpoint 127.0.0.1:10911 -o json
    """
    with _calling(common) as (client, stub):
        response = client.call(stub.ListMembers, container_pb2.ListMembersRequest())
    members = [_view(member) for member in response.members]
    view = {"container": response.config_path, "machine": response.machine, "members": members}
    show(view, common, rows="members", columns=_COLUMNS)


@app.command
def add(file: str, /, *, common: Common = COMMON) -> None:
    """Add a member to a running container, and to its file: the next start has it, too.

    A member that cannot start is not added, and the command says why.

    For instance: strata container add broker-c.toml --endpoint 127.0.0.1:10911

    Args:
        file: The member's file on the container's machine, relative to the container's file.
    """
    with _calling(common) as (client, stub):
        request = container_pb2.AddBrokerRequest(config_path=file)
        member = client.call(stub.AddBroker, request).member
    show(_view(member), common)


@app.command
def remove(name: MemberName, /, *, common: Common = COMMON) -> None:
    """Drain and remove a member from a running container and from its file; its data stays.

    For instance: strata container remove DefaultCluster_broker-c_0 --endpoint 127.0.0.1:10911
    """
    with _calling(common) as (client, stub):
        client.call(stub.RemoveBroker, container_pb2.RemoveBrokerRequest(name=name))
    show({"removed": name}, common)


@app.command(name="get-config")
def get_config(name: str = "", /, *, common: Common = COMMON) -> None:
    """Show the configuration in force of a member or of the container, secrets masked.

    For instance: strata container get-config DefaultCluster_broker-a_0

    Args:
        name: Name of the member; none: the container's own.
    """
    import json

    with _calling(common) as (client, stub):
        request = container_pb2.GetMemberConfigRequest(name=name)
        response = client.call(stub.GetMemberConfig, request)
    if common.for_programs:
        show(json.loads(response.json), common)
    else:
        print(response.text.rstrip())


@app.command(name="update-config")
def update_config(*changes: str, member: str = "", common: Common = COMMON) -> None:
    """Change keys in the file of a member, which starts again with them, or of the container.

    A member that cannot start with a change gets its old file back. The container has a change of
    its own file at its next start.

    For instance: strata container update-config storage.max_waiters=500 --member Cluster_s1_0

    Args:
        changes: SECTION.KEY=VALUE, or a name of RIP-31's in a properties file.
        member: Name of the member; none: the container itself.
    """
    values: dict[str, str] = {}
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals or not key:
            raise UsageError(f"{change}: write SECTION.KEY=VALUE")
        values[key] = value
    with _calling(common) as (client, stub):
        request = container_pb2.UpdateMemberConfigRequest(name=member, values=values)
        response = client.call(stub.UpdateMemberConfig, request)
    if response.HasField("member"):
        show(_view(response.member), common)
    else:
        show({"changed": sorted(values), "in_force": "at the next start"}, common)


@contextmanager
def _calling(
    common: Common,
) -> Iterator[tuple[AdminClient, container_pb2_grpc.ContainerServiceStub]]:
    with connect(common) as client:
        client.timeout_s = max(client.timeout_s, _CHANGE_S)
        yield client, container_pb2_grpc.ContainerServiceStub(client.channel)


def _view(member: container_pb2.ContainerMember) -> View:
    shown = dict(member.shown)
    ports = ", ".join(f"{key} {shown[key]}" for key in ("grpc", "storage", "admin") if key in shown)
    return {
        "member": member.name,
        "role": member.role,
        "state": member.state,
        "restarts": member.restarts,
        "ports": ports,
        "node": shown.get("node", ""),
        "used_bytes": member.used_bytes,
        "quota_bytes": member.quota_bytes,
        "data": member.data_dir,
        "config": member.config_path,
        "added_ms": member.added_ms,
        "failure": member.failure,
    }
