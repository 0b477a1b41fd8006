"""The load of this broker: messages per second, in and out, over the last seconds."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from strata_broker.metadata.recorder import Recorder
from strata_runtime.clock import Clock

_SAMPLE_PERIOD_S = 1.0
_SAMPLES = 11


class Rates(NamedTuple):
    """Messages per second."""

    messages_in: float
    messages_out: float


class _Sample(NamedTuple):
    at_s: float
    messages_in: int
    messages_out: int


class RuntimeStats:
    """Samples the recorder once a second."""

    def __init__(self, recorder: Recorder, clock: Clock) -> None:
        self._recorder = recorder
        self._clock = clock
        self._samples: deque[_Sample] = deque((self._sample(),), maxlen=_SAMPLES)

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            await asyncio.sleep(_SAMPLE_PERIOD_S)
            self._samples.append(self._sample())

    def rates(self) -> Rates:
        """Return the messages per second since the oldest sample."""
        first, now = self._samples[0], self._sample()
        elapsed_s = now.at_s - first.at_s
        if elapsed_s <= 0:
            return Rates(0.0, 0.0)
        return Rates(
            (now.messages_in - first.messages_in) / elapsed_s,
            (now.messages_out - first.messages_out) / elapsed_s,
        )

    def _sample(self) -> _Sample:
        recorder = self._recorder
        return _Sample(self._clock.monotonic_s(), recorder.messages_in, recorder.messages_out)
