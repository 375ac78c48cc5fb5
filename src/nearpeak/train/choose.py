"""Turns a plan with open choices into one that says everything, each choice with its reason.

Two ways: `settle` decides what a plan left to `auto` by what the model and data allow, and proves on real samples that
the gradient stays the same; `measure` (plan="auto") besides tries the few candidates that matter on real windows.
Neither leaves a trace in the training: parameters, buffers, random numbers and data position are as before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from nearpeak.errors import NotEquivalentError, SettingError, UnsupportedError
from nearpeak.plan import Plan
from nearpeak.reason import Reason
from nearpeak.train.accumulate import Execution, accumulate
from nearpeak.train.applied import applied
from nearpeak.train.checked import check, deviation_when_split, format_of, weights_precision
from nearpeak.train.cost import UNMEASURED, CostModel, fit_cost, probe_shapes
from nearpeak.train.device import is_out_of_memory, move, release_memory
from nearpeak.train.equivalence import couples_samples, holds
from nearpeak.train.kernels import fastest_kernels
from nearpeak.train.packed import PackedAdapter
from nearpeak.train.precision import bf16_is_native
from nearpeak.train.prepare import PreparedWindow, preparation_of
from nearpeak.train.trial import Settled, Trial
from nearpeak.train.untraced import untraced

__all__ = ["Settled", "Trial", "carry_out", "measure", "settle"]

DEFAULT_MICRO_BATCH_TOKENS = 16_384
"""Beyond this a micro-batch gains nothing per token on any device measured, while its memory grows."""
KEEP_BELOW_GAIN = 0.97
"""A candidate must take less than this share of the best one's time to replace it."""


def settle(trial: Trial, plan: Plan) -> Settled:
    """Decide what the plan leaves open; refuse what it asks for and the model cannot do."""
    adapter, packed_reason = PackedAdapter.find(trial.job.model)
    wanted, reasons = _wanted_micro_batching(trial, plan, adapter, packed_reason)
    plan, shift_reasons = _with_measured_shift(trial, plan, adapter)
    reasons_so_far = [*reasons, *shift_reasons]
    for choice in wanted:
        settled = _with_micro_batching(trial, plan, choice, adapter)
        refusal, reason = check(trial, settled)
        reasons_so_far.append(reason)
        if refusal is None:
            reasons_so_far += _token_limit_reason(plan, settled.plan)
            return replace(settled, plan=replace(settled.plan, reasons=(*plan.reasons, *reasons_so_far)))
        if plan.micro_batching != "auto":
            raise NotEquivalentError(refusal)
    raise AssertionError("fixed micro-batches are the reference and always hold")


def _token_limit_reason(plan: Plan, settled: Plan) -> list[Reason]:
    if settled.micro_batch_tokens == plan.micro_batch_tokens:
        return []
    because = (
        "A larger micro-batch gains nothing per token on any device measured, while its memory grows; what does not "
        "fit is split further when that shows."
    )
    return [Reason(f"micro_batch_tokens={settled.micro_batch_tokens}", because)]


def carry_out(trial: Trial, plan: Plan) -> Settled:
    """What executes a plan that is already settled."""
    adapter = PackedAdapter.find(trial.job.model)[0]
    if plan.micro_batching == "packed" and adapter is None:
        raise UnsupportedError("micro_batching='packed' was settled on another rank but this one's model cannot do it.")
    return _with_micro_batching(trial, plan, plan.micro_batching, adapter)


