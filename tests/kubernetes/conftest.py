"""A real API server with the kinds of operators, for all tests that need no pods."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kubernetes.rendered import NAMESPACE, make_namespace
from tests.kubernetes.rig.binaries import missing
from tests.kubernetes.rig.control import Control
from tests.parts.required import absent


@pytest.fixture(scope="session")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Control]:
    """The control plane; its namespace enforces the level "restricted" of Pod Security."""
    if reason := missing(pods=False):
        absent(reason)
    control = Control(tmp_path_factory.mktemp("control"), in_namespace=False)
    try:
        control.start_server()
        control.define()
        make_namespace(control, NAMESPACE)
        level = "pod-security.kubernetes.io/enforce=restricted"
        control.kubectl("label", "namespace", NAMESPACE, level)
        yield control
    finally:
        control.stop()
