"""What watching costs: eight stub GPUs at one reading a second, beside `nvitop` and `gpustat`; memory; size on disk.

    python benchmarks/watch.py --others VENV

VENV is an environment with nvitop and gpustat; without it one is made. All three draw on a terminal of 120 × 40 and
read the same stub driver (tests/hardware/stub), on which eight processes stand; ours asks for the performance counters
too. CPU time is that of the process, after ten seconds of start. The tools take turns, so that a busy machine hits all.
"""

from __future__ import annotations

import fcntl
import os
import pty
import random
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "hardware" / "stub"), str(ROOT / "src")]

from _table import Target, finish, options, print_table  # noqa: E402
from stub_nvml import build, describe, environment, h100  # noqa: E402

DEVICES = 8
COLUMNS, ROWS = 120, 40
DAY_MB = 60.0
MIB = 1 << 20
ANSWERS = {b"\x1b[6n": b"\x1b[1;1R", b"\x1b[c": b"\x1b[?62;22c", b"\x1b[>q": b"\x1bP>|stub\x1b\\"}
"""What programs ask a terminal, and wait for: where the cursor is, what it can do, who it is."""


class Watched:
    """A program on a terminal of its own, whose output is read and thrown away."""

    def __init__(self, command: list[str], variables: dict[str, str]) -> None:
        self._terminal, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._child = subprocess.Popen(
            command, stdin=inner, stdout=inner, stderr=inner, env=variables, start_new_session=True
        )
        os.close(inner)
        self.process = psutil.Process(self._child.pid)
        self.written = 0
        self._stop = threading.Event()
        self._reader = threading.Thread(target=self._drain)
        self._reader.start()

    def _drain(self) -> None:
        while not self._stop.is_set():
            ready, _, _ = select.select([self._terminal], [], [], 0.2)
            try:
                data = os.read(self._terminal, 65536) if ready else b""
                self.written += len(data)
                for question, answer in ANSWERS.items():
                    if question in data:
                        os.write(self._terminal, answer)
            except OSError:  # the program has ended
                return

    def cpu_s(self) -> float:
        """Of all threads, to the nanosecond: a program that works for a millisecond a second slips between the
        kernel's ticks, by which process times are counted."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9

    def close(self) -> None:
        self._child.terminate()
        try:
            self._child.wait(5)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._stop.set()
        self._reader.join()
        os.close(self._terminal)


def share_percent(command: list[str], variables: dict[str, str], warm_s: float, measured_s: float) -> float:
    """CPU of one core that the program takes once it runs."""
    watched = Watched(command, variables)
    try:
        time.sleep(warm_s)
        before_s, begun = watched.cpu_s(), time.monotonic()
        written = watched.written
        time.sleep(measured_s)
        share = 100 * (watched.cpu_s() - before_s) / (time.monotonic() - begun)
        if watched.written == written:
            raise SystemExit(f"{' '.join(command)}: drew nothing; is it installed?")
    finally:
        watched.close()
    return share


def memory_growth(command: list[str], variables: dict[str, str], measured_s: float) -> tuple[float, float]:
    """Resident MiB after the first fifth, and how much more at the end: medians, since allocators breathe."""
    watched = Watched(command, variables)
    samples: list[float] = []
    try:
        begun = time.monotonic()
        while time.monotonic() - begun < measured_s:
            time.sleep(measured_s / 100)
            samples.append(watched.process.memory_info().rss / MIB)
    finally:
        watched.close()
    early, late = statistics.median(samples[20:40]), statistics.median(samples[-20:])
    return early, late - early


def day_megabytes() -> float:
    """A recorded day of eight devices and forty figures: an hour of noisy readings is written, times 24."""
    from nearpeak.hardware.reading import Device, Reading
    from nearpeak.hardware.reading_store import ReadingWriter

    rng = random.Random(7)
    with tempfile.TemporaryDirectory() as folder:
        writer = ReadingWriter(folder, [Device(index=index, name="stub") for index in range(DEVICES)])
        for second in range(3600):
            for index in range(DEVICES):
                writer.add(Reading(**_noisy(rng, second, index)))
        writer.close()
        written = sum(path.stat().st_size for path in Path(folder).glob("recording.sqlite*"))
    return written * 24 / 1e6


NOISY_UNITS = """
    busy memory_busy engine sm_busy sm_occupancy tensor tensor_half dram fp64 fp32 fp16 integer
