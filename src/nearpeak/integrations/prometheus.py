"""Readings as Prometheus metrics. What is unknown has no sample: an absent series is not a zero.

The number of series is bounded by what the machine has: figures × devices, a handful of the host, and at most
`processes` for each device. Labels are those of DCGM's exporter, so that its dashboards and alerts go on working.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from nearpeak.hardware.metric_names import DCGM, NATIVE
from nearpeak.hardware.reading import THROTTLE_REASONS, Device, Reading

if TYPE_CHECKING:
    from nearpeak.hardware.live.sampler import Snapshot

__all__ = ["CONTENT_TYPE_TEXT", "Names", "SnapshotCollector", "render"]

Names = Literal["both", "nearpeak", "dcgm"]
CONTENT_TYPE_TEXT = "text/plain; version=0.0.4; charset=utf-8"
LABELS = ("gpu", "UUID", "pci_bus_id", "device", "model_name", "Hostname", "GPU_I_ID", "GPU_I_PROFILE")
DCGM_LABELS = tuple("modelName" if label == "model_name" else label for label in LABELS)
"""DCGM's exporter writes the model in a way that promtool finds fault with; only where its names stand alone do we."""
_HOST: tuple[tuple[str, str, float, str], ...] = (
    ("cpu_percent", "nearpeak_host_cpu_ratio", 0.01, "All cores together."),
    ("busiest_core_percent", "nearpeak_host_busiest_core_ratio", 0.01, "The busiest core."),
    ("iowait_percent", "nearpeak_host_iowait_ratio", 0.01, "Cores idle while something waits for a disk."),
    ("runnable", "nearpeak_host_runnable_threads", 1.0, "Threads that run or wait for a core."),
    ("memory_total_bytes", "nearpeak_host_memory_size_bytes", 1.0, "Memory of the machine."),
    ("memory_available_bytes", "nearpeak_host_memory_available_bytes", 1.0, "Memory that can be had."),
    ("memory_cached_bytes", "nearpeak_host_memory_cached_bytes", 1.0, "The page cache."),
    ("disk_read_bytes_per_s", "nearpeak_host_disk_read_bytes_per_second", 1.0, "Read from disks."),
    ("disk_written_bytes_per_s", "nearpeak_host_disk_written_bytes_per_second", 1.0, "Written to disks."),
    ("net_received_bytes_per_s", "nearpeak_host_net_received_bytes_per_second", 1.0, "Received from the network."),
    ("net_sent_bytes_per_s", "nearpeak_host_net_sent_bytes_per_second", 1.0, "Sent to the network."),
)
_STATES = ("ok", "lost", "hung", "failed")


class SnapshotCollector:
    """What prometheus_client asks for metrics: those of the snapshot that `latest` gives."""

    def __init__(
        self, latest: Callable[[], Snapshot], *, hostname: str, names: Names = "both", processes: int = 0
    ) -> None:
        self._latest, self._hostname, self._names, self._processes = latest, hostname, names, processes

    def collect(self) -> Iterator[Any]:
        """All families, each with the devices that know its figure."""
        snapshot = self._latest()
        devices = {device.key: device for device in snapshot.devices}
        rows = [(self._labels(devices.get(r.key), r), r) for r in snapshot.readings]
        if self._names != "dcgm":
            yield from _native(rows)
        if self._names != "nearpeak":
            yield from _dcgm(rows, DCGM_LABELS if self._names == "dcgm" else LABELS)
        yield from _states(rows)
        yield from _host(snapshot, self._hostname)
        yield from _sources(snapshot)
        if self._processes:
            yield from _processes(rows, self._processes)

    def _labels(self, device: Device | None, reading: Reading) -> tuple[str, ...]:
        named: dict[str, str] = {
            "gpu": str(reading.device),
            "device": f"gpu{reading.device}",
            "Hostname": self._hostname,
        }
        if device is not None:
            prefix = {"nvidia": "nvidia", "amd": "card"}.get(device.vendor or "", "gpu")
            named["device"] = f"{prefix}{reading.device}"
            named |= {"UUID": device.uuid or "", "pci_bus_id": device.pci_bus_id or "", "model_name": device.name or ""}
            named["GPU_I_PROFILE"] = device.mig_profile or ""
            named["GPU_I_ID"] = "" if device.gpu_instance is None else str(device.gpu_instance)
        if reading.mig is not None and not named.get("GPU_I_ID"):
            named["GPU_I_ID"] = str(reading.mig)
        return tuple(named.get(label, "") for label in LABELS)


