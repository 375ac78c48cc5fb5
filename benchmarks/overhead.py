"""What watching a training costs, measured twice; beside it other tools. Run it on a machine that does nothing else.

In one process: `nearpeak run` watches a job that switches the watching off and on in turn, for seconds each; a pair of
stretches is compared. This is the exact figure, and the targets are its.

Process against process: the same steps plain and under a tool, interleaved. A process counts by its CPU time a step,
all of it, and by its wall time a step without the slowest fiftieth. Two processes that do the same differ by 1 to 2 %,
so of these a target asks only that their interval does not lie above the bound.

Figures are medians over pairs, intervals those of 2,000 resamplings of them (95 %).

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
NEARPEAK = "nearpeak run"
Command = Callable[[list[str], str], list[str]]
Told = tuple[float, float, float]
"""Percent: likely, and the ends of its interval."""

TOOLS: dict[str, Command] = {
    "plain": lambda job, folder: [sys.executable, *job],
    NEARPEAK: lambda job, folder: [
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


def run_job(tool: str, arguments: list[str]) -> dict[str, Any]:
    """What the job printed."""
    with tempfile.TemporaryDirectory() as folder:
        command = TOOLS[tool]([JOB, *arguments], folder)
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=300)
    # Its own line on stdout: tools print more there.
    lines = [line[line.index('{"') :] for line in done.stdout.splitlines() if '{"wall_ms"' in line or '{"on"' in line]
    if not lines:
        raise RuntimeError(f"{tool}: no figures; exit code {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(lines[0])


def run_once(tool: str, step_ms: int, steps: int) -> dict[str, Any]:
    """Wall and CPU milliseconds a step, and the digest of what was learned."""
    figures = run_job(tool, ["--step-ms", str(step_ms), "--steps", str(steps)])
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


def overhead(runs: dict[str, list[dict[str, Any]]], tool: str, clock: str) -> Told:
    """Percent over the plain run of the same round."""
    return spread([100 * (own[clock] / plain[clock] - 1) for own, plain in zip(runs[tool], runs["plain"], strict=True)])


def alternated(step_ms: int, pairs: int) -> dict[str, Told]:
    """Percent that the watching takes inside one process, on each clock."""
    told = run_job(NEARPEAK, ["--step-ms", str(step_ms), "--alternate", str(pairs)])
    both = list(zip(told["on"], told["off"], strict=True))
    return {clock: spread([100 * (on[i] / off[i] - 1) for on, off in both]) for i, clock in enumerate(("wall", "cpu"))}


def spread(percents: list[float]) -> Told:
    """The median and its interval."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(percents, k=len(percents))) for _ in range(2000))
    return statistics.median(percents), medians[49], medians[1949]


def others() -> list[str]:
    """Those that are installed."""
    found = ["torch.profiler"]
    if shutil.which("pyinstrument", path=str(Path(sys.executable).parent)):
        found.append("pyinstrument")
    if (Path(sys.executable).parent / "traceml").exists():
        found.append("traceml-ai")
    return found


def in_one_process(pairs: int, figures: dict[str, Any]) -> list[Target]:
    """Its table, and the targets."""
    rows, targets = [], []
    for step_ms, most in MOST_PERCENT.items():
        told = figures[f"in one process, {step_ms} ms"] = alternated(step_ms, pairs)
        rows.append([f"{step_ms} ms", *(cell(each) for each in told.values())])
        for clock, (likely, _, _) in told.items():
            targets.append(Target(f"{clock} overhead at {step_ms} ms steps, percent", likely, most, at_most=True))
    print_table("Watching switched on and off in one process", ["step", "wall % (95 %)", "CPU % (95 %)"], rows)
    return targets


def process_by_process(rounds: int, other_rounds: int, quick: bool, figures: dict[str, Any]) -> list[Target]:
    """nearpeak and the other tools, each against plain runs of its own rounds."""
    rows, targets = [], []
    for step_ms, most in MOST_PERCENT.items():
        steps = STEPS[step_ms] // (4 if quick else 1)
        groups = [measure(["plain", NEARPEAK], step_ms, rounds, steps)]
        groups += [measure(["plain", tool], step_ms, other_rounds, steps) for tool in others()]
        for runs in groups:
            tool = next(name for name in runs if name != "plain")
            same = len({run["digest"] for each in runs.values() for run in each}) == 1
            plain_ms = statistics.median(run["wall"] for run in runs["plain"])
            told = {clock: overhead(runs, tool, clock) for clock in ("wall", "cpu")}
            rows.append(
                [f"{tool}, {step_ms} ms", f"{plain_ms:.2f}", *map(cell, told.values()), "yes" if same else "NO"]
            )
            figures[f"{tool}, {step_ms} ms"] = {"plain_ms": plain_ms, "percent": told, "runs": runs}
            if tool == NEARPEAK:
                low = {f"{clock}, at {step_ms} ms": each[1] for clock, each in told.items()}
                targets += [Target(f"low end between processes, {n}", x, most, at_most=True) for n, x in low.items()]
                targets.append(Target(f"weights the same at {step_ms} ms steps", float(same), 1.0))
    columns = ["tool, step", "plain ms", "wall % (95 %)", "CPU % (95 %)", "same weights"]
    print_table("Every step watched, process against process", columns, rows)
    return targets


def cell(told: Told) -> str:
    likely, low, high = told
    return f"{likely:+.2f} ({low:+.2f} to {high:+.2f})"


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--pairs", type=int, default=14, help="of stretches in one process")
    parser.add_argument("--rounds", type=int, default=6, help="of processes")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    figures: dict[str, Any] = {}
    targets = in_one_process(2 if given.quick else given.pairs, figures)
    rounds = (2, 1) if given.quick else (given.rounds, 2)
    targets += process_by_process(*rounds, given.quick, figures)
    finish(targets, figures, given.json)


if __name__ == "__main__":
    main()
