"""What rules say of readings: each finding where it belongs, and silence where an input lacks or all is well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.reduce_readings import host_facts, reduce_readings
from nearpeak.diagnose.rules import findings
from nearpeak.finding import Finding
from nearpeak.hardware.host_reading import HostReading
from nearpeak.hardware.reading import Device, ProcessUse, Reading

GIB = 2**30
S = 10**9
HEALTHY: dict[str, Any] = {
    "busy_percent": 98.0,
    "memory_used_bytes": 70 * GIB,
    "memory_total_bytes": 80 * GIB,
    "power_w": 600.0,
    "power_limit_w": 700.0,
    "clock_hz": 1.98e9,
    "clock_max_hz": 1.98e9,
    "throttle_reasons": (),
    "pcie_width": 16,
    "pcie_width_max": 16,
    "pcie_generation": 5,
    "pcie_generation_max": 5,
    "ecc_uncorrected": 0,
    "row_remap_pending": False,
}


def series(count: int = 30, device: int = 0, every_s: int = 5, **figures: Any) -> list[Reading]:
    """Readings in time; a figure that is a function is given the reading's number."""

    def value(figure: Any, number: int) -> Any:
        return figure(number) if callable(figure) else figure

    return [
        Reading(at_ns=S * every_s * n, device=device, **{name: value(each, n) for name, each in figures.items()})
        for n in range(count)
    ]


def found(*readings: list[Reading], host: list[HostReading] | None = None) -> list[Finding]:
    together = [reading for each in readings for reading in each]
    facts = Facts(
        source="test",
        devices=reduce_readings(together, [Device(index=0, name="GPU A")], source="test"),
        host=None if host is None else host_facts(host),
    )
    return findings(facts)


def kinds(*readings: list[Reading]) -> list[str]:
    return [finding.kind for finding in found(*readings)]


def test_a_healthy_device_is_left_in_peace() -> None:
    assert kinds(series(**HEALTHY)) == []


def test_nothing_known_nothing_said() -> None:
    assert kinds(series()) == []
    assert kinds(series(busy_percent=98.0)) == []
    assert kinds(series(memory_used_bytes=70 * GIB)) == []


def test_full_memory_while_idle() -> None:
    (finding,) = found(series(**{**HEALTHY, "busy_percent": lambda n: 0.0 if n % 3 == 0 else 97.0}))
    assert finding.kind == "idle" and "GPU A" in finding.title and "33 %" in finding.title
    assert finding.gain is not None and finding.gain.low == 0.0 and finding.gain.high == pytest.approx(1 / 3)


def test_memory_whose_size_is_unknown_counts_from_some_gibibytes() -> None:
    few = {"busy_percent": lambda n: 0.0 if n % 3 == 0 else 97.0}
    assert kinds(series(memory_used_bytes=17 * GIB, **few)) == ["idle"]
    assert kinds(series(memory_used_bytes=GIB, **few)) == []


def test_held_and_never_used() -> None:
    held = {**HEALTHY, "busy_percent": 0.0, "power_w": 80.0, "processes": (ProcessUse(pid=1),)}
    (finding,) = found(series(**held))
    assert finding.kind == "reserved" and "by 1 process" in finding.title
    assert kinds(series(count=10, every_s=1, **held)) == []  # it may still be loading


def test_full_utilisation_of_an_empty_device() -> None:
    empty = {"busy_percent": 100.0, "memory_used_bytes": 0, "processes": ()}
    (finding,) = found(series(count=2, **empty, persistence=False))
    assert finding.kind == "busy_not_working" and finding.severity == "info"
    assert "Persistence mode is off" in finding.remedy
    assert found(series(count=20, **empty))[0].severity == "warning"
    assert kinds(series(**{**empty, "processes": (ProcessUse(pid=1),)})) == []
    assert kinds(series(busy_percent=100.0)) == []


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"power_w": 200.0}, "29 % of its power limit"),
        ({"sm_busy_percent": 20.0}, "20 % of its multiprocessors"),
        ({"sm_busy_percent": 20.0, "power_w": 200.0}, "20 % of its multiprocessors"),
    ],
)
def test_busy_but_not_working(figures: dict[str, Any], words: str) -> None:
    (finding,) = found(series(**{**HEALTHY, **figures}))
    assert finding.kind == "busy_not_working" and words in finding.title