def _wanted_micro_batching(
    trial: Trial, plan: Plan, adapter: PackedAdapter | None, packed_reason: Reason
) -> tuple[list[str], list[Reason]]:
    """Ways to split windows, best first; the last is always one that cannot change anything."""
    coupling = couples_samples(trial.job.model)
    if plan.micro_batching == "fixed":
        return ["fixed"], [Reason("micro_batching=fixed", "As set.")]
    if coupling is not None:
        _refuse_if_explicit(plan, f"{coupling} couples the samples of a micro-batch")
        return ["fixed"], [
            Reason("micro_batching=fixed", f"{coupling} couples samples, so micro-batches stay as they are.")
        ]
    if _lengths(trial) is None:
        _refuse_if_explicit(plan, "the samples have no length that nearpeak can see (give Job(length=...))")
        return ["fixed"], [Reason("micro_batching=fixed", "Samples have no length to sort by.")]
    if plan.micro_batching == "packed" and adapter is None:
        raise UnsupportedError(f"micro_batching='packed': {packed_reason.because} Use 'partition'.")
    if plan.micro_batching != "auto":
        return [plan.micro_batching], [Reason(f"micro_batching={plan.micro_batching}", "As set.")]
    return [*(["packed"] if adapter else []), "partition", "fixed"], [packed_reason]


def _refuse_if_explicit(plan: Plan, because: str) -> None:
    if plan.micro_batching != "auto":
        raise UnsupportedError(
            f"micro_batching={plan.micro_batching!r} cannot be used: {because}. "
            "Use micro_batching='fixed' and set micro_batch."
        )


def _lengths(trial: Trial) -> list[int] | None:
    if not trial.windows:
        return None
    return preparation_of(trial.job, "fixed").lengths(trial.windows[0][0])


def _with_micro_batching(trial: Trial, plan: Plan, choice: str, adapter: PackedAdapter | None) -> Settled:
    """The plan with this choice, and the preparation that carries it out."""
    tokens = plan.micro_batch_tokens
    if choice != "fixed" and tokens is None:
        tokens = DEFAULT_MICRO_BATCH_TOKENS
    micro_batch = plan.micro_batch
    if choice == "fixed" and micro_batch is None:
        # The window at once is what nothing can be wrong with; what does not fit is halved when that shows.
        micro_batch = trial.job.global_batch
    cost = CostModel(*plan.cost_terms) if plan.cost_terms else UNMEASURED
    settled = replace(plan, micro_batching=choice, micro_batch_tokens=tokens, micro_batch=micro_batch)
    preparation = preparation_of(
        trial.job,
        choice,
        micro_batch=micro_batch,
        micro_batch_tokens=tokens,
        cost=cost,
        format=format_of(plan, adapter),
    )
    return Settled(settled, preparation, adapter if choice == "packed" else None)


def _with_measured_shift(trial: Trial, plan: Plan, adapter: PackedAdapter | None) -> tuple[Plan, list[Reason]]:
    """Whether the loss leaves out each sample's first label, as causal models do: measured, where it counts."""
    if trial.job.normaliser != "tokens" or not trial.windows or couples_samples(trial.job.model) is not None:
        return plan, []
    likely = format_of(plan, adapter).shifts_labels if plan.shifted_labels is None else plan.shifted_labels
    for shifted in (likely, not likely):
        deviation = deviation_when_split(trial, replace(plan, shifted_labels=shifted), adapter)
        if deviation is not None and holds(deviation, weights_precision(trial.job.model)):
            because = f"Then the mean over a window does not depend on how it is split ({deviation})."
            return replace(plan, shifted_labels=shifted), [Reason(f"shifted_labels={shifted}", because)]
    return replace(plan, shifted_labels=likely), []


def measure(trial: Trial, allow: Sequence[str] = ()) -> Plan:
    """plan="auto": try what matters on real windows, keep the fastest, say why."""
    plan = Plan()
    if trial.device.type == "cpu":
        plan = _with_reason(plan, *_best_threads(trial))
        kernels, reasons = fastest_kernels(trial.job.model, trial.device)
        plan = replace(plan, matmul=kernels.matmul, dropout=kernels.dropout, reasons=(*plan.reasons, *reasons))
    settled = settle(trial, plan)
    settled = _because(settled, *_not_tried(trial, allow))
    while True:
        try:
            return _fastest(trial, settled, allow).plan
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        release_memory(trial.device)
        smaller = _with_half_the_tokens(trial, settled)
        if smaller is None:
            unmeasured = "A window did not fit into the device's memory, so nothing else was tried."
            return _because(settled, Reason("as checked, not measured", unmeasured)).plan
        settled = smaller


