"""Where this broker is among the brokers behind the names of the remoting protocol."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.remoting.addresses import RemotingAddresses, broker_names
from strata_runtime.timeouts import Timeout


@dataclass(frozen=True, slots=True)
class AdminPlaces:
    """See the module docstring.

    Attributes:
        view: knows topics and consumer groups.
        addresses: of the brokers.
        cluster_name: in routes.
        patience_s: how long this broker may take to see what another one has made.
    """

    view: MetadataView
    addresses: RemotingAddresses
    cluster_name: str
    patience_s: float

    def names_here(self) -> Container[str]:
        """Return the broker names that this broker is behind (see `broker_name_of`).

        Tools ask every broker for its topics and add up what they get.
        """
        own = self.addresses.own
        return frozenset(name for name in broker_names() if self.addresses.of(name) == own)

    async def new_topic(self, name: str) -> TopicRow | None:
        """Wait for a topic that another broker has made; None: it is not seen in time."""
        view = self.view
        try:
            async with Timeout(self.patience_s):
                while self.topic(name) is None:
                    await view.wait_for_revision(view.revision + 1, self.patience_s)
        except TimeoutError:
            return None
        return self.topic(name)

    def topic(self, name: str) -> TopicRow | None:
        """Return a topic that remoting clients can see; None: there is none."""
        topic = self.view.topic("", name)
        return None if topic is None or topic.is_table else topic
