"""Reading traces: CPU and peak memory against the least that reading JSON costs, and growth from 10 MB to 1 GB.

    python benchmarks/traces.py [TRACE...] [--quick] [--json FILE] [--analyser PYTHON]

Without names it takes the traces in ../shared/cases/traces where they are, and in any case one of its own that repeats
a step. Every measurement is a fresh process. What it imports is not counted, neither nearpeak's nor the analyser's; the
last columns of the comparison with the analyser give the whole process. The bar: unpacking the file and parsing it into
typed objects of the same fields, by the same library.
"""

from __future__ import annotations

import gzip
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from _table import Target, finish, options, print_table

CASES = Path(__file__).parents[2] / "shared" / "cases" / "traces"
SIZES_MB = (10, 100, 1000)
QUICK_SIZES_MB = (2, 8)
REPEATS = 3
MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one way to read one trace."""

    cpu_s: float
    peak_mb: float
    """Above what the process held before."""
    process_cpu_s: float
    """From the start of the process, imports included."""


# -- contenders: each is given files and imports what it needs before the clock starts ---------------------------------


def diagnose() -> Callable[[list[Path]], object]:
    """All that `nearpeak diagnose` reckons: timelines, breakdown, facts, findings."""
    from nearpeak.diagnose.diagnosis import conclude
    from nearpeak.diagnose.facts import Facts
    from nearpeak.diagnose.reduce_traces import reduce_traces
    from nearpeak.diagnose.rules import findings
    from nearpeak.trace.formats import read_traces

    for module in (
        "nearpeak.trace.kineto",
        "nearpeak.trace.processes",
        "nearpeak.trace.chrome_planes",
        "nearpeak.trace.nsys",
        "nearpeak.trace.xplane",
        "numpy.ma",
    ):
        import_module(module)
    findings(Facts(source="nothing"))  # imports the rules

    def run(paths: list[Path]) -> object:
        facts, unknown = reduce_traces(read_traces(paths))
        return conclude(facts, unknown)

    return run


def typed_parse() -> Callable[[list[Path]], object]:
    """Unpack a file and parse it whole into typed objects, file by file."""
    import msgspec

    from nearpeak.trace.kineto_events import Document, Event

    document, events = msgspec.json.Decoder(Document), msgspec.json.Decoder(list[Event])

    def parse(path: Path) -> int:
        packed = path.read_bytes()
        text = gzip.decompress(packed) if packed[:2] == b"\x1f\x8b" else packed
        found = events.decode(text) if text.lstrip()[:1] == b"[" else document.decode(text).trace_events
        return len(found or [])

    return lambda paths: [parse(path) for path in paths]


CONTENDERS: dict[str, Callable[[], Callable[[list[Path]], object]]] = {"nearpeak": diagnose, "typed parse": typed_parse}


# -- measuring ---------------------------------------------------------------------------------------------------------


def measure(name: str, paths: list[Path], repeats: int) -> Cost:
    """The least CPU of several fresh processes, and the peak memory of the first."""
    command = [sys.executable, __file__, "--measure", name, *map(str, paths)]
    return least(
        [json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout) for _ in range(repeats)]
    )


def least(costs: list[dict[str, float]]) -> Cost:
    """The least CPU of several processes, and the peak memory of the first."""
    cpu_s, process_cpu_s = (min(each[name] for each in costs) for name in ("cpu_s", "process_cpu_s"))
    return Cost(cpu_s, costs[0]["peak_mb"], process_cpu_s)


def measure_here(name: str, paths: list[Path]) -> None:
    """Called in the fresh process."""
    run = CONTENDERS[name]()
    before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    began = time.process_time()
    run(paths)
    ended = time.process_time()
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before_mb
    print(json.dumps({"cpu_s": ended - began, "peak_mb": peak_mb, "process_cpu_s": ended}))


# -- a trace that repeats a step ---------------------------------------------------------------------------------------

LAYERS = 60


def step_events(number: int, begin_us: float) -> Iterator[dict[str, object]]:
    """One training step as PyTorch's profiler writes it: ranges, operators with their arguments, calls, kernels."""
    yield span("user_annotation", f"ProfilerStep#{number}", begin_us, 60_000, 42, 42, {"External id": number})
    loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    yield span("user_annotation", loader, begin_us + 5, 900, 42, 42, {"External id": number})
    for layer in range(LAYERS):
        at, first = begin_us + 1000 + 900 * layer, (number * LAYERS + layer) * 3
        module = f"torch/nn/modules/linear.py(116): forward_{layer}"
        yield span(
            "python_function", module, at, 800, 42, 42, {"Python id": first, "Python parent id": 1, "Ev Idx": first}
        )
        for part, operator in enumerate(("aten::linear", "aten::addmm", "aten::relu")):
            t, correlation = at + 250 * part, first + part
            about = {"External id": correlation, "Input Dims": [[256, 1024], [1024, 4096], []], "Ev Idx": correlation,
                     "Input type": ["float", "float", "Scalar"], "Concrete Inputs": ["", "", "1"]}  # fmt: skip
            yield span("cpu_op", operator, t, 120, 42, 42, about)
            call = {"External id": correlation, "cbid": 211, "correlation": correlation}
            yield span("cuda_runtime", "cudaLaunchKernel", t + 80, 9, 42, 42, call)
            yield {"ph": "s", "id": correlation, "pid": 42, "tid": 42, "ts": t + 80, "cat": "ac2g", "name": "ac2g"}
            yield {
                "ph": "f",
                "id": correlation,
                "pid": 0,
                "tid": 7,
                "ts": t + 95,
                "cat": "ac2g",
                "name": "ac2g",
                "bp": "e",
            }
            kernel = {"External id": correlation, "queued": 0, "device": 0, "context": 1, "stream": 7,
                      "correlation": correlation, "registers per thread": 122, "shared memory": 16384,
                      "blocks per SM": 2.4, "warps per SM": 19.2, "grid": [8, 32, 1], "block": [256, 1, 1],
                      "est. achieved occupancy %": 31}  # fmt: skip
            yield span("kernel", KERNELS[part], t + 95, 180, 7, 0, kernel)


