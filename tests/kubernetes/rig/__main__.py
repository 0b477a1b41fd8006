"""Keep a cluster running until Ctrl-C: python -m tests.kubernetes.rig FOLDER [IMAGE.tar...]."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from pathlib import Path

from tests.kubernetes.rig.binaries import missing
from tests.kubernetes.rig.cluster import Rig


def main() -> None:
    """Run it."""
    if reason := missing(pods=True):
        sys.exit(reason)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder, *images = map(Path, sys.argv[1:])
    rig = Rig(folder.absolute(), [image.absolute() for image in images])
    with suppress(KeyboardInterrupt), rig.running():
        print(f"kubectl --kubeconfig={rig.control.kubeconfig}, in netns strata-k8s", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
