"""One NVIDIA device, or one MIG instance of it: its identity, and readings from what it answers."""

from __future__ import annotations

import time
from typing import Any, get_args

from nearpeak.hardware.live.driver import Asker, Driver, Refused
from nearpeak.hardware.live.gpm import GpmMeter
from nearpeak.hardware.live.owners import OwnerBook
from nearpeak.hardware.live.plausible import Doubt
from nearpeak.hardware.live.processes import ProcessLister
from nearpeak.hardware.live.questions import OF_INSTANCES, QUESTIONS, Question, Tier, Values
from nearpeak.hardware.reading import FIGURES, Device, ProcessUse, Reading, Why

__all__ = ["NvmlCard", "describe", "now_ns"]

PROCESSES_EVERY_S = 1.9
"""Lists of processes are read no more than every other second, whatever the rate of the rest."""
HOLDING_EVERY_S = 10.0
RARE_EVERY_S = 60.0
STALE_S = 45.0
"""A figure of the slow questions that is older is not shown as if it were of now."""
ARCHITECTURES = {
    2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada", 9: "Hopper",
    10: "Blackwell", 13: "Rubin",
}  # fmt: skip
PCI_FIGURES = ("pcie_sent_bytes_per_s", "pcie_received_bytes_per_s")
LINK_RATES = {
    "nvlink_sent_bytes_per_s": "nvlink_sent_bytes",
    "nvlink_received_bytes_per_s": "nvlink_received_bytes",
}


ALL_UNSUPPORTED: dict[str, Why] = dict.fromkeys(FIGURES, "unsupported")


class NvmlCard:
    """Fast and slow questions are asked on different threads, each by its own `Asker`."""

    def __init__(self, driver: Driver, handle: Any, device: Device, owners: OwnerBook, parent: Any = None) -> None:
        """`parent` is the handle of the card that a MIG instance is on."""
        self.device, self.handle = device, handle
        self.fast, self.slow = Asker(driver, handle), Asker(driver, handle)
        is_instance = device.mig is not None
        gpm = Asker(driver, handle if parent is None else parent)
        self._gpm_ask = gpm
        self._gpm = GpmMeter(gpm, device.gpu_instance if is_instance else None)
        self._questions = [q for q in QUESTIONS if not is_instance or q.name in OF_INSTANCES]
        self._by_tier = {tier: [q for q in self._questions if q.tier == tier] for tier in get_args(Tier)}
        self._lister = ProcessLister(self.fast, owners, has_shares=not is_instance)
        self._processes: tuple[ProcessUse, ...] | None = None
        self._listed_s = self._held_s = self._rare_s = float("-inf")
        self._slow_names = [name for q in self._questions if q.tier != "fast" for name in q.figures]
        self._slow_values: Values = dict.fromkeys(self._slow_names, Refused(27, "its turn has not come"))
        self._slow_at_s: float | None = None
        self._doubt = Doubt()
        self._missing: dict[str, Why] = {}
        self._links: tuple[float, Values] | None = None
        self.xid: int | None = None
        self.xid_events: int | None = None
        """None where the driver reports no events."""

    @property
    def asking(self) -> str | None:
        """What is asked just now; the last question where none is."""
        return self._gpm_ask.asking if self.fast.asking is None else self.fast.asking

    def read(self) -> Reading:
        """Ask the fast questions and join them with the latest slow ones. Never raises because of the driver."""
        at_ns = now_ns()
        try:
            values = self._slow_figures() | self._answers(self.fast, "fast")
            self._list_processes()
            self.fast.asking = None
            values |= {name: value for name, value in self._gpm.read().items() if _betters(values, name, value)}
        except Refused as refused:
            return self.unreachable(at_ns, refused)
        values |= self._link_rates(values)
        return self._reading(at_ns, values)

    def ask_slow(self) -> None:
        """Ask the slow questions; the next readings show what came."""
        now_s = time.monotonic()
        rare, holding = now_s - self._rare_s >= RARE_EVERY_S, now_s - self._held_s >= HOLDING_EVERY_S
        try:
            values = self._slow_values | self._answers(self.slow, "slow")
            if rare:
                values |= self._answers(self.slow, "rare")
            if holding and self._needs_holding():
                values |= self._answers(self.slow, "holding")
        except Refused:
            return  # it is lost; the fast questions say so
        finally:
            self.slow.asking = None
        self._rare_s = now_s if rare else self._rare_s
        self._held_s = now_s if holding and self._gpm.has_no is not None else self._held_s
        self._slow_values, self._slow_at_s = values, time.monotonic()

    def unreachable(self, at_ns: int, refused: Refused) -> Reading:
        """A reading of a device that is off the bus."""
        missing: dict[str, Why] = dict.fromkeys(FIGURES, "lost")
        known = self._events()
        return Reading(
            at_ns=at_ns, device=self.device.index, mig=self.device.mig, state="lost", fault=str(refused),
            missing={name: why for name, why in missing.items() if name not in known}, **known,
        )  # fmt: skip

    def hung(self, for_s: float) -> Reading:
        """A reading of a device one of whose calls does not return."""
        fault = f"{self.asking or 'the driver'} has not returned for {for_s:.0f} s"
        known = self._events()
        return Reading(
            at_ns=now_ns(), device=self.device.index, mig=self.device.mig, state="hung", fault=fault,
            missing={name: "timeout" for name in FIGURES if name not in known}, **known,
        )  # fmt: skip

    def close(self) -> None:
        """Give back what the driver holds for us."""
        self._gpm.close()

    def _answers(self, ask: Asker, tier: Tier) -> Values:
        """Of all questions of a tier; raises Refused only where the device is lost."""
        values: Values = {}
        for question in self._by_tier[tier]:
            values |= _answer(ask, question)
        return values

    def _needs_holding(self) -> bool:
        """Counters tell the traffic without holding the driver, where the device has them."""
        lacking = self._gpm.has_no
        return lacking is not None and not lacking.isdisjoint(PCI_FIGURES)

    def _list_processes(self) -> None:
        now_s = time.monotonic()
        if now_s - self._listed_s >= PROCESSES_EVERY_S:
            self._processes, self._listed_s = self._lister.read(), now_s

    def _slow_figures(self) -> Values:
        """Those of the slow questions, none of them older than it looks."""
        if self._slow_at_s is not None and time.monotonic() - self._slow_at_s > STALE_S:
            return dict.fromkeys(self._slow_names, Refused(10, "the driver did not answer in time"))
        return self._slow_values

    def _link_rates(self, values: Values) -> Values:
        """From the counters of two readings, where no performance counter gives them."""
        now_s = time.monotonic()
        counts = {counter: values.get(counter) for counter in LINK_RATES.values()}
        before, self._links = self._links, (now_s, counts)
        rates: Values = {}
        for rate, counter in LINK_RATES.items():
            if isinstance(values.get(rate, Refused(3, "")), Refused):
                rates[rate] = _rate(
                    counts[counter], before and before[1][counter], now_s - before[0] if before else 0.0
                )
        return rates

    def _events(self) -> dict[str, Any]:
        return (
            {}
            if self.xid_events is None
            else {"xid_events": self.xid_events, **({"xid": self.xid} if self.xid else {})}
        )

    def _reading(self, at_ns: int, values: Values) -> Reading:
        known: dict[str, Any] = self._events()
        missing: dict[str, Why] = dict(ALL_UNSUPPORTED)
        for name, value in values.items():
            if isinstance(value, Refused):
                why: Why = value.why
                missing[name] = why
            else:
                known[name] = value
        for name in known:
            missing.pop(name, None)
        if self.xid_events is not None and "xid" not in known:
            missing["xid"] = "not_yet"
        for name in self._doubt.doubtful(known, self._processes):
            del known[name]
            missing[name] = "implausible"
        if missing != self._missing:  # hundreds of readings are kept, and what they lack is nearly always the same
            self._missing = missing
        return Reading(
            at_ns=at_ns,
            device=self.device.index,
            mig=self.device.mig,
            missing=self._missing,
            processes=self._processes,
            **known,
        )


