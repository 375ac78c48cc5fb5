"""XProf's own figures reduced to facts, where the trace itself is gone."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from nearpeak.diagnose.breakdown import Breakdown, total
from nearpeak.diagnose.facts import Facts
from nearpeak.diagnose.kernels import traits_of
from nearpeak.diagnose.trace_facts import CollectiveFacts, KernelFacts, TraceFacts, TraceRank
from nearpeak.trace.xprof import XprofFigures

__all__ = ["reduce_xprof", "steps_of"]

COPIES = ("to_device", "output", "device_to_device")
HOST_WORK = ("host_compute", "compile")
WAITING_STAGES = ("prefetch", "generator", "model", "root", "rebatch")
"""Last part of a stage's name: these hand on what others make."""
EXCHANGE = re.compile(r"nccl|collective|all-?_?reduce|all-?_?gather|all-?to-?all|reduce-?scatter", re.IGNORECASE)
NS_PER_MS = 1e6


def reduce_xprof(hosts: Sequence[XprofFigures]) -> tuple[Facts, list[str]]:
    """Facts of all hosts together, and what could not be told, each as a sentence."""
    unknown = [f"{host.source}: {note}" for host in hosts for note in host.notes]
    told = [host for host in hosts if len(host.step_ms)]
    source = (
        f"XProf's own figures in {hosts[0].source}" if len(hosts) == 1 else f"XProf's figures of {len(hosts)} hosts"
    )
    if not told:
        return Facts(source=source), [*unknown, "No times of steps were found; give the *.xplane.pb file itself."]
    unknown.append(
        "These are XProf's own figures, per step and host: single kernels, streams and devices are not in its files."
    )
    ranks = tuple(total(steps_of(host)) for host in told)
    steps = max(len(host.step_ms) for host in told)
    facts = Facts(
        source=f"{steps} steps, {source}",
        steps=steps,
        step_ms=float(np.median(np.concatenate([host.step_ms for host in told]))),
        breakdown=total(list(ranks)),
        ranks=ranks,
        trace=TraceFacts(
            ranks=tuple(
                TraceRank(source=host.host, rank=rank, device=None, step_ms=float(host.step_ms.mean()))
                for rank, host in enumerate(told)
            ),
            world_size=len(told),
            is_xplane=True,
            input_stage=_longest_stage(told),
            kernels=_kernels(told),
            collectives=_collectives(told),
        ),
    )
    return facts, unknown


def _longest_stage(hosts: Sequence[XprofFigures]) -> str | None:
    """By the pipeline's own work: what waits for an earlier stage shows that one's time, too."""
    stages = [
        stage for host in hosts for stage in host.stages if stage.name.rpartition("::")[2].lower() not in WAITING_STAGES
    ]
    longest = max(stages, key=lambda stage: stage.self_ms, default=None)
    return None if longest is None else f"{longest.name} ({longest.category.lower() or 'unclassified'})"


def _kernels(hosts: Sequence[XprofFigures]) -> tuple[KernelFacts, ...]:
    """Of the tables of kernels, which say themselves what ran on Tensor Cores; operations are none."""
    found = []
    for op in (op for host in hosts for op in host.ops if op.tensor_cores is not None):
        traits = traits_of(op.name)
        found.append(
            KernelFacts(
                name=op.name,
                family=traits.family,
                uses_tensor_cores=bool(op.tensor_cores),
                number_format=traits.number_format,
                count=op.count,
                time_ns=round(op.self_us * 1e3),
            )
        )
    return tuple(sorted(found, key=lambda each: -each.time_ns))


def _collectives(hosts: Sequence[XprofFigures]) -> tuple[CollectiveFacts, ...]:
    """Operations on a device that exchange; their time is all of it, hidden or not."""
    ops = [op for host in hosts for op in host.ops if op.on_device and EXCHANGE.search(op.type or op.name)]
    found = [
        CollectiveFacts(operation=op.type or op.name, count=op.count, time_ns=round(op.self_us * 1e3)) for op in ops
    ]
    return tuple(sorted(found, key=lambda each: -each.time_ns))


def steps_of(host: XprofFigures) -> list[Breakdown]:
    """XProf's parts of each step under nearpeak's causes; what its parts leave of the step is `other`."""
    ns = {part: np.rint(each * NS_PER_MS).astype(np.int64) for part, each in host.parts_ms.items()}
    rest = np.maximum(np.rint(host.step_ms * NS_PER_MS).astype(np.int64) - sum(ns.values()), 0)
    return [
        _breakdown({part: int(each[step]) for part, each in ns.items()}, int(rest[step]))
        for step in range(len(host.step_ms))
    ]


def _breakdown(parts_ns: dict[str, int], rest_ns: int) -> Breakdown:
    idle_ns = {
        "input": parts_ns["wait_input"],
        "host_work": sum(parts_ns[part] for part in HOST_WORK),
        "launch": parts_ns["launch"],
        "other": parts_ns["unknown"] + rest_ns,
    }
    return Breakdown(
        window_ns=sum(parts_ns.values()) + rest_ns,
        compute_ns=parts_ns["compute"],
        communication_ns=parts_ns["collectives"],
        copy_ns=sum(parts_ns[part] for part in COPIES),
        idle_ns=idle_ns,
    )
