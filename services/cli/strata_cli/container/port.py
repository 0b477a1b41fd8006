"""The container's port for operators: `ContainerService`, with the cluster's access control.

It follows the metadata for the users and policies in it, like a broker. Without any member the
container can be told to add one.
"""

from __future__ import annotations

from pathlib import Path

from strata_angelia.cluster_id import ClusterId
from strata_broker.access.authentication import Authenticator
from strata_broker.access.guard import GuardedMethods
from strata_broker.access.handle_signer import HandleSigner
from strata_broker.base.audit import AuditRecorder, LogSink
from strata_broker.base.failures import ContainingEdge
from strata_broker.base.metrics import METRICS
from strata_broker.metadata.metadata import MetadataView
from strata_broker.servicers import container_rpc
from strata_cli.container.config import ContainerConfig
from strata_cli.container.control import ContainerControl
from strata_cli.processes.edge_options import edge_options
from strata_cli.processes.edges import operator_options
from strata_edge.choice import choose_edge
from strata_metadata.channels import ChannelFactory
from strata_metadata.follower import MetadataFollower, MetadataSources
from strata_runtime.closing import close_all
from strata_runtime.listening import endpoint_of, is_loopback
from strata_runtime.metrics import Metrics
from strata_runtime.runtime import Runtime
from strata_runtime.tasks import RequestTasks, Tasks

# For the change under way when the container stops; members need the rest of the time.
_CHANGE_GRACE_S = 3.0


class ContainerPort:
    """See the module docstring; a `Service`.

    Args:
        config: of the container.
        control: carries out what operators ask.
        tls_folder: where a self-signed certificate is kept.
        open_channel: makes a channel to a nameserver.
        cluster: of all members.
        runtime: what the process gives it.

    Raises:
        ConfigError: the port cannot be as it is configured.
    """

    name = "container port"

    def __init__(
        self,
        config: ContainerConfig,
        control: ContainerControl,
        tls_folder: Path,
        *,
        open_channel: ChannelFactory,
        cluster: ClusterId,
        runtime: Runtime,
    ) -> None:
        clock, metrics = runtime.clock, runtime.metrics
        metrics.declare(METRICS)
        self._host = config.node.admin_host
        if is_loopback(self._host):
            # Nobody needs a certificate for a plaintext port.
            config = config.with_flags(edge={"tls": False, "tls_only": False})
        clients = edge_options(config, tls_folder, config.node.host)
        self._edge = choose_edge(
            config.edge.adapter, operator_options(config, clients), Metrics.disabled()
        )
        self._tasks = Tasks("container port", runtime.on_fatal)
        self._requests = RequestTasks("container port", metrics)
        view = MetadataView()
        trail = AuditRecorder((LogSink(), runtime.audit), config.audit, clock, metrics=metrics)
        access = Authenticator(view, config.access_control, clock, audit=trail, metrics=metrics)
        handles = HandleSigner(view, config.access_control, clock)
        self._follower = MetadataFollower(
            MetadataSources(config.cluster.nameservers, open_channel),
            view,
            options=config.metadata_follower(),
            clock=clock,
            random=runtime.random,
            metrics=metrics,
            cluster=cluster,
        )
        self._control = control
        self._needs_users = config.access_control.is_on
        methods = GuardedMethods(
            ContainingEdge(self._edge, self._requests), access, view, handles=handles
        )
        container_rpc.serve(methods, container_rpc.ContainerAdminServicer(control), trail=trail)
        self.endpoint = ""

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the port cannot be listened on.
        """
        if self._needs_users:
            self._tasks.spawn("follow metadata", self._follower.run())
        self.endpoint = endpoint_of(self._host, await self._edge.start())

    async def stop(self, grace_s: float) -> None:
        """Serve no longer; no change is under way afterwards."""
        await close_all(
            self.name,
            lambda: self._edge.stop(min(grace_s, 1.0)),
            lambda: self._control.stop(min(grace_s, _CHANGE_GRACE_S)),
            self._requests.stop,
            self._tasks.stop,
        )