def _answer(ask: Asker, question: Question) -> Values:
    """One question's figures; what is refused for good is not asked again."""
    refused = ask.refused.get(question.name)
    if refused is None:
        try:
            return question.ask(ask)
        except Refused as error:
            if error.lost:
                raise
            refused = error.record()
            if refused.final:
                ask.refused[question.name] = refused
    return dict.fromkeys(question.figures, refused)


def _rate(count: Any, earlier: Any, span_s: float) -> float | Refused:
    if count is None or isinstance(count, Refused):
        return count or Refused(3, "no counter")
    if not isinstance(earlier, int) or count < earlier or span_s <= 0:
        return Refused(27, "the first of two readings")
    return float(round((count - earlier) / span_s))


def _betters(values: Values, name: str, value: Any) -> bool:
    """A counter's value stands before another source's; its refusal only where nobody else was asked."""
    return not isinstance(value, Refused) or name not in values


def now_ns() -> int:
    """Unix time to the millisecond: finer is not true, and packs badly."""
    return time.time_ns() // 1_000_000 * 1_000_000


def describe(driver: Driver, handle: Any, index: int, **known: Any) -> Device:
    """Ask a device who it is; what it does not say is None."""
    ask = Asker(driver, handle)
    pci = _maybe(ask, "nvmlDeviceGetPciInfo")
    capability = _maybe(ask, "nvmlDeviceGetCudaComputeCapability")
    architecture = _maybe(ask, "nvmlDeviceGetArchitecture")
    node = _maybe(ask, "nvmlDeviceGetNumaNodeId")
    facts = {
        "name": _maybe(ask, "nvmlDeviceGetName"),
        "uuid": _maybe(ask, "nvmlDeviceGetUUID"),
        "serial": _maybe(ask, "nvmlDeviceGetSerial"),
        "vbios_version": _maybe(ask, "nvmlDeviceGetVbiosVersion"),
        "pci_bus_id": None if pci is None else _text(pci.busId),
        "pci_id": None if pci is None else _pci_id(pci.pciDeviceId),
        "pci_subsystem_id": None if pci is None else _pci_id(pci.pciSubSystemId),
        "compute_capability": None if capability is None else (int(capability[0]), int(capability[1])),
        "architecture": ARCHITECTURES.get(architecture),
        "numa_node": node if isinstance(node, int) and node >= 0 else None,
        "cpu_affinity": _affinity(ask),
    }
    return Device(index=index, vendor="nvidia", **(facts | known))


def _maybe(ask: Asker, name: str, *arguments: Any) -> Any:
    try:
        return ask(name, *arguments)
    except Refused:
        return None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _pci_id(number: int) -> str | None:
    """NVML puts the device above the vendor: 0x233010DE is ``10de:2330``."""
    return f"{number & 0xFFFF:04x}:{number >> 16:04x}" if number else None


def _affinity(ask: Asker) -> str | None:
    import os

    words = _maybe(ask, "nvmlDeviceGetCpuAffinity", ((os.cpu_count() or 1) + 63) // 64)
    if words is None:
        return None
    cores = [64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1]
    return ranges_text(cores) or None


def ranges_text(numbers: list[int]) -> str:
    """``0-3,8``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
