"""A node that serves remoting clients."""

from tests.e2e.standalone import HOST, Standalone
from tests.parts.ports import free_port


class OldNode(Standalone):
    """A standalone node with a remoting port."""

    def __init__(self, folder: object) -> None:
        self.nameserver = f"{HOST}:{free_port()}"
        port = self.nameserver.rpartition(":")[2]
        super().__init__(folder, options=("--remoting-port", port))  # type: ignore[arg-type]