def test_counters_overrule_power() -> None:
    assert kinds(series(**{**HEALTHY, "power_w": 200.0, "sm_busy_percent": 90.0})) == []


def test_no_utilisation_but_processes() -> None:
    readings = series(missing={"busy_percent": "unsupported"}, processes=(ProcessUse(pid=1, kind="compute"),))
    (finding,) = found(readings)
    assert finding.kind == "unreadable" and "has processes" in finding.title


def test_no_utilisation_but_power() -> None:
    blind = {**HEALTHY, "busy_percent": None, "mig_enabled": True}
    readings = series(count=2, missing={"busy_percent": "unsupported"}, **blind)
    (finding,) = found(readings)
    assert finding.kind == "unreadable" and "MIG" in finding.title and "600 W" in finding.title
    assert kinds(series(missing={"busy_percent": "unsupported"}, **{**blind, "power_w": 98.0})) == []
    assert kinds(series(**blind)) == []  # nobody asked for it


@pytest.mark.parametrize(
    ("reason", "words", "severity"),
    [
        ("thermal", "heat", "warning"),
        ("hardware_thermal", "heat", "warning"),
        ("power_brake", "brake", "critical"),
        ("power_cap", "power limit", "info"),
        ("sync_boost", "another device", "info"),
        ("application_clocks", "set for applications", "info"),
    ],
)
def test_throttled(reason: str, words: str, severity: str) -> None:
    slow = {
        "throttle_reasons": lambda n: (reason,) if n < 15 else (),
        "clock_hz": lambda n: 0.99e9 if n < 15 else 1.98e9,
    }
    (finding,) = found(series(**{**HEALTHY, **slow}))
    assert finding.kind == "throttled" and "50 %" in finding.title and words in finding.title
    assert finding.severity == severity
    assert finding.gain is not None and finding.gain.high == pytest.approx(0.25)


def test_the_umbrella_reason_is_not_told_twice() -> None:
    both = ("hardware_slowdown", "hardware_thermal")
    assert [f.title.split(": ")[-1] for f in found(series(**{**HEALTHY, "throttle_reasons": both}))] == ["heat"]
    assert kinds(series(**{**HEALTHY, "throttle_reasons": ("hardware_slowdown",)})) == ["throttled"]


def test_dmon_counts_violations_as_a_share_of_time() -> None:
    readings = series(count=100, **HEALTHY | {"throttle_reasons": ("power_cap",)}, other={"dmon.pviol [%]": 35})
    assert "35 % of the time" in found(readings)[0].title


def test_an_idle_device_is_not_throttled() -> None:
    idle = {**HEALTHY, "busy_percent": 0.0, "memory_used_bytes": 0}
    assert kinds(series(**{**idle, "throttle_reasons": ("power_cap",)})) == []
    assert kinds(series(**{**idle, "throttle_reasons": ("hardware_thermal",)})) == [
        "throttled"
    ]  # heat is trouble always
    assert kinds(series(**{**HEALTHY, "throttle_reasons": ("idle",)})) == []


def test_throttled_by_the_drivers_counters() -> None:
    (finding,) = found(series(**{**HEALTHY, "throttled_thermal_s": lambda n: 100.0 + 1.25 * n}))
    assert finding.kind == "throttled" and "25 %" in finding.title
    assert kinds(series(**{**HEALTHY, "throttled_thermal_s": 100.0})) == []
    # The driver was loaded anew: the counter falls, and counts on.
    (again,) = found(series(**{**HEALTHY, "throttled_thermal_s": lambda n: 1.25 * (n % 15)}))
    assert "24 %" in again.title


def test_a_counted_power_limit_that_no_reading_came_near() -> None:
    figures = {"throttled_power_s": lambda n: 2.5 * n, "power_w": 300.0}
    (finding,) = found(series(**{**HEALTHY, **figures}))
    assert "its driver counts 50 %" in finding.title