Rows = list[tuple[tuple[str, ...], Reading]]


def _native(rows: Rows) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for metric in NATIVE:
        known = [(labels, value) for labels, r in rows if (value := getattr(r, metric.figure)) is not None]
        if not known:
            continue
        kind = CounterMetricFamily if metric.counter else GaugeMetricFamily
        family = kind(metric.name, metric.help, labels=LABELS)
        for labels, value in known:
            family.add_metric(labels, float(value) * metric.factor)
        yield family


def _dcgm(rows: Rows, label_names: tuple[str, ...]) -> Iterator[Any]:
    """As gauges: DCGM's names end as they end, a counter here would have to end in `_total`."""
    from prometheus_client.core import GaugeMetricFamily

    for metric in DCGM:
        known = [(labels, value) for labels, r in rows if (value := getattr(r, metric.figure)) is not None]
        if known:
            unit = f" ({metric.unit})" if metric.unit else ""
            family = GaugeMetricFamily(metric.name, f"As DCGM: {metric.figure}{unit}.", labels=label_names)
            for labels, value in known:
                family.add_metric(labels, float(value) * metric.factor)
            yield family


def _states(rows: Rows) -> Iterator[Any]:
    """What is a state: of the device, and each reason for a lowered clock."""
    from prometheus_client.core import GaugeMetricFamily

    state = GaugeMetricFamily("nearpeak_gpu_state", "1 for the state that the device is in.", labels=[*LABELS, "state"])
    reasons = GaugeMetricFamily(
        "nearpeak_gpu_throttle_reason", "1 where the clock is lowered for this reason.", labels=[*LABELS, "reason"]
    )
    for labels, reading in rows:
        for name in _STATES:
            state.add_metric([*labels, name], float(reading.state == name))
        if reading.throttle_reasons is not None:
            for name in THROTTLE_REASONS:
                reasons.add_metric([*labels, name], float(name in reading.throttle_reasons))
    yield from (family for family in (state, reasons) if family.samples)


def _host(snapshot: Snapshot, hostname: str) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    for figure, name, factor, meaning in _HOST:
        value = getattr(snapshot.host, figure)
        if value is not None:
            family = GaugeMetricFamily(name, meaning, labels=["Hostname"])
            family.add_metric([hostname], float(value) * factor)
            yield family


def _sources(snapshot: Snapshot) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    up = GaugeMetricFamily("nearpeak_source_up", "1 where the vendor's driver is here and works.", labels=["vendor"])
    for source in snapshot.sources:
        up.add_metric([source.vendor], float(source.state == "ok"))
    yield up
    moment = GaugeMetricFamily("nearpeak_sample_timestamp_seconds", "When the devices were read, in Unix time.")
    moment.add_metric([], snapshot.at_ns / 1e9)
    yield moment


def _processes(rows: Rows, most: int) -> Iterator[Any]:
    """The largest of each device: without a bound their numbers would grow for ever in the database."""
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(
        "nearpeak_gpu_process_memory_bytes", "Memory of a process on the device.", labels=[*LABELS, "pid", "process"]
    )
    for labels, reading in rows:
        known = [use for use in reading.processes or () if use.memory_bytes is not None]
        for use in sorted(known, key=lambda each: -(each.memory_bytes or 0))[:most]:
            family.add_metric([*labels, str(use.pid), (use.name or "")[:64]], float(use.memory_bytes or 0))
    if family.samples:
        yield family


def render(collector: SnapshotCollector, accept: str = "") -> tuple[bytes, str]:
    """The text in the format that the scraper accepts, and its content type."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
