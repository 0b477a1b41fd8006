"""Choice of the edge, with the extension and without it."""

from __future__ import annotations

import pytest

from strata_edge import choice
from strata_edge.choice import Adapter, choose_edge, shown_choice
from strata_edge.grpcio_edge import GrpcioEdge
from strata_edge.options import EdgeOptions
from strata_runtime.errors import ConfigError
from strata_runtime.metrics import Metrics

OPTIONS = EdgeOptions(port=0, front=False)


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extension is not there."""
    monkeypatch.setattr(choice, "has_native", lambda: False)


@pytest.mark.usefixtures("not_installed")
@pytest.mark.parametrize("adapter", ["auto", "grpcio"])
def test_grpcio_serves_without_the_extension(adapter: Adapter) -> None:
    """Nothing but a compiler is missing, so nothing is refused."""
    edge = choose_edge(adapter, OPTIONS, Metrics.disabled())
    assert isinstance(edge, GrpcioEdge)
    assert shown_choice(edge.kind) == {"edge": "grpcio", "native_edge": "make_edge"}


@pytest.mark.usefixtures("not_installed")
def test_native_without_the_extension_is_refused() -> None:
    """The error names the key and the target that installs the extension."""
    with pytest.raises(ConfigError, match=r"edge.adapter is native, .*make edge"):
        choose_edge("native", OPTIONS, Metrics.disabled())


def test_the_line_of_a_server_says_how_to_get_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is installed an option is enough; each value is one word."""
    monkeypatch.setattr(choice, "has_native", lambda: True)
    assert shown_choice("grpcio") == {"edge": "grpcio", "native_edge": "--edge=auto"}
    assert shown_choice("native") == {"edge": "native"}