def test_at_the_power_limit_without_reasons() -> None:
    unknown = {**HEALTHY, "throttle_reasons": None}
    assert kinds(series(**{**unknown, "power_w": 695.0})) == ["throttled"]
    assert kinds(series(**unknown)) == []


def test_a_lowered_power_limit_is_a_warning() -> None:
    figures = {
        "throttle_reasons": ("power_cap",),
        "power_limit_w": 400.0,
        "power_limit_default_w": 700.0,
        "power_w": 399.0,
    }
    assert found(series(**{**HEALTHY, **figures}))[0].severity == "warning"


@pytest.mark.parametrize("figures", [{"pcie_width": 8}, {"pcie_generation": 1}])
def test_link_below_what_it_can_be(figures: dict[str, int]) -> None:
    assert kinds(series(**{**HEALTHY, **figures})) == ["link"]
    assert kinds(series(**{**HEALTHY, **figures, "busy_percent": 3.0, "memory_used_bytes": 0})) == []


def test_link_errors_count_only_while_they_grow() -> None:
    assert kinds(series(**HEALTHY, pcie_replays=100_000)) == []
    assert kinds(series(**HEALTHY, pcie_replays=lambda n: 10 * n)) == ["link"]
    assert kinds(series(**HEALTHY, nvlink_errors=lambda n: n)) == ["link"]


@pytest.mark.parametrize(
    ("figures", "severity"),
    [
        ({"ecc_uncorrected": 1}, "critical"),
        ({"row_remap_failed": True}, "critical"),
        ({"row_remap_pending": True}, "warning"),
        ({"page_retirement_pending": True}, "warning"),
        ({"reset_needed": True}, "warning"),
        ({"xid": 79}, "critical"),
        ({"xid": 31}, "warning"),
        ({"rows_remapped_uncorrected": 2}, "info"),
        ({"pages_retired": 2}, "info"),
        ({"ecc_corrected": lambda n: 100 * n}, "warning"),
    ],
)
def test_trouble(figures: dict[str, Any], severity: str) -> None:
    (finding,) = found(series(**{**HEALTHY, **figures}))
    assert (finding.kind, finding.severity) == ("device_fault", severity)


def test_a_lost_device() -> None:
    gone = [Reading(at_ns=10**12, device=0, state="lost", fault="GPU is lost")]
    (finding,) = found(series(**HEALTHY), gone)
    assert finding.kind == "device_fault" and "GPU is lost" in finding.title


def test_uneven_devices() -> None:
    idle = {**HEALTHY, "busy_percent": 40.0}
    assert kinds(series(**HEALTHY), series(device=1, **idle)) == ["uneven"]
    assert kinds(series(**HEALTHY), series(device=1, **HEALTHY)) == []
    unused = {**HEALTHY, "busy_percent": 0.0, "memory_used_bytes": 0}
    (finding,) = found(series(**HEALTHY), series(device=1, **unused), series(device=2, **unused))
    assert "2 of 3 devices did nothing (1, 2)" in finding.title


def hosts(core: Callable[[int], float], others: float) -> list[HostReading]:
    return [
        HostReading(at_ns=S * n, cpu_percent=(core(n) + 3 * others) / 4, core_percent=(core(n), others, others, others))
        for n in range(20)
    ]


def test_one_core_feeds_the_device() -> None:
    half = series(**{**HEALTHY, "busy_percent": 50.0})
    (finding,) = found(half, host=hosts(lambda n: 100.0, 5.0))
    assert finding.kind == "host_work" and finding.gain is not None and finding.gain.high == pytest.approx(0.5)
    assert found(half, host=hosts(lambda n: 100.0, 95.0)) == []  # all cores are full: another matter
    assert found(half, host=hosts(lambda n: 40.0, 5.0)) == []
    assert found(series(**HEALTHY), host=hosts(lambda n: 100.0, 5.0)) == []


def test_processes_stand_in_for_a_device_without_utilisation() -> None:
    uses = (ProcessUse(pid=1, busy_percent=0.0), ProcessUse(pid=2, busy_percent=1.0))
    assert kinds(series(memory_used_bytes=70 * GIB, memory_total_bytes=80 * GIB, processes=uses)) == ["reserved"]
