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
from dataclasses import asdict, dataclass
from itertools import pairwise
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
WATCH = [sys.executable, "-m", "nearpeak", "watch"]
WARM_S = 75.0
"""The last minute of readings is kept: until it is full, and what is asked once a minute came twice, memory grows."""
MOST_GROWTH_MIB = 1.0
MOST_MIB_AN_HOUR = 3.0
SHORTEST_LINE_S = 300.0
PARTS = 10
"""A single page in less time makes megabytes an hour."""
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


@dataclass(frozen=True, slots=True)
class Held:
    """Resident MiB of a program that runs on."""

    first_mib: float
    warm_mib: float
    """Once everything that it keeps is full."""
    last_mib: float
    mib_an_hour: float
    """What came after that, by the middle one of ten equal parts' growths: a leak grows in each of them, while the
    interpreter lays its table of names out anew once, which is up to a megabyte and no leak."""

    @property
    def growth_mib(self) -> float:
        return self.last_mib - self.warm_mib


def memory_held(command: list[str], variables: dict[str, str], warm_s: float, measured_s: float) -> Held:
    """Watched beyond the warm-up, in which histories of a minute fill; ends are medians, since allocators breathe."""
    watched = Watched(command, variables)
    resident: list[float] = []
    try:
        time.sleep(2)
        first_mib = watched.process.memory_info().rss / MIB
        time.sleep(warm_s)
        begun = time.monotonic()
        while time.monotonic() - begun < measured_s:
            time.sleep(measured_s / 200)
            resident.append(watched.process.memory_info().rss / MIB)
    finally:
        watched.close()
    ends = statistics.median(resident[:20]), statistics.median(resident[-20:])
    return Held(first_mib, *ends, 3600 / (measured_s / PARTS) * middle_growth(resident))


def middle_growth(resident: list[float]) -> float:
    """From one part of the time to the next."""
    size = len(resident) // PARTS
    means = [statistics.fmean(resident[part * size : (part + 1) * size]) for part in range(PARTS)]
    return statistics.median(after - before for before, after in pairwise(means))


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


def memory_targets(held: Held, warm_s: float, measured_s: float) -> list[Target]:
    """The table and the targets of memory."""
    rows = [
        ["two seconds after the start", f"{held.first_mib:.1f} MiB"],
        [f"{warm_s:.0f} s later", f"{held.warm_mib:.2f} MiB"],
        [f"another {measured_s:.0f} s later", f"{held.growth_mib:+.2f} MiB"],
        ["middle growth of its ten parts", f"{held.mib_an_hour:+.2f} MiB an hour"],
    ]
    print_table("nearpeak watch, resident memory at 10 Hz", ["", "figure"], rows)
    growth = Target("growth of memory in MiB", held.growth_mib, MOST_GROWTH_MIB, at_most=True)
    slope = Target("growth of memory in MiB an hour", held.mib_an_hour, MOST_MIB_AN_HOUR, at_most=True)
    return [growth, slope] if measured_s >= SHORTEST_LINE_S else [growth]


def cpu_targets(tools: dict[str, list[str]], variables: dict[str, str], quick: bool) -> tuple[list[Target], Any]:
    """The tools take turns."""
    rounds, warm_s, measured_s = (1, 5.0, 8.0) if quick else (3, 10.0, 30.0)
    shares: dict[str, list[float]] = {name: [] for name in tools}
    for _ in range(rounds):
        for name, command in tools.items():
            shares[name].append(share_percent(command, variables, warm_s, measured_s))
    medians = {name: statistics.median(values) for name, values in shares.items()}
    rows = [[name, f"{medians[name]:.2f} %", " ".join(f"{v:.2f}" for v in shares[name])] for name in tools]
    print_table(f"CPU of one core, {DEVICES} devices at 1 Hz", ["tool", "median", "each"], rows)
    ours = medians["nearpeak watch"]
    others = [name for name in tools if name != "nearpeak watch"]
    return [Target(f"CPU beside {name}", ours / medians[name], 1.0, at_most=True) for name in others], shares


def speed_targets(variables: dict[str, str], chosen: Any) -> tuple[list[Target], dict[str, Any]]:
    """Beside the other tools, the first picture, and a day on disk."""
    others = others_environment(chosen.others)
    tools = {
        "nearpeak watch": WATCH,
        "nvitop": [str(others / "bin" / "nvitop"), "--monitor", "full", "--interval", "1"],
        "gpustat": [str(others / "bin" / "gpustat"), "--interval", "1"],
    }
    targets, shares = cpu_targets(tools, variables, chosen.quick)
    paint_ms, day = first_paint_ms(variables, 3 if chosen.quick else 7), day_megabytes()
    rows = [
        ["first picture, packages imported", f"{paint_ms:.0f} ms"],
        [f"a recorded day, {DEVICES} devices × 40 figures", f"{day:.1f} MB"],
    ]
    print_table("nearpeak watch", ["", "figure"], rows)
    targets += [
        Target("first picture in ms", paint_ms, 70.0, at_most=True),
        Target("recorded day in MB", day, DAY_MB, at_most=True),
    ]
    return targets, {"cpu_percent": shares, "first_paint_ms": paint_ms, "day_mb": day}


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--others", type=Path, metavar="VENV", help="environment with nvitop and gpustat")
    parser.add_argument("--only", choices=["memory"], help="nothing else")
    parser.add_argument("--memory-s", type=float, default=600.0, help="seconds over which memory is watched at 10 Hz")
    chosen = parser.parse_args()
    memory_s = 20.0 if chosen.quick else chosen.memory_s  # the warm-up cannot be hurried
    sleepers = [subprocess.Popen(["sleep", "100000"]) for _ in range(DEVICES)]
    targets: list[Target] = []
    figures: dict[str, Any] = {}
    try:
        with tempfile.TemporaryDirectory() as folder:
            devices = [h100(index, pids=(sleepers[index].pid,)) for index in range(DEVICES)]
            variables = environment(build(Path(folder)), describe(Path(folder) / "devices.txt", devices))
            variables |= {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT / "src")}
            if chosen.only is None:
                targets, figures = speed_targets(variables, chosen)
            held = memory_held([*WATCH, "--interval", "0.1"], variables, WARM_S, memory_s)
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()
    targets += memory_targets(held, WARM_S, memory_s)
    finish(targets, figures | asdict(held), chosen.json)


if __name__ == "__main__":
    main()
