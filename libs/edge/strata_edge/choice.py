"""Choice of the adapter: the native edge where its extension is installed, else grpcio."""

from __future__ import annotations

import importlib.util
from typing import Literal, TypeAlias

from strata_edge.grpcio_edge import GrpcioEdge
from strata_edge.native_edge import NativeEdge
from strata_edge.options import EdgeOptions
from strata_edge.passes import NativePasses
from strata_runtime.errors import ConfigError
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics

Adapter: TypeAlias = Literal["auto", "grpcio", "native"]

HOW_TO_GET_IT = "`make edge` builds it (needs cargo, Rust 1.85 or newer)"


def has_native() -> bool:
    """Whether the extension is installed."""
    return importlib.util.find_spec("strata_edge_native") is not None


def installed_passes() -> NativePasses | None:
    """Return the native passes; None: the extension is not installed."""
    if not has_native():
        return None
    import strata_edge_native  # absent where nobody built it

    return strata_edge_native


def shown_choice(kind: str) -> dict[str, object]:
    """Return what the line of a server that is ready says about its edge.

    Args:
        kind: of the edge that serves; grpcio's comes with the way to the native edge, as one word.
    """
    if kind == "native":
        return {"edge": kind}
    return {"edge": kind, "native_edge": "--edge=auto" if has_native() else "make_edge"}


def choose_edge(
    adapter: Adapter, options: EdgeOptions, metrics: Metrics
) -> GrpcioEdge | NativeEdge:
    """Return the edge that is wanted, not yet started.

    Args:
        adapter: auto takes the native edge if it is installed, and says so if it is not.
        options: of either.
        metrics: of either.

    Raises:
        ConfigError: the native edge is wanted and not installed.
    """
    if adapter == "grpcio":
        return GrpcioEdge(options, metrics)
    if has_native():
        return NativeEdge(options, metrics)
    if adapter == "native":
        raise ConfigError(f"edge.adapter is native, which is not installed: {HOW_TO_GET_IT}")
    get_logger("edge").info(
        "the native edge is not installed, grpcio serves", how_to_get_it=HOW_TO_GET_IT
    )
    return GrpcioEdge(options, metrics)
