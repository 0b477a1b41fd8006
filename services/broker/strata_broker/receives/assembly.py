"""Puts the parts of a receive together."""

from __future__ import annotations

from strata_broker.base.config import BrokerConfig
from strata_broker.clients.provision import Provisioner
from strata_broker.clients.sessions import Sessions
from strata_broker.metadata.filters import Filters
from strata_broker.metadata.metadata import MetadataView
from strata_broker.metadata.recorder import Recorder
from strata_broker.receives.deliver import Deliverer
from strata_broker.receives.popper import Popper
from strata_broker.receives.receive import Receiver
from strata_broker.receives.takebacks import Takebacks
from strata_broker.storage_client.storage_tier import StorageTier
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import RequestTasks


def new_receiver(
    boot_id: int,
    view: MetadataView,
    provisioner: Provisioner,
    storage: StorageTier,
    deliverer: Deliverer,
    filters: Filters,
    sessions: Sessions,
    config: BrokerConfig,
    clock: Clock,
    requests: RequestTasks,
    recorder: Recorder,
    metrics: Metrics,
) -> Receiver:
    """Return what serves ReceiveMessage."""
    return Receiver(
        boot_id,
        view,
        provisioner,
        Popper(view, storage.client, config.receive, clock),
        storage.reads,
        deliverer,
        storage.pop_ender,
        Takebacks(deliverer, storage.client, config.calls.max_timeout_ms / 1000, requests, metrics),
        filters,
        sessions,
        config,
        clock,
        requests,
        recorder,
        metrics,
    )
