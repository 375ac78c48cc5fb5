"""What HolisticTraceAnalysis (or its descendant traceinsight) needs for the figures that both give of a trace.

Run by an interpreter that has one of them; it prints JSON. It needs nothing of nearpeak, so that the package can live
in an environment of its own:

    python -m venv /tmp/hta && /tmp/hta/bin/pip install HolisticTraceAnalysis
    python benchmarks/traces.py --analyser /tmp/hta/bin/python
"""

from __future__ import annotations

import json
import logging
import resource
import sys
import time
import warnings


def main() -> None:
    """Temporal breakdown, idle time by cause, overlap, kernels; what the package itself fails at is left out."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    from hta.trace_analysis import TraceAnalysis  # pyright: ignore[reportMissingImports]

    before_mb = peak_mb()
    began = time.process_time()
    analysis = TraceAnalysis(trace_files=dict(enumerate(sys.argv[1:])), trace_dir="/")
    failed = []
    for name, more in (
        ("get_temporal_breakdown", {}),
        ("get_idle_time_breakdown", {"ranks": list(range(len(sys.argv) - 1))}),
        ("get_comm_comp_overlap", {}),
        ("get_gpu_kernel_breakdown", {}),
    ):
        try:
            getattr(analysis, name)(visualize=False, **more)
        except Exception as error:  # noqa: BLE001 — what it fails at is part of the comparison
            failed.append(f"{name}: {type(error).__name__}: {error}")
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    process_cpu_s = time.process_time() + spent.ru_utime + spent.ru_stime
    costs = {"cpu_s": process_cpu_s - began, "peak_mb": peak_mb() - before_mb, "process_cpu_s": process_cpu_s}
    print(json.dumps({**costs, "failed": failed}))


def peak_mb() -> float:
    """Of this process and the largest of those it started."""
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024


if __name__ == "__main__":
    main()
