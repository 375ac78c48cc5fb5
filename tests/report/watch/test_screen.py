"""What the live view shows, without a terminal: lines from readings."""

from __future__ import annotations

import pytest

from nearpeak.finding import Evidence, Finding
from nearpeak.hardware.host_reading import HostReading
from nearpeak.hardware.live.sampler import Snapshot, SourceState
from nearpeak.hardware.reading import Device, ProcessUse, Reading
from nearpeak.report.watch.history import KEPT_POINTS, KEPT_S, History
from nearpeak.report.watch.lines import bar, fit, line_text, percent_text, rate_text, spark
from nearpeak.report.watch.processes_view import process_rows
from nearpeak.report.watch.screen import RunLine, ViewState, screen_lines

GIB = 1 << 30
S = 10**9
START_NS = 1_780_000_000 * S
WIDTHS = (40, 80, 100, 200)


def h100(index: int = 0, second: float = 0, **figures: object) -> Reading:
    known: dict[str, object] = {
        "busy_percent": 97.0,
        "sm_busy_percent": 42.0,
        "tensor_percent": 12.0,
        "memory_total_bytes": 80 * GIB,
        "memory_used_bytes": 61 * GIB,
        "power_w": 431.1,
        "power_limit_w": 700.0,
        "temperature_c": 61.0,
        "clock_hz": 1.74e9,
    }
    return Reading(at_ns=START_NS + int(second * S), device=index, **(known | figures))  # type: ignore[arg-type]


def snapshot(*readings: Reading, host: HostReading | None = None) -> Snapshot:
    devices = [Device(index=r.device, mig=r.mig, vendor="nvidia", name="NVIDIA H100 80GB HBM3") for r in readings]
    at_ns = readings[0].at_ns if readings else START_NS
    return Snapshot(
        at_ns=at_ns,
        host=host or HostReading(at_ns=at_ns, cpu_percent=50.0, core_percent=(100.0, 0.0), memory_total_bytes=GIB),
        devices=tuple(devices),
        readings=readings,
        sources=(SourceState(vendor="nvidia", state="ok" if readings else "missing"),),
    )


def shown(*snapshots: Snapshot, width: int = 80, height: int = 24, **state: object) -> list[str]:
    history = History()
    for each in snapshots:
        history.add(each)
    return [line_text(line) for line in screen_lines(history, ViewState(**state), width, height)]  # type: ignore[arg-type]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("height", [5, 24, 60])
def test_every_line_has_the_width_and_the_screen_its_height(width: int, height: int) -> None:
    uses = tuple(
        ProcessUse(pid=pid, name="python", memory_bytes=GIB, command="python " + "x" * 300) for pid in range(40)
    )
    readings = [h100(index, processes=uses) for index in range(8)]
    lines = shown(snapshot(*readings), width=width, height=height)
    assert len(lines) == height
    assert {len(line) for line in lines} == {width}


def test_the_work_of_a_device_is_named_for_what_it_is() -> None:
    screen = "\n".join(shown(snapshot(h100())))
    assert "SM 42%" in screen and "busy 97%" in screen and "tensor 12%" in screen
    assert "busy 97%" in "\n".join(shown(snapshot(h100(sm_busy_percent=None))))
    assert "61.0/80.0G" in screen and "431/700W" in screen and "61°" in screen


def test_unknown_is_not_zero() -> None:
    line = shown(snapshot(Reading(at_ns=START_NS, device=0)))[1]
    assert "0%" not in line and "0W" not in line and line.count("–") >= 4


@pytest.mark.parametrize(("state", "words"), [("lost", "off the bus"), ("hung", "driver hangs")])
def test_a_device_that_does_not_answer_is_a_state(state: str, words: str) -> None:
    broken = Reading(at_ns=START_NS, device=0, state=state, fault="GPU is lost")  # type: ignore[arg-type]
    lines = shown(snapshot(broken, h100(1)))
    assert words in lines[1] and "GPU is lost" in lines[1]
    assert "42%" in lines[2]


def test_without_a_device_it_says_so_and_shows_the_host() -> None:
    lines = shown(snapshot())
    assert lines[1].startswith("No GPU was found")
    assert "nvidia: the driver is not installed" in lines[2]
    assert any(line.startswith("host") and "50%" in line and "busiest core100%" in line for line in lines)


