"""The hot calls of one turn of the event loop, handed to who serves them."""

from __future__ import annotations

from collections.abc import Sequence

from strata_broker.plugins import TakesSends
from strata_broker.receives.ack import ACK, Acknowledger
from strata_broker.receives.receive import RECEIVE, Receiver
from strata_broker.sends.send import SEND, Sender
from strata_edge.ports import HotCall


class HotCalls:
    """The `HotHandler` that a broker gives to its edge.

    Acks go first: they free what sends and receives wait for (rule 15).
    """

    def __init__(
        self,
        sender: Sender,
        receiver: Receiver,
        acknowledger: Acknowledger,
        plugins: Sequence[TakesSends] = (),
    ) -> None:
        self._plugins = tuple(plugins)
        self._sender = sender
        self._receiver = receiver
        self._acknowledger = acknowledger

    def handle(self, calls: Sequence[HotCall]) -> None:
        """See `ports.HotHandler`."""
        for call in calls:
            if call.method == ACK:
                self._acknowledger.take(call)
        for call in calls:
            if call.method == SEND:
                if not any(plugin.takes_send(call) for plugin in self._plugins):
                    self._sender.take(call)
            elif call.method == RECEIVE:
                self._receiver.take(call)
