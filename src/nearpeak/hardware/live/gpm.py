"""Performance counters of Hopper and later (GPM), which tell how much of a device works and not just whether any does.

A metric is the difference of two samples at least 100 ms apart. Samples belong to the driver and are used in turn.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from nearpeak.hardware.live.driver import Asker, Refused
from nearpeak.hardware.live.questions import Values

__all__ = ["GPM_FIGURES", "GpmMeter"]

SHORTEST_S = 0.1
MIB = 2**20
GPM_FIGURES: dict[str, tuple[int, float]] = {
    "engine_percent": (1, 1.0),
    "sm_busy_percent": (2, 1.0),
    "sm_occupancy_percent": (3, 1.0),
    "integer_percent": (4, 1.0),
    "tensor_percent": (5, 1.0),
    "tensor_half_percent": (7, 1.0),
    "tensor_double_percent": (8, 1.0),
    "tensor_integer_percent": (9, 1.0),
    "dram_percent": (10, 1.0),
    "fp64_percent": (11, 1.0),
    "fp32_percent": (12, 1.0),
    "fp16_percent": (13, 1.0),
    "pcie_sent_bytes_per_s": (20, MIB),
    "pcie_received_bytes_per_s": (21, MIB),
    "nvlink_received_bytes_per_s": (60, MIB),
    "nvlink_sent_bytes_per_s": (61, MIB),
}
"""Figure → NVML's number of the metric, and what one of it is in SI."""


class GpmMeter:
    """The counters of one device, or of one MIG instance of it. Used from one thread at a time."""

    def __init__(
        self, ask: Asker, gpu_instance: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask, self._instance, self._clock = ask, gpu_instance, clock
        self._nvml = ask.driver.nvml
        self._samples: list[Any] = []
        self._request: Any = None
        self._asked: list[str] = []
        self._entries: list[tuple[str, Any, float]] = []
        self._taken_s: float | None = None
        self._values: Values = dict.fromkeys(GPM_FIGURES, Refused(27, "the first of two samples"))
        self._refusal: Refused | None = None
        self._metrics_read = False

    def read(self) -> Values:
        """The metrics since the sample before. Where the device has no such counters, every figure is refused."""
        if self._refusal is not None:
            return dict.fromkeys(GPM_FIGURES, self._refusal)
        now_s = self._clock()
        if self._taken_s is not None and now_s - self._taken_s < SHORTEST_S:
            return self._values
        try:
            self._begin()
            self._sample()
            if self._taken_s is not None:
                self._values = self._values | self._metrics()
        except Refused as refused:
            if refused.lost:
                raise
            record = refused.record()
            if record.final:
                self._refusal = record
            self._taken_s = None  # the other sample may be torn
            return dict.fromkeys(GPM_FIGURES, record)
        self._taken_s = now_s
        return self._values

    @property
    def has_no(self) -> frozenset[str] | None:
        """Figures that this device has no counter for; None until it was asked."""
        if self._refusal is not None:
            return frozenset(GPM_FIGURES)
        return frozenset(GPM_FIGURES).difference(self._asked) if self._metrics_read else None

    def close(self) -> None:
        """Give the driver its samples back."""
        for sample in self._samples:
            try:
                self._ask.driver.call("nvmlGpmSampleFree", sample)
            except Refused:  # the library is gone already, and its memory with it
                break
        self._samples.clear()

    def _begin(self) -> None:
        if self._samples:
            return
        support = self._ask("nvmlGpmQueryDeviceSupport")
        if not support.isSupportedDevice:
            raise Refused(3, "the device has no performance counters that can be read")
        self._samples = [self._ask.driver.call("nvmlGpmSampleAlloc") for _ in range(2)]
        self._ask_for(list(GPM_FIGURES))

    def _ask_for(self, figures: list[str]) -> None:
        self._request = self._nvml.c_nvmlGpmMetricsGet_t()
        self._request.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(figures)
        for place, figure in enumerate(figures):
            self._request.metrics[place].metricId = GPM_FIGURES[figure][0]
        self._asked = figures
        # Kept, since each look at an array of structures makes an object anew.
        self._entries = [
            (figure, self._request.metrics[place], GPM_FIGURES[figure][1]) for place, figure in enumerate(figures)
        ]

    def _sample(self) -> None:
        """Into the older of the two."""
        older, newer = self._samples
        if self._instance is None:
            self._ask("nvmlGpmSampleGet", older)
        else:
            self._ask("nvmlGpmMigSampleGet", self._instance, older)
        self._samples = [newer, older]

    def _metrics(self) -> Values:
        self._request.sample1, self._request.sample2 = self._samples
        self._ask.asking = "nvmlGpmMetricsGet"
        self._ask.driver.call("nvmlGpmMetricsGet", self._request)
        self._metrics_read = True
        values: Values = {figure: _metric(entry, unit) for figure, entry, unit in self._entries}
        kept = [name for name, value in values.items() if not (isinstance(value, Refused) and value.final)]
        if len(kept) < len(values):
            self._ask_for(kept)
        return values


def _metric(entry: Any, unit: float) -> float | Refused:
    if entry.nvmlReturn != 0:
        return Refused(entry.nvmlReturn, f"metric {entry.metricId} was refused")
    if not math.isfinite(entry.value):
        return Refused(21, f"metric {entry.metricId} has no value yet")
    # Counters of a running device tear by a hair; a hundredth of a percent is finer than they are.
    return max(0.0, round(entry.value, 2) if unit == 1 else float(round(entry.value * unit)))
