"""History of clients over crashes: `strata_sim.history`, under the name the tests know."""

from strata_sim.history import CHECKS, History, Lease, Position, Send, check, skipped

__all__ = ["CHECKS", "History", "Lease", "Position", "Send", "check", "skipped"]
