"""What watching a training costs: the same steps plain and under `nearpeak run`, interleaved; beside it other tools.

Each run is a process of its own. A run counts by its CPU time a step, all of it, and by its wall time a step without
the slowest fiftieth. Tools are compared with the plain run of the same round; the figure is the median over the rounds,
the interval that of 2,000 resamplings of the rounds (95 %). Run it on a machine that does nothing else.

    python benchmarks/overhead.py
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _table import Target, finish, options, print_table

JOB = str(Path(__file__).parent / "_overhead_job.py")
STEPS = {5: 1200, 20: 320}
MOST_PERCENT = {5: 3.0, 20: 1.0}
SLOWEST_SHARE = 0.02
Command = Callable[[list[str], str], list[str]]

TOOLS: dict[str, Command] = {
    "plain": lambda job, folder: [sys.executable, *job],
    "nearpeak run": lambda job, folder: [
        *(sys.executable, "-m", "nearpeak", "run", "-q", "--output", f"{folder}/run", "--", sys.executable),
        *job,
    ],
    "torch.profiler": lambda job, folder: [sys.executable, *job, "--with", "torch.profiler"],
    "pyinstrument": lambda job, folder: [sys.executable, "-m", "pyinstrument", "-o", f"{folder}/p.txt", *job],
    "traceml-ai": lambda job, folder: [
        *(str(Path(sys.executable).parent / "traceml"), "run", job[0], "--logs-dir", f"{folder}/logs"),
        *("--args", *job[1:], "--with", "traceml"),
    ],
}


def run_once(tool: str, step_ms: int, steps: int) -> dict[str, Any]:
    """Wall and CPU milliseconds a step, and the digest of what was learned."""
    job = [JOB, "--step-ms", str(step_ms), "--steps", str(steps)]
    with tempfile.TemporaryDirectory() as folder:
        # Its own line on stdout: tools print more there.
        done = subprocess.run(TOOLS[tool](job, folder), capture_output=True, text=True, cwd=folder, timeout=300)
    lines = [line[line.index('{"wall_ms"') :] for line in done.stdout.splitlines() if '{"wall_ms"' in line]
    if not lines:
        raise RuntimeError(f"{tool}: no figures; exit code {done.returncode}\n{done.stderr[-2000:]}")
    figures = json.loads(lines[0])
    wall = sorted(figures["wall_ms"])
    kept = wall[: len(wall) - int(SLOWEST_SHARE * len(wall))]
    return {"wall": statistics.fmean(kept), "cpu": statistics.fmean(figures["cpu_ms"]), "digest": figures["digest"]}


def measure(tools: list[str], step_ms: int, rounds: int, steps: int) -> dict[str, list[dict[str, Any]]]:
    """Each round runs every tool once, in an order that turns."""
    runs: dict[str, list[dict[str, Any]]] = {tool: [] for tool in tools}
    for number in range(rounds):
        turn = number % len(tools)
        for tool in tools[turn:] + tools[:turn]:
            runs[tool].append(run_once(tool, step_ms, steps))
    return runs


def overhead(runs: dict[str, list[dict[str, Any]]], tool: str, clock: str) -> tuple[float, float, float]:
    """Percent over the plain run: median, and its interval."""
    ratios = [100 * (own[clock] / plain[clock] - 1) for own, plain in zip(runs[tool], runs["plain"], strict=True)]
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return statistics.median(ratios), medians[49], medians[1949]


def others() -> list[str]:
    """Those that are installed."""
    found = ["torch.profiler"]
    if shutil.which("pyinstrument", path=str(Path(sys.executable).parent)):
        found.append("pyinstrument")
    if (Path(sys.executable).parent / "traceml").exists():
        found.append("traceml-ai")
    return found


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=8)
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    rounds, other_rounds = (2, 1) if given.quick else (given.rounds, 2)
    rows, targets, figures = [], [], {}
    for step_ms, most in MOST_PERCENT.items():
        steps = STEPS[step_ms] // (4 if given.quick else 1)
        groups = [measure(["plain", "nearpeak run"], step_ms, rounds, steps)]
        groups += [measure(["plain", tool], step_ms, other_rounds, steps) for tool in others()]
        for runs in groups:
            tool = next(name for name in runs if name != "plain")
            same = {run["digest"] for each in runs.values() for run in each}
            plain = {clock: statistics.median(run[clock] for run in runs["plain"]) for clock in ("wall", "cpu")}
            told = {clock: overhead(runs, tool, clock) for clock in ("wall", "cpu")}
            cells = [f"{likely:+.2f} ({low:+.2f} to {high:+.2f})" for likely, low, high in told.values()]
            rows.append([f"{tool}, {step_ms} ms", f"{plain['wall']:.2f}", *cells, "yes" if len(same) == 1 else "NO"])
            figures[f"{tool}, {step_ms} ms"] = {"plain_ms": plain, "percent": told, "runs": runs}
            if tool == "nearpeak run":
                targets += [
                    Target(f"{clock} overhead at {step_ms} ms steps, percent", told[clock][0], most, at_most=True)
                    for clock in ("wall", "cpu")
                ]
                targets.append(Target(f"weights the same at {step_ms} ms steps", float(len(same) == 1), 1.0))
    columns = ["tool, step", "plain ms", "wall % (95 %)", "CPU % (95 %)", "same weights"]
    print_table("Overhead of watching every step", columns, rows)
    finish(targets, figures, given.json)


if __name__ == "__main__":
    main()
