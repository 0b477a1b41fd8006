"""The requests of operators' tools, put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from strata_broker.access.call_runtime import CallRuntime
from strata_broker.remoting.admin.audience import AdminAudience
from strata_broker.remoting.admin.broker_info import AdminBrokerInfo
from strata_broker.remoting.admin.connected_producers import ConnectedProducers
from strata_broker.remoting.admin.connections import AdminConnections
from strata_broker.remoting.admin.groups import AdminGroups
from strata_broker.remoting.admin.listing import ResourceListing
from strata_broker.remoting.admin.messages import AdminMessages, StoredMessages
from strata_broker.remoting.admin.operator_face import OperatorFace
from strata_broker.remoting.admin.places import AdminPlaces
from strata_broker.remoting.admin.policies import AdminPolicies
from strata_broker.remoting.admin.progress import AdminProgress
from strata_broker.remoting.admin.queue_entries import AdminQueueEntries
from strata_broker.remoting.admin.refusals import AdminRefusals
from strata_broker.remoting.admin.request_modes import AdminRequestModes
from strata_broker.remoting.admin.resets import AdminResets
from strata_broker.remoting.admin.retry_routes import RetryRoutes
from strata_broker.remoting.admin.running_info import AdminRunningInfo
from strata_broker.remoting.admin.topic_lists import AdminTopicLists
from strata_broker.remoting.admin.topics import AdminTopics
from strata_broker.remoting.admin.users import AdminUsers
from strata_broker.remoting.consumers import RemotingConsumers
from strata_broker.remoting.exchange import Handler
from strata_broker.remoting.members import RemotingMembers
from strata_broker.remoting.routes import RemotingRoutes
from strata_remoting import Store


@dataclass(frozen=True, slots=True)
class AdminParts:
    """Parts of a remoting port that operators' requests work with.

    Attributes:
        face: the broker's handlers for operators.
        places: know topics and this broker.
        members: of consumer groups that are connected here.
        consumers: take heartbeats, which tell operators of producers too.
        routes: of topics.
        store: returns the address that messages name as their store: of this broker.
        host: under which clients reach the broker.
        runtime: configuration, clock and counters.
    """

    face: OperatorFace
    places: AdminPlaces
    members: RemotingMembers
    consumers: RemotingConsumers
    routes: RemotingRoutes
    store: Callable[[], Store]
    host: str
    runtime: CallRuntime


def with_admin(clients: Mapping[int, Handler], parts: AdminParts) -> dict[int, Handler]:
    """Return handlers of clients' requests and of operators' requests, by request code.

    Args:
        clients: handlers of clients' requests.
        parts: of the port.
    """
    face, places, runtime = parts.face, parts.places, parts.runtime
    most = runtime.config.remoting.max_json_bytes
    timeout_s = runtime.config.calls.max_timeout_ms / 1000
    listing = ResourceListing(face, max_frame_bytes=runtime.config.remoting.max_frame_bytes)
    messages = StoredMessages(face, places, store=parts.store, host=parts.host)
    retries = RetryRoutes(parts.routes, places.view, is_checked=runtime.access.is_on)
    producers = ConnectedProducers(runtime.clock)
    for listener in (retries.heard, producers.heard):
        parts.consumers.on_heartbeat(listener)
    return {
        **clients,
        **retries.handlers(),
        **AdminRefusals().handlers(),
        **AdminTopics(face, places, listing, max_json_bytes=most).handlers(),
        **AdminTopicLists(places, listing).handlers(),
        **AdminGroups(face, places, listing, max_json_bytes=most).handlers(),
        **AdminRequestModes(face, places, max_json_bytes=most).handlers(),
        **AdminProgress(face, places, listing, timeout_s=timeout_s).handlers(),
        **AdminResets(face, places).handlers(),
        **AdminAudience(face).handlers(),
        **AdminConnections(face, listing, parts.members, producers=producers).handlers(),
        **AdminRunningInfo(face, places, messages).handlers(),
        **AdminMessages(messages, face, places).handlers(),
        **AdminQueueEntries(face, places, messages).handlers(),
        **AdminBrokerInfo(face, places, runtime.recorder, clock=runtime.clock).handlers(),
        **AdminUsers(face).handlers(),
        **AdminPolicies(face).handlers(),
    }
