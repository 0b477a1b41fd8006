"""`helm test`: the cluster is healthy, and a message that is sent comes back."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

import cluster


def main() -> None:
    """Send and receive one message in a topic of its own."""
    if not cluster.is_healthy(60):
        sys.exit("the cluster is not healthy")
    topic = f"helm-test-{uuid.uuid4().hex[:12]}"
    clients = ["--endpoint", os.environ["CHART_CLIENTS"]]
    cluster.strata("topic", "create", topic)
    try:
        body = uuid.uuid4().hex
        cluster.strata("message", "send", topic, "--body", body, *clients)
        command = ["strata", "message", "receive", topic, "--group", topic, "--wait", "20s"]
        done = subprocess.run(
            [*command, *clients, "-o", "json"], stdout=subprocess.PIPE, check=True
        )
        if body.encode() not in done.stdout:
            sys.exit(f"the message did not come back: {done.stdout.decode()}")
    finally:
        cluster.strata("topic", "delete", topic, "--yes")
    print("a message was sent and received")


if __name__ == "__main__":
    main()
