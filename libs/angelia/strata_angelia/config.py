"""The section `[angelia]`: limits of each class of calls between processes."""

from __future__ import annotations

from pydantic import Field

from strata_angelia.classes import CallClass
from strata_angelia.options import CLASS_LIMITS, AngeliaOptions, ClassLimits
from strata_runtime.config import Section


def _calls(call_class: CallClass, what: str) -> int:
    limit: int = Field(
        default=CLASS_LIMITS[call_class].max_calls,
        ge=1,
        description=f"Most calls per connection for {what}; further calls are refused and retried.",
    )
    return limit


def _bytes(call_class: CallClass, what: str) -> int:
    limit: int = Field(
        default=CLASS_LIMITS[call_class].max_bytes,
        ge=1,
        description=f"Most bytes of requests per connection for {what}; further calls wait.",
    )
    return limit


_CONTROL = "raft, membership, metadata and operators"
_RELEASE = "acks and other calls that release messages"
_REPORT = "heartbeats and liveness reports"
_APPEND = "sends"
_READ = "receives and other reads"


class AngeliaSection(Section):
    """Calls between brokers, storage nodes and nameservers."""

    max_control_calls: int = _calls(CallClass.CONTROL, _CONTROL)
    max_control_bytes: int = _bytes(CallClass.CONTROL, _CONTROL)
    max_release_calls: int = _calls(CallClass.RELEASE, _RELEASE)
    max_release_bytes: int = _bytes(CallClass.RELEASE, _RELEASE)
    max_report_calls: int = _calls(CallClass.REPORT, _REPORT)
    max_report_bytes: int = _bytes(CallClass.REPORT, _REPORT)
    max_append_calls: int = _calls(CallClass.APPEND, _APPEND)
    max_append_bytes: int = _bytes(CallClass.APPEND, _APPEND)
    max_read_calls: int = _calls(CallClass.READ, _READ)
    max_read_bytes: int = _bytes(CallClass.READ, _READ)

    def options(self, connect_timeout_s: float = 3.0) -> AngeliaOptions:
        """Return the options of a server or a channel.

        Args:
            connect_timeout_s: of a channel.
        """
        classes = {
            CallClass.CONTROL: ClassLimits(self.max_control_calls, self.max_control_bytes),
            CallClass.RELEASE: ClassLimits(self.max_release_calls, self.max_release_bytes),
            CallClass.REPORT: ClassLimits(self.max_report_calls, self.max_report_bytes),
            CallClass.APPEND: ClassLimits(self.max_append_calls, self.max_append_bytes),
            CallClass.READ: ClassLimits(self.max_read_calls, self.max_read_bytes),
        }
        return AngeliaOptions(classes=classes, connect_timeout_s=connect_timeout_s)