KERNELS = (
    "volta_sgemm_128x64_tn",
    "void cutlass::Kernel<cutlass_80_simt_sgemm_128x64_8x5_nt>(cutlass_80_simt_sgemm_128x64_8x5_nt::Params)",
    "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::launch_clamp_scalar(at::"
    "TensorIteratorBase&)::{lambda()#1}, at::detail::Array<char*, 2> >(int, {lambda()#1}, at::detail::Array<char*, 2>)",
)


def span(
    category: str, name: str, ts: float, dur: float, tid: int, pid: int, args: dict[str, object]
) -> dict[str, object]:
    """One complete event."""
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def write_repeated(path: Path, size_mb: float) -> Path:
    """A packed trace whose text has this size."""
    written = 0
    with gzip.open(path, "wt", compresslevel=1, encoding="utf-8") as file:
        file.write('{"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": [\n')
        number = 0
        while written < size_mb * MB:
            text = ",\n".join(json.dumps(event) for event in step_events(number, 1e9 + 60_100.0 * number))
            written += file.write(text if number == 0 else ",\n" + text)
            number += 1
        file.write('],\n"traceName": "repeated.json"}\n')
    return path


# -- tables ------------------------------------------------------------------------------------------------------------


def cases(named: list[Path]) -> dict[str, list[Path]]:
    """Name → files."""
    if named or not CASES.is_dir():
        return {path.name: sorted(path.glob("*.json*")) if path.is_dir() else [path] for path in named}
    found = {path.name.removesuffix(".json.gz"): [path] for path in sorted(CASES.glob("*.json.gz"))}
    return {**found, "dlrm_v100_8ranks": sorted((CASES / "dlrm_v100_8ranks").glob("*.json"))}


def compare(rows: dict[str, list[Path]], repeats: int) -> dict[str, dict[str, Cost]]:
    """Every contender on every trace."""
    found = {name: {who: measure(who, paths, repeats) for who in CONTENDERS} for name, paths in rows.items()}
    table = [
        [
            name,
            f"{costs['typed parse'].cpu_s:.3f}",
            f"{costs['nearpeak'].cpu_s:.3f}",
            f"{costs['nearpeak'].cpu_s / costs['typed parse'].cpu_s:.2f}",
            f"{costs['typed parse'].peak_mb:.0f}",
            f"{costs['nearpeak'].peak_mb:.0f}",
        ]
        for name, costs in found.items()
    ]
    columns = ["trace", "parse CPU s", "nearpeak CPU s", "ratio", "parse peak MB", "nearpeak peak MB"]
    print_table("unpack and typed parse, against all that nearpeak diagnose does", columns, table)
    return found


def against_analyser(
    python: str, rows: dict[str, list[Path]], own: dict[str, dict[str, Cost]], repeats: int
) -> dict[str, Cost]:
    """What another analyser of traces needs for the same figures, beside what nearpeak needs for all of its own."""
    found: dict[str, Cost] = {}
    table = []
    for name, paths in rows.items():
        told = [run_analyser(python, paths) for _ in range(repeats)]
        why = next((each for each in told if isinstance(each, str)), None)
        ours = own[name]["nearpeak"]
        if why is not None:
            table.append([name, "fails", f"{ours.cpu_s:.3f}", *[""] * 5, why[:40]])
            continue
        theirs = found[name] = least([each for each in told if isinstance(each, dict)])
        figures = [theirs.cpu_s, ours.cpu_s, theirs.cpu_s / ours.cpu_s, theirs.peak_mb, ours.peak_mb]
        whole = [theirs.process_cpu_s, ours.process_cpu_s]
        table.append([name, *(f"{figure:.3g}" for figure in (*figures, *whole)), ""])
    columns = ["trace", "HTA CPU s", "own CPU s", "ratio", "HTA peak MB", "own peak MB", "HTA whole s", "own whole s"]
    title = "the analyser's temporal, idle, overlap and kernel breakdowns, against all of nearpeak's"
    print_table(title, [*columns, "failed"], table)
    return found