def test_a_log_that_knows_nothing_of_its_host_shows_none() -> None:
    lines = shown(snapshot(h100(), host=HostReading(at_ns=0)))
    assert not any(line.startswith("host") for line in lines)


def test_reasons_that_slow_work_are_shown_and_idling_is_none() -> None:
    assert (
        "power cap, too hot"
        in shown(snapshot(h100(throttle_reasons=("idle", "power_cap", "hardware_thermal"))), width=120)[1]
    )
    assert "idle" not in shown(snapshot(h100(throttle_reasons=("idle",))))[1]


def test_many_devices_take_one_line_each() -> None:
    lines = shown(snapshot(*(h100(index) for index in range(8))), height=20)
    assert [line[0] for line in lines[1:9]] == [str(index) for index in range(8)]


def test_processes_are_sorted_filtered_and_not_shown_twice() -> None:
    big, small = ProcessUse(pid=1, memory_bytes=2 * GIB, name="big"), ProcessUse(pid=2, memory_bytes=GIB, name="small")
    busy = ProcessUse(pid=3, memory_bytes=None, busy_percent=90.0, command="python train.py")
    on_card = h100(processes=(big, small, busy))
    on_instance = Reading(at_ns=START_NS, device=0, mig=1, processes=(small,))
    moment = snapshot(on_card, on_instance)
    assert [(row.device, row.use.pid) for row in process_rows(moment, "memory", "")] == [("0", 1), ("0:1", 2), ("0", 3)]
    assert [row.use.pid for row in process_rows(moment, "busy", "")] == [3, 1, 2]
    assert [row.use.pid for row in process_rows(moment, "pid", "train py")] == [3]
    assert process_rows(moment, "pid", "nothing like it") == []


def test_findings_and_runs_are_shown() -> None:
    finding = Finding(
        kind="throttled",
        title="Device 0 runs below its clock",
        evidence=(Evidence("share", 0.5, "60 readings"),),
        severity="critical",
        remedy="Cool it.",
        gain=None,
        verify="Look again.",
    )
    run = RunLine(name="my-run", pid=7, step=1234, steps_per_s=3.217, shares=(("input", 0.41), ("backward", 0.3)))
    screen = "\n".join(shown(snapshot(h100()), findings=[finding] * 6, runs=[run]))
    assert "→ Device 0 runs below its clock" in screen and "and 2 more" in screen
    assert "my-run  step 1,234  3.22 steps/s  input 41%  backward 30%" in screen


def test_history_does_not_grow() -> None:
    history = History()
    for tenth in range(3000):  # five minutes at ten readings a second
        history.add(snapshot(h100(second=tenth / 10)))
    assert len(history.readings) == KEPT_S and len(history.host) == KEPT_S
    assert len(history.points("0", 10_000)) == KEPT_POINTS
    spread_s = (history.readings[-1].at_ns - history.readings[0].at_ns) / S
    assert 50 < spread_s < 70  # a minute, whatever the rate


def test_instances_that_go_are_forgotten() -> None:
    history = History()
    history.add(snapshot(h100(), Reading(at_ns=START_NS, device=0, mig=1)))
    history.add(snapshot(h100(second=1)))
    assert {reading.key for reading in history.readings} == {"0"}


def test_the_foot_asks_tells_and_takes_words() -> None:
    moment = snapshot(h100())
    assert shown(moment, asking="End process 7?")[-1].startswith("End process 7? y/n")
    assert shown(moment, typing=True, words="trai")[-1].startswith("show processes with: trai")
    assert shown(moment, message="Recorded.")[-1].startswith("Recorded.")
    assert "end the chosen process" in "\n".join(shown(moment, helping=True))


def test_small_texts() -> None:
    assert [bar(value, 4) for value in (None, 0.0, 50.0, 100.0, 140.0)] == ["    ", "    ", "██  ", "████", "████"]
    assert bar(56.25, 4) == "██▎ "
    assert spark([0.0, None, 100.0], 4) == " ▁ █"
    assert percent_text(None) == "   –" and percent_text(0.0) == "  0%"
    assert [rate_text(value) for value in (None, 0, 1500, 2.5e6, 4.2e10)] == [
        "–",
        "0 B/s",
        "1.5 kB/s",
        "2.5 MB/s",
        "42.0 GB/s",
    ]
    assert line_text(fit([("abcdef", "")], 4)) == "abc…" and line_text(fit([("ab", "")], 4)) == "ab  "
