"""Puts the parts of a receive together."""

from __future__ import annotations

from strata_broker.access.call_runtime import CallRuntime
from strata_broker.clients.provision import Provisioner
from strata_broker.clients.sessions import Sessions
from strata_broker.metadata.filters import Filters
from strata_broker.receives.deliver import Deliverer
from strata_broker.receives.deliverable import DeliverableLooks
from strata_broker.receives.lite_consumers import LiteConsumers
from strata_broker.receives.lite_popper import LitePopper
from strata_broker.receives.popper import Popper
from strata_broker.receives.pops import Pops
from strata_broker.receives.pulls import Puller
from strata_broker.receives.receive import Receiver
from strata_broker.receives.serving_order import ServingOrders
from strata_broker.receives.takebacks import Takebacks
from strata_broker.receives.unclaimed import Unclaimed
from strata_broker.receives.waiting_room import WaitingRoom
from strata_broker.storage_client.holder_calls import HolderCalls
from strata_broker.storage_client.storage_tier import StorageTier


def new_puller(
    provisioner: Provisioner,
    storage: StorageTier,
    filters: Filters,
    *,
    sessions: Sessions,
    store_host: str,
    runtime: CallRuntime,
) -> Puller:
    """Return what serves PullMessage and the calls about offsets."""
    return Puller(
        provisioner,
        storage.client,
        reads=storage.reads,
        holders=_holders(provisioner, storage, runtime),
        filters=filters,
        sessions=sessions,
        store_host=store_host,
        runtime=runtime,
    )


def new_deliverable_looks(
    boot_id: int,
    provisioner: Provisioner,
    storage: StorageTier,
    room: WaitingRoom,
    runtime: CallRuntime,
) -> DeliverableLooks:
    """Return what looks whether something can be popped, and waits in the lines of receives."""
    return DeliverableLooks(
        boot_id,
        provisioner.view,
        _holders(provisioner, storage, runtime),
        room=room,
        check_s=runtime.config.remoting.notification_check_ms / 1000,
        clock=runtime.clock,
    )


def _holders(provisioner: Provisioner, storage: StorageTier, runtime: CallRuntime) -> HolderCalls:
    timeout_s = runtime.config.metadata.call_timeout_ms / 1000
    return HolderCalls(provisioner.view, storage.client, runtime.clock, timeout_s=timeout_s)


def new_receiver(
    boot_id: int,
    provisioner: Provisioner,
    storage: StorageTier,
    deliverer: Deliverer,
    filters: Filters,
    sessions: Sessions,
    unclaimed: Unclaimed,
    lite_consumers: LiteConsumers,
    runtime: CallRuntime,
) -> Receiver:
    """Return what serves ReceiveMessage."""
    config = runtime.config
    timeout_s = config.calls.max_timeout_ms / 1000
    pops = Pops(
        Popper(
            provisioner.view,
            storage.client,
            WaitingRoom(
                storage.quiet, config.receive, clock=runtime.clock, metrics=runtime.metrics
            ),
            orders=ServingOrders(config.receive, runtime.metrics),
            lite=LitePopper(
                provisioner.view,
                storage,
                consumers=lite_consumers,
                config=config.lite,
                clock=runtime.clock,
                metrics=runtime.metrics,
            ),
            config=config.receive,
            clock=runtime.clock,
        ),
        storage.reads,
        storage.pop_ender,
        Takebacks(
            deliverer,
            storage.client,
            timeout_s,
            config=config.receive,
            clock=runtime.clock,
            requests=runtime.requests,
            metrics=runtime.metrics,
        ),
        unclaimed,
    )
    return Receiver(
        boot_id,
        provisioner,
        pops,
        deliverer=deliverer,
        filters=filters,
        sessions=sessions,
        runtime=runtime,
    )
