"""Does `nearpeak run` name what holds a training back, and does the remedy bring what it says?

    python benchmarks/verdicts.py
    python benchmarks/verdicts.py --only padding --only straggler
    python benchmarks/verdicts.py --together 6 --repeats 3
    python benchmarks/verdicts.py --quick

Each job in benchmarks/jobs has one planted cause, and `--remedied` runs the same job as it should have been. A job is
watched once; its top finding must name the cause. Then both versions run unwatched, in turns, and the share of the mean
step that the remedy saves must lie in the interval that the finding gave. Healthy jobs must have no finding whose
likely gain is above 5 %. Each job runs on two cores; where there are many, `--together` runs several side by side,
each on two of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from _table import Target, finish, options, print_table

from nearpeak.diagnose.recorded import diagnose_recording
from nearpeak.finding import Finding
from nearpeak.recording import Recording

JOBS = Path(__file__).parent / "jobs"
QUICK = ("input_slow_storage", "padding_to_longest", "healthy_in_memory")
CORES_EACH = 2
NAMED, HEALTHY, INSIDE = 0.95, 0.05, 0.80
TIMEOUT_S = 180
STEPS: list[str] = []
"""Handed to every job; empty leaves each its own number."""
BIND = "import os, sys; os.sched_setaffinity(0, map(int, sys.argv[1].split(','))); os.execv(sys.argv[2], sys.argv[2:])"


@dataclass(frozen=True)
class Planted:
    """A job and what its top finding must be."""

    name: str
    kind: str
    words: str = ""
    """Found in its title: which of the causes of that kind."""
    ranks: int = 1


PLANTED = (
    Planted("anomaly_detection", "debugging"),
    Planted("checkpoint_too_often", "checkpointing"),
    Planted("communication_each_micro_batch", "communication", "after each of 8 micro-batches", ranks=2),
    Planted("evaluation_too_often", "evaluation"),
    Planted("garbage_collected_each_step", "host_work", "garbage collector"),
    Planted("input_decode", "input", "no workers"),
    Planted("input_restarted_workers", "input", "started anew for each epoch"),
    Planted("input_slow_collator", "input", "slow collator"),
    Planted("input_slow_storage", "input", "slow storage"),
    Planted("input_tokenising", "input", "tokenising"),
    Planted("input_too_few_workers", "input", "too few workers"),
    Planted("logging_everything", "logging"),
    Planted("loss_scale_collapsing", "loss_scale"),
    Planted("memory_leak", "memory_growth"),
    Planted("metrics_read_each_step", "sync"),
    Planted("optimizer_unfused", "optimizer"),
    Planted("padding_to_longest", "padding"),
    Planted("precision_fp32", "precision"),
    Planted("recompilation", "recompile"),
    Planted("straggler", "straggler", "Rank 1", ranks=2),
    Planted("threads_too_few", "threads", "left idle"),
    Planted("threads_too_many", "threads", "hold each other up"),
    Planted("tiny_micro_batches", "underfilled", "16 micro-batches"),
)
HEALTHY_JOBS = (
    Planted("healthy_in_memory", ""),
    Planted("healthy_loader", ""),
    Planted("healthy_text", ""),
    Planted("healthy_two_ranks", "", ranks=2),
    Planted("healthy_whole_loop", ""),
)


@dataclass(frozen=True)
class Verdict:
    """What was said of one job, and what its remedy brought."""

    job: str
    expected: str
    top: str | None
    title: str | None
    named: bool
    predicted: tuple[float, float, float] | None = None
    """Low, likely, high: the share of the step saved."""
    measured: float | None = None

    @property
    def inside(self) -> bool | None:
        """None where there is nothing to compare: the finding counts no time, or another cause was named."""
        if self.predicted is None or self.measured is None or not self.named:
            return None
        return self.predicted[0] <= self.measured <= self.predicted[2]


def watched(job: Planted, folder: Path, cores: set[int]) -> list[Finding]:
    """The findings of one run under `nearpeak run`, ranked."""
    observed = [sys.executable, "-m", "nearpeak", "run", "--output", str(folder), "--", *command(job, False)]
    execute(observed, cores)
    return list(diagnose_recording(Recording(folder)).findings)


def command(job: Planted, remedied: bool) -> list[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(job.ranks)]
    return [
        sys.executable,
        *(launcher if job.ranks > 1 else []),
        str(JOBS / f"{job.name}.py"),
        *(["--remedied"] if remedied else []),
        *STEPS,
    ]


def step_ms(job: Planted, remedied: bool, cores: set[int]) -> float:
    """Mean step of one unwatched run, as the job itself measured it."""
    lines = [line for line in execute(command(job, remedied), cores).splitlines() if line.startswith("{")]
    return json.loads(lines[-1])["mean_step_ms"]


def execute(arguments: list[str], cores: set[int]) -> str:
    """Its standard output. Threads are the job's own business: nothing is set for it."""
    kept = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    # The launcher binds itself, and what it starts inherits that.
    bound = [sys.executable, "-c", BIND, ",".join(map(str, sorted(cores))), *arguments]
    done = subprocess.run(bound, capture_output=True, text=True, env=kept, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout


def saved(job: Planted, repeats: int, cores: set[int]) -> float:
    """The share of the mean step that the remedy saves: medians of runs that took turns."""
    pairs = [(step_ms(job, False, cores), step_ms(job, True, cores)) for _ in range(repeats)]
    before, after = (statistics.median(each) for each in zip(*pairs, strict=True))
    return 1 - after / before


def judge(job: Planted, repeats: int, cores: set[int]) -> Verdict:
    """Watch it; where the cause is named and counted in time, measure what the remedy brings."""
    with tempfile.TemporaryDirectory() as folder:
        findings = watched(job, Path(folder) / "run", cores)
    top = findings[0] if findings else None
    named = top is not None and top.kind == job.kind and re.search(job.words, top.title) is not None
    gain = top.gain if top is not None else None
    return Verdict(
        job.name,
        job.kind,
        top.kind if top else None,
        top.title if top else None,
        named,
        (gain.low, gain.likely, gain.high) if gain else None,
        saved(job, repeats, cores) if named and gain else None,
    )


def healthy(job: Planted, repeats: int, cores: set[int]) -> Verdict:
    """The largest likely gain that is claimed for a job that has no fault."""
    with tempfile.TemporaryDirectory() as folder:
        findings = watched(job, Path(folder) / "run", cores)
    claims = [finding for finding in findings if finding.gain is None or finding.gain.likely > HEALTHY]
    worst = max(claims, key=lambda each: each.gain.likely if each.gain else 1.0, default=None)
    gain = worst.gain if worst else None
    predicted = (gain.low, gain.likely, gain.high) if gain else None
    return Verdict(
        job.name, "none", worst.kind if worst else None, worst.title if worst else None, worst is None, predicted
    )


def row(verdict: Verdict) -> list[str]:
    low, likely, high = verdict.predicted or (None, None, None)
    return [
        verdict.job,
        verdict.expected,
        verdict.top or "none",
        "yes" if verdict.named else "NO",
        "-" if low is None else f"{100 * low:.0f} to {100 * (high or 0):.0f}, likely {100 * (likely or 0):.0f}",
        "-" if verdict.measured is None else f"{100 * verdict.measured:.0f}",
        {None: "-", True: "yes", False: "NO"}[verdict.inside],
    ]


def chosen(given: argparse.Namespace) -> tuple[list[Planted], list[Planted]]:
    wanted = given.only or (QUICK if given.quick else None)

    def keep(jobs: tuple[Planted, ...]) -> list[Planted]:
        return [job for job in jobs if wanted is None or any(part in job.name for part in wanted)]

    return keep(PLANTED), keep(HEALTHY_JOBS)


def targets(planted: list[Verdict], well: list[Verdict]) -> list[Target]:
    compared = [verdict.inside for verdict in planted if verdict.inside is not None]
    made = []
    if planted:
        share = sum(verdict.named for verdict in planted) / len(planted)
        made.append(Target("planted causes named by the top finding", share, NAMED))
    if compared:
        made.append(Target("measured gains inside the predicted interval", sum(compared) / len(compared), INSIDE))
    if well:
        wrong = sum(not verdict.named for verdict in well)
        made.append(Target("healthy jobs with a finding above 5 %", wrong, 0, at_most=True))
    return made


def run_all(jobs: list[Planted], how: Callable[..., Verdict], repeats: int, together: int) -> list[Verdict]:
    """Some side by side, each on cores of its own."""
    free: queue.Queue[set[int]] = queue.Queue()
    cores = sorted(os.sched_getaffinity(0))
    for slot in range(together):
        free.put(set(cores[slot * CORES_EACH : (slot + 1) * CORES_EACH]))

    def run(job: Planted) -> Verdict:
        own = free.get()
        try:
            verdict = how(job, repeats, own)
        finally:
            free.put(own)
        print(f"{verdict.job}: {verdict.title or 'no finding'}", file=sys.stderr, flush=True)
        return verdict

    with ThreadPoolExecutor(together) as pool:
        return list(pool.map(run, jobs))


def main() -> None:
    parser = options(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", action="append", metavar="NAME", help="jobs whose name contains it; may be repeated")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each version (default 2)")
    parser.add_argument("--together", type=int, default=1, help="jobs side by side, two cores each (default 1)")
    parser.add_argument("--steps", type=int, help="updates of each job, for a short run (default: each job's own)")
    given = parser.parse_args()
    STEPS.extend(["--steps", str(given.steps)] if given.steps else [])
    if not 1 <= given.together <= max(1, len(os.sched_getaffinity(0)) // CORES_EACH):
        parser.error(f"--together {given.together}: each job needs {CORES_EACH} cores of its own.")
    jobs, sound = chosen(given)
    repeats = 1 if given.quick else given.repeats
    planted = run_all(jobs, judge, repeats, given.together)
    well = run_all(sound, healthy, repeats, given.together)
    columns = ["job", "planted", "top finding", "named", "predicted gain, %", "measured", "inside"]
    print_table("Jobs with one planted cause, and healthy ones", columns, [row(each) for each in (*planted, *well)])
    figures: dict[str, Any] = {"planted": list(map(asdict, planted)), "healthy": list(map(asdict, well))}
    finish(targets(planted, well), figures, given.json)


if __name__ == "__main__":
    main()