def run_analyser(python: str, paths: list[Path]) -> dict[str, float] | str:
    """Its costs; a sentence where it fails, as a whole or at one of its figures."""
    command = [python, str(Path(__file__).parent / "_analyser.py"), *(str(path.resolve()) for path in paths)]
    done = subprocess.run(command, capture_output=True, text=True)
    last = (done.stdout.splitlines() or [""])[-1]
    if done.returncode or not last.startswith("{"):
        return (done.stderr.strip().splitlines() or ["no output"])[-1]
    told = json.loads(last)
    return "; ".join(told["failed"]) or told


def judged_against(theirs: dict[str, Cost], own: dict[str, dict[str, Cost]]) -> list[Target]:
    """Traces that the analyser can read: each, and all together."""
    ours = [own[name]["nearpeak"] for name in theirs]
    ratios = {name: cost.cpu_s / own[name]["nearpeak"].cpu_s for name, cost in theirs.items()}
    worst = min(ratios, key=lambda name: ratios[name])
    cpu = sum(each.cpu_s for each in theirs.values()) / sum(each.cpu_s for each in ours)
    peaks = (own[name]["nearpeak"].peak_mb / cost.peak_mb for name, cost in theirs.items())
    return [
        Target(f"the analyser's CPU over nearpeak's, least of all traces ({worst})", ratios[worst], 8),
        Target("the analyser's CPU over nearpeak's, all traces", cpu, 8),
        Target("nearpeak's peak memory over the analyser's, most of all traces", max(peaks), 0.5, at_most=True),
    ]


def main() -> None:
    """Measure, print, judge."""
    if sys.argv[1:2] == ["--measure"]:
        measure_here(sys.argv[2], [Path(each) for each in sys.argv[3:]])
        return
    parser = options(__doc__ or "")
    parser.add_argument("traces", nargs="*", type=Path, metavar="TRACE")
    parser.add_argument(
        "--analyser", metavar="PYTHON", help="interpreter that has HolisticTraceAnalysis; see _analyser.py"
    )
    arguments = parser.parse_args()
    sizes, repeats = (QUICK_SIZES_MB, 1) if arguments.quick else (SIZES_MB, REPEATS)
    real = compare(cases(arguments.traces), repeats) if cases(arguments.traces) else {}
    with tempfile.TemporaryDirectory() as folder:
        repeated = {f"{size} MB": [write_repeated(Path(folder) / f"{size}.json.gz", size)] for size in sizes}
        made = compare(repeated, 1 if arguments.quick else 2)
        targets = judged(real, made)
        figures = {name: {who: asdict(cost) for who, cost in costs.items()} for name, costs in {**real, **made}.items()}
        if arguments.analyser:
            rows = {**cases(arguments.traces), **dict(list(repeated.items())[:1])}
            theirs = against_analyser(arguments.analyser, rows, {**real, **made}, repeats)
            targets += judged_against(theirs, {**real, **made}) if theirs else []
            for name, cost in theirs.items():
                figures[name]["analyser"] = asdict(cost)
    finish(targets, figures, arguments.json)


def judged(real: dict[str, dict[str, Cost]], made: dict[str, dict[str, Cost]]) -> list[Target]:
    """The targets; real traces are judged together, since small ones are fixed costs."""
    names = list(made)
    small, large = made[names[0]], made[names[-1]]
    growth = float(names[-1].split()[0]) / float(names[0].split()[0])
    targets = [
        Target(f"CPU over typed parse, {names[-1]}", ratio([large]), 1.5, at_most=True),
        Target(
            f"CPU from {names[0]} to {names[-1]}, over growth in proportion",
            large["nearpeak"].cpu_s / small["nearpeak"].cpu_s / growth,
            1.15,
            at_most=True,
        ),
        Target(
            f"peak memory over typed parse, {names[-1]}",
            large["nearpeak"].peak_mb / max(large["typed parse"].peak_mb, 1),
            0.5,
            at_most=True,
        ),
    ]
    if real:
        targets.insert(
            0, Target("CPU over typed parse, all real traces", ratio(list(real.values())), 1.5, at_most=True)
        )
    return targets


def ratio(rows: list[dict[str, Cost]]) -> float:
    """Of the sums of CPU time."""
    return sum(row["nearpeak"].cpu_s for row in rows) / sum(row["typed parse"].cpu_s for row in rows)


if __name__ == "__main__":
    main()