def _because(settled: Settled, *reasons: Reason) -> Settled:
    return replace(settled, plan=replace(settled.plan, reasons=(*settled.plan.reasons, *reasons)))


def _fastest(trial: Trial, settled: Settled, allow: Sequence[str]) -> Settled:
    if settled.plan.micro_batching == "partition":
        settled = _with_measured_cost(trial, settled)
    for candidate in _alternatives(trial, settled, allow):
        settled = _faster_of(trial, settled, candidate)
    return settled


def _with_half_the_tokens(trial: Trial, settled: Settled) -> Settled | None:
    """Smaller micro-batches of the same windows, after one did not fit; None where the longest sample fills them."""
    lengths, tokens = _lengths(trial), settled.plan.micro_batch_tokens
    if settled.plan.micro_batching == "fixed" or lengths is None or tokens is None:
        return None
    half = min(tokens, sum(lengths)) // 2
    if half < max(lengths):
        return None
    reason = Reason(f"micro_batch_tokens={half}", "More at once did not fit into the device's memory.")
    smaller = _because(settled, reason)
    plan = replace(smaller.plan, micro_batch_tokens=half)
    return _with_micro_batching(trial, plan, plan.micro_batching, settled.adapter)


def _with_reason(plan: Plan, threads: int, reason: Reason) -> Plan:
    return replace(plan, threads=threads, reasons=(*plan.reasons, reason))


