from __future__ import annotations

import random
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from nearpeak.hardware.host_reading import HostReading
from nearpeak.hardware.reading import FIGURES, WHYS, Device, ProcessUse, Reading
from nearpeak.hardware.reading_store import (
    ReadingWriter,
    load_devices,
    load_host,
    load_readings,
    pack_readings,
    unpack_readings,
)
from nearpeak.recording import ReadingRecord, Recording, RowWriter

START_NS = 1_780_000_000_000_000_000
S = 1_000_000_000
H100 = Device(index=0, vendor="nvidia", name="NVIDIA H100 80GB HBM3", compute_capability=(9, 0))


def busy(second: float, device: int = 0, **figures: object) -> Reading:
    return Reading(at_ns=START_NS + int(second * S), device=device, **figures)  # type: ignore[arg-type]


def test_readings_come_back_as_they_were(tmp_path: Path) -> None:
    use = ProcessUse(pid=7, name="python", memory_bytes=1 << 30)
    given_readings = [
        busy(0, busy_percent=97.0, power_w=431.123, throttle_reasons=("power_cap",), missing={"fan_percent": "lost"}),
        busy(1, busy_percent=0.0, throttle_reasons=(), processes=(use,), other={"fb_l2 [%]": 3}),
        busy(2, state="lost", fault="GPU is lost", missing=dict.fromkeys(FIGURES, "lost")),
        busy(2, device=1, mig=3, memory_used_bytes=12 << 20),
    ]
    with ReadingWriter(tmp_path, [H100]) as writer:
        for reading in given_readings:
            writer.add(reading)
        writer.add(HostReading(at_ns=START_NS, core_percent=(1.0, 99.5), runnable=3))
    recording = Recording(tmp_path)
    assert list(load_readings(recording)) == given_readings
    assert list(load_readings(recording, from_ns=START_NS + 2 * S)) == given_readings[2:]
    assert load_devices(recording) == [H100]
    (host,) = load_host(recording)
    assert host.core_percent == (1.0, 99.5) and host.runnable == 3 and host.busiest_core_percent == 99.5
    assert recording.ending is not None and recording.ending.outcome == "finished"


VALUES = st.one_of(st.none(), st.integers(0, 2**53), st.floats(0, 1e13, allow_nan=False))


@settings(max_examples=30)
@given(st.lists(st.dictionaries(st.sampled_from(sorted(FIGURES)), VALUES, max_size=5), min_size=1, max_size=5))
def test_any_figures_come_back(rows: list[dict[str, float | int | None]]) -> None:
    rows = [{name: value for name, value in row.items() if name != "throttle_reasons"} for row in rows]
    readings = [
        busy(second, **row, missing={name: WHYS[0] for name, value in row.items() if value is None})
        for second, row in enumerate(rows)
    ]
    assert unpack_readings(pack_readings(readings)) == readings  # type: ignore[arg-type]


def test_what_was_taken_before_a_kill_is_there(tmp_path: Path) -> None:
    writer = ReadingWriter(tmp_path, flush_s=0.0)
    for second in range(5):
        writer.add(busy(second, busy_percent=float(second)))
    recording = Recording(tmp_path)  # while it is being written, and never closed
    assert [reading.busy_percent for reading in load_readings(recording)] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert recording.ending is None
    writer.close()


def test_lists_of_processes_are_thinned_and_changes_kept(tmp_path: Path) -> None:
    with ReadingWriter(tmp_path) as writer:
        for second in range(12):
            pid = 7 if second < 6 else 8
            writer.add(busy(second, processes=(ProcessUse(pid=pid, memory_bytes=second),)))
    kept = [(reading.at_ns - START_NS) // S for reading in load_readings(Recording(tmp_path)) if reading.processes]
    assert kept == [0, 6]


def test_rows_of_a_watched_run_are_read_too(tmp_path: Path) -> None:
    with ReadingWriter(tmp_path) as writer:
        writer.add(busy(1, busy_percent=50.0))
    rows = RowWriter(tmp_path)
    rows.write(
        [
            ReadingRecord(at_ns=START_NS, device=0, busy_percent=10.0, throttle_reasons="idle"),
            ReadingRecord(at_ns=START_NS, device=-1, busy_percent=90.0),  # the host
        ]
    )
    rows.close()
    first, second = load_readings(Recording(tmp_path))
    assert (first.busy_percent, first.throttle_reasons, second.busy_percent) == (10.0, ("idle",), 50.0)


def test_a_day_of_eight_devices_is_small() -> None:
    """The size of ten minutes of noisy figures, as many as promised; a day has 144 of these for each device."""
    rng = random.Random(3)
    readings, energy = [], 1e6
    counters = {name: 1 << 50 for name, figure in FIGURES.items() if figure.kind == "counter"}
    gauges = [name for name, figure in FIGURES.items() if figure.kind == "gauge" and name.endswith("_percent")][:18]
    for second in range(600):
        energy += round(rng.gauss(600, 30), 3)
        noisy = {name: round(min(100.0, max(0.0, rng.gauss(60, 15))), 2) for name in gauges}
        readings.append(
            busy(
                second + rng.randrange(10) / 1000,
                **noisy,
                energy_j=round(energy, 3),
                power_w=round(rng.gauss(600, 30), 3),
                power_instant_w=round(rng.gauss(600, 60), 3),
                memory_used_bytes=(70 << 30) + rng.randrange(100) * (2 << 20),
                clock_hz=1.98e9 - 15e6 * rng.randrange(8),
                temperature_c=60 + rng.randrange(4),
                nvlink_sent_bytes=counters["nvlink_sent_bytes"] + second * 10**9 + rng.randrange(10**6) * 1024,
                nvlink_received_bytes=counters["nvlink_sent_bytes"] + second * 10**9 + rng.randrange(10**6) * 1024,
                pcie_sent_bytes_per_s=float(rng.randrange(60_000) << 20),
                pcie_received_bytes_per_s=float(rng.randrange(60_000) << 20),
                throttle_reasons=("power_cap",) if rng.random() < 0.5 else (),
                throttled_power_s=second / 2,
                **{name: 0 for name in counters if name.startswith(("ecc", "rows", "xid"))},
                **{name: 1e9 for name in FIGURES if name.startswith("clock") and name.endswith("max_hz")},
            )
        )
    assert sum(getattr(readings[0], name) is not None for name in FIGURES) >= 40
    assert len(pack_readings(readings)) * 144 * 8 <= 60e6  # type: ignore[arg-type]
