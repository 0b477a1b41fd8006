"""The whole cluster: control plane, nodes, volumes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kubernetes.rig import network
from tests.kubernetes.rig.control import Control
from tests.kubernetes.rig.images import pause_image
from tests.kubernetes.rig.nodes import Node, panic_settings, restore_panic
from tests.kubernetes.rig.volumes import Volumes

ZONES = ("a", "b", "c")


class Rig:
    """A cluster with a node in each zone.

    Args:
        folder: for everything that it writes; emptied at first.
        images: archives that each node gets.
    """

    def __init__(self, folder: Path, images: list[Path]) -> None:
        self.folder = folder
        self.control = Control(folder / "rig", in_namespace=True)
        self.volumes = Volumes(self.control, folder / "volumes")
        pause = pause_image(folder.parent)
        self.nodes = [
            Node(self.control, number, zone, [pause, *images]) for number, zone in enumerate(ZONES)
        ]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run inside the block; nothing is left afterwards."""
        before = panic_settings()
        try:
            self.start()
            yield
        finally:
            self.stop()
            restore_panic(before)

    def start(self) -> None:
        """Start all parts and wait for the nodes."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        network.make_control()
        self.control.start_server()
        self.control.start_controllers()
        self.volumes.start()
        for node in self.nodes:
            node.start([other.number for other in self.nodes[: node.number]])
        for node in self.nodes:
            node.wait()

    def stop(self) -> None:
        """Stop all parts and remove the namespaces."""
        for node in self.nodes:
            node.stop()
        self.volumes.stop()
        self.control.stop()
        network.remove(network.CONTROL)
