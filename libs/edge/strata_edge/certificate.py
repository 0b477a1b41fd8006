"""The watch on the certificate that clients see."""

from __future__ import annotations

from strata_edge.metrics import METRICS
from strata_runtime.certificate_watch import CertificateWatch
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics
from strata_runtime.tls import Certificate


def watch_of(
    certificate: Certificate, metrics: Metrics, clock: Clock | None = None
) -> CertificateWatch:
    """Return a watch on the certificate of an edge.

    Args:
        certificate: the files.
        metrics: where the days left show.
        clock: wall time.
    """
    metrics.declare(METRICS)
    return CertificateWatch(
        certificate,
        metrics,
        gauge="strata_edge_certificate_days_left",
        log="edge.certificate",
        ended="clients that verify it cannot connect",
        clock=clock,
    )