def _best_threads(trial: Trial, repeats: int = 5) -> tuple[int, Reason]:
    """Cores that others use make more threads slower, up to several times: measured, not counted."""
    before = torch.get_num_threads()
    most = max(before, _usable_cores())
    counts = sorted({1, max(1, most // 2), most})
    matrix = torch.ones(1024, 1024)
    times_ms: dict[int, list[float]] = {count: [] for count in counts}
    try:
        for _ in range(repeats):
            for count in counts:
                torch.set_num_threads(count)
                times_ms[count].append(_timed_ms(lambda: [matrix @ matrix for _ in range(4)]))
    finally:
        torch.set_num_threads(before)
    # The median, since contention is what is being measured.
    typical_ms = {count: sorted(times)[len(times) // 2] for count, times in times_ms.items()}
    best = min(counts, key=lambda count: (typical_ms[count], count))
    evidence = {f"threads_{count}_ms": round(ms, 3) for count, ms in typical_ms.items()}
    return best, Reason(
        f"threads={best}", "A matrix product is fastest with them on this machine as it is now.", dict(evidence)
    )


def _usable_cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _timed_ms(run: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    run()
    return (clock() - start) * 1e3


def _with_measured_cost(trial: Trial, settled: Settled) -> Settled:
    """Fit the cost model to real samples in a handful of shapes."""
    samples, refs = trial.windows[0]
    lengths = settled.preparation.lengths(samples)
    assert lengths is not None
    by_length = sorted(range(len(samples)), key=lengths.__getitem__)
    shapes = probe_shapes(lengths, settled.plan.micro_batch_tokens)
    if len(shapes) < 3:
        return settled  # all of one length: there is only one way to cut them
    probes = []
    for count, length in shapes:
        nearest = min(by_length, key=lambda i: abs(lengths[i] - length))
        window = preparation_of(trial.job, "partition", micro_batch_tokens=None)(
            [samples[nearest]] * count, [refs[nearest]] * count
        )
        probes.append((count, lengths[nearest], _window_ms(trial, settled, [window])))
    fit = fit_cost(probes)
    terms = (fit.model.launch_ms, fit.model.token_ms, fit.model.square_ms)
    because = f"{fit.probes} probes, median error {fit.median_error:.0%}."
    reason = Reason(
        f"cost={fit.model.launch_ms:.2f} ms + {fit.model.token_ms:.4f} ms/token",
        because,
        {"median_error": fit.median_error},
    )
    plan = replace(settled.plan, cost_terms=terms, reasons=(*settled.plan.reasons, reason))
    return Settled(plan, replace(settled.preparation, cost=fit.model), settled.adapter)


def _alternatives(trial: Trial, settled: Settled, allow: Sequence[str]) -> list[Settled]:
    """Other plans worth measuring: precision where allowed, and padding in place of packing."""
    candidates: list[Settled] = []
    if not trial.windows:
        return candidates
    if settled.plan.micro_batching == "packed":
        padded = _with_micro_batching(trial, settled.plan, "partition", None)
        if check(trial, padded)[0] is None:
            # Cut by measured cost, as it would be if it won: the trial has to be a fair one.
            candidates.append(_with_measured_cost(trial, padded))
    native, evidence = bf16_is_native(trial.device)
    if "bf16" in allow and native:
        reason = Reason("precision=bf16 considered", f"Allowed, and the device has it ({evidence}).")
        plan = replace(settled.plan, precision="bf16", reasons=(*settled.plan.reasons, reason))
        candidates.append(replace(settled, plan=plan))
    return candidates


def _not_tried(trial: Trial, allow: Sequence[str]) -> list[Reason]:
    """Why a precision that is allowed is not even measured; refuses what `auto` does not choose between."""
    for precision in allow:
        if precision not in ("bf16", "fp32"):
            raise SettingError(f"allow={precision!r}: plan='auto' chooses between fp32 and bf16; set others in a plan.")
    if "bf16" not in allow:
        return []
    native, evidence = bf16_is_native(trial.device)
    if not native:
        return [Reason("precision=fp32", f"bf16 is allowed, but would be emulated here ({evidence}), which is slower.")]
    if not trial.windows:
        because = "bf16 is allowed, but a stream has no window to measure it on; set it in the plan."
        return [Reason("precision=fp32", because)]
    return []


def _faster_of(trial: Trial, best: Settled, candidate: Settled) -> Settled:
    """Interleaved, on the same windows; a tie goes to what is there."""
    # A precision is tried on the micro-batches that won so far; it may have other kernels for them.
    if candidate.plan.precision != best.plan.precision:
        plan = replace(best.plan, precision=candidate.plan.precision, reasons=candidate.plan.reasons)
        candidate = replace(best, plan=plan)
        refusal, reason = check(trial, candidate)
        if refusal is not None:
            return _because(best, Reason(f"not precision={plan.precision}", refusal, reason.evidence))
    times_ms = ([], [])
    for _ in range(3):
        for times, settled in zip(times_ms, (best, candidate), strict=True):
            prepared = [settled.preparation(samples, refs) for samples, refs in trial.windows]
            times.append(_window_ms(trial, settled, prepared))
    ratio = min(times_ms[1]) / min(times_ms[0])
    name = _difference(best.plan, candidate.plan)
    winner = candidate if ratio < KEEP_BELOW_GAIN else best
    because = f"{name} takes {ratio:.2f} of the time of what was best so far, measured on {len(trial.windows)} windows."
    reason = Reason(name if winner is candidate else f"not {name}", because, {"ratio": ratio})
    own = [known for known in winner.plan.reasons if known not in best.plan.reasons]
    return replace(winner, plan=replace(winner.plan, reasons=(*best.plan.reasons, *own, reason)))


def _difference(best: Plan, candidate: Plan) -> str:
    names = ("micro_batching", "precision")
    return ", ".join(f"{n}={getattr(candidate, n)}" for n in names if getattr(candidate, n) != getattr(best, n))


def _window_ms(trial: Trial, settled: Settled, windows: Sequence[PreparedWindow]) -> float:
    """Forward and backward of some windows, in ms, without a trace."""
    execution = trial.execution(settled.plan.precision, settled.adapter)
    # On CPUs, the time that this process computed: what else runs there must not decide.
    clock = time.process_time if trial.device.type == "cpu" else time.perf_counter
    with untraced(trial.job.model, trial.device), applied(trial.job.model, settled.plan):
        trial.job.model.train()
        moved = [move(window, trial.device) for window in windows]
        return _timed_ms(lambda: _run(execution, moved), clock)


def _run(execution: Execution, windows: Sequence[PreparedWindow]) -> None:
    for window in windows:
        accumulate(execution, window.micro_batches, units=max(1, window.units))
    if execution.device.type == "cuda":
        torch.cuda.synchronize(execution.device)