"""
NOISY_PERCENT = tuple(f"{name}_percent" for name in NOISY_UNITS.split())
STEADY = {
    "memory_total_bytes": 80 << 30,
    "power_limit_w": 700.0,
    "clock_max_hz": 1.98e9,
    "pcie_generation": 5,
    "pcie_width": 16,
    "performance_state": 0,
    "ecc_corrected": 0,
    "ecc_uncorrected": 0,
    "nvlink_links": 18,
    "xid_events": 0,
    "pcie_replays": 0,
    "fan_percent": 40.0,
    "throttled_thermal_s": 0.0,
    "row_remap_failed": False,
}


def _noisy(rng: random.Random, second: int, index: int) -> dict[str, Any]:
    """Forty figures, the changing ones with noise in every digit that drivers give."""
    figures: dict[str, Any] = {
        "at_ns": 1_790_000_000_000_000_000 + second * 10**9 + rng.randrange(20) * 10**6,
        "device": index,
        **{name: round(min(100.0, max(0.0, rng.gauss(60, 20))), 2) for name in NOISY_PERCENT},
        "power_w": round(rng.gauss(600, 40), 3),
        "power_instant_w": round(rng.gauss(600, 60), 3),
        "energy_j": round(600.0 * second + rng.random() * 50, 3),
        "clock_hz": 1.98e9 - 15e6 * rng.randrange(10),
        "clock_memory_hz": 2.619e9,
        "temperature_c": float(60 + rng.randrange(5)),
        "temperature_memory_c": float(70 + rng.randrange(5)),
        "memory_used_bytes": (61 << 30) + rng.randrange(200) * (2 << 20),
        "pcie_sent_bytes_per_s": float(rng.randrange(60_000) << 20),
        "pcie_received_bytes_per_s": float(rng.randrange(60_000) << 20),
        "nvlink_sent_bytes_per_s": float(rng.randrange(400_000) << 20),
        "nvlink_received_bytes_per_s": float(rng.randrange(400_000) << 20),
        "throttle_reasons": ("power_cap",) if rng.random() < 0.4 else (),
        "throttled_power_s": round(0.4 * second + rng.random() * 0.1, 3),
    }
    return figures | STEADY


FIRST_PAINT = """
import sys, time
from pathlib import Path
from nearpeak.report.watch.app import WatchApp
from nearpeak.report.watch.watcher import LiveWatcher

class Timed(WatchApp):
    def on_mount(self):
        self.call_after_refresh(self.painted)

    def painted(self):
        Path(sys.argv[1]).write_text(str(1e3 * (time.perf_counter() - begun)))
        self.leave()

watcher = LiveWatcher()
begun = time.perf_counter()
Timed(watcher, interval_s=1.0, color=True).run()
"""


def first_paint_ms(variables: dict[str, str], repeats: int) -> float:
    """From the start of the view, its packages imported, to the first picture on the terminal."""
    times = []
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(repeats):
            path = Path(folder) / str(repeat)
            watched = Watched([sys.executable, "-c", FIRST_PAINT, str(path)], variables)
            deadline = time.monotonic() + 30
            while not path.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(0.2)
            watched.close()
            times.append(float(path.read_text()))
    return statistics.median(times)


def others_environment(given: Path | None) -> Path:
    """An environment with the other two."""
    folder = given or ROOT / ".venv-others"
    if not (folder / "bin" / "nvitop").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(folder / "bin" / "pip"), "install", "--quiet", "nvitop", "gpustat"], check=True)
    return folder


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--others", type=Path, metavar="VENV", help="environment with nvitop and gpustat")
    parser.add_argument("--memory-s", type=float, default=600.0, help="seconds over which memory is watched at 10 Hz")
    chosen = parser.parse_args()
    rounds, warm_s, measured_s = (1, 5.0, 8.0) if chosen.quick else (3, 10.0, 30.0)
    memory_s = 30.0 if chosen.quick else chosen.memory_s
    others = others_environment(chosen.others)
    sleepers = [subprocess.Popen(["sleep", "100000"]) for _ in range(DEVICES)]
    with tempfile.TemporaryDirectory() as folder:
        devices = [h100(index, pids=(sleepers[index].pid,)) for index in range(DEVICES)]
        described = describe(Path(folder) / "devices.txt", devices)
        variables = environment(build(Path(folder)), described)
        variables |= {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT / "src")}
        watch = [sys.executable, "-m", "nearpeak", "watch"]
        tools = {
            "nearpeak watch": watch,
            "nvitop": [str(others / "bin" / "nvitop"), "--monitor", "full", "--interval", "1"],
            "gpustat": [str(others / "bin" / "gpustat"), "--interval", "1"],
        }
        try:
            shares: dict[str, list[float]] = {name: [] for name in tools}
            for _ in range(rounds):
                for name, command in tools.items():
                    shares[name].append(share_percent(command, variables, warm_s, measured_s))
            paint_ms = first_paint_ms(variables, 3 if chosen.quick else 7)
            resident, growth = memory_growth([*watch, "--interval", "0.1"], variables, memory_s)
        finally:
            for sleeper in sleepers:
                sleeper.kill()
                sleeper.wait()
    day = day_megabytes()
    medians = {name: statistics.median(values) for name, values in shares.items()}
    rows = [[name, f"{medians[name]:.2f} %", " ".join(f"{v:.2f}" for v in shares[name])] for name in tools]
    print_table(f"CPU of one core, {DEVICES} devices at 1 Hz", ["tool", "median", "each"], rows)
    print_table(
        "nearpeak watch",
        ["", "figure"],
        [
            [f"resident memory at 10 Hz, {memory_s:.0f} s", f"{resident:.1f} MiB, then {growth:+.2f} MiB"],
            ["first picture, packages imported", f"{paint_ms:.0f} ms"],
            [f"a recorded day, {DEVICES} devices × 40 figures", f"{day:.1f} MB"],
        ],
    )
    ours = medians["nearpeak watch"]
    targets = [
        Target("CPU beside nvitop", ours / medians["nvitop"], 1.0, at_most=True),
        Target("CPU beside gpustat", ours / medians["gpustat"], 1.0, at_most=True),
        Target("first picture in ms", paint_ms, 70.0, at_most=True),
        Target("growth of memory in MiB", growth, 1.0, at_most=True),
        Target("recorded day in MB", day, DAY_MB, at_most=True),
    ]
    figures = {
        "cpu_percent": shares,
        "first_paint_ms": paint_ms,
        "resident_mib": resident,
        "growth_mib": growth,
        "day_mb": day,
    }
    finish(targets, figures, chosen.json)


if __name__ == "__main__":
    main()
