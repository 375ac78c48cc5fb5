"""Steps of traces that mark none, from kernels that repeat; and repetitions that are no steps."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from nearpeak.trace.assembly import Assembly, named
from nearpeak.trace.repeats import repeated_steps
from nearpeak.trace.steps import with_some_steps
from nearpeak.trace.timeline import Kind, Timeline

KERNEL_NS, GAP_NS, PAUSE_NS = 900, 100, 20_000
FORWARD = ["embedding", *["norm", "gemm_a", "softmax", "gemm_b"] * 6, "loss"]
BACKWARD = ["loss_backward", *["gemm_c", "softmax_backward", "gemm_d", "norm_backward"] * 6, "embedding_backward"]
UPDATE = ["multi_tensor_apply_kernel<adam>"] * 3
STEP = [*FORWARD, *BACKWARD, *UPDATE]


def run(*parts: Sequence[str], device: int = 0) -> Timeline:
    """Kernels one after the other; before each part the device pauses."""
    moments, names, t = [], [], 0
    for part in parts:
        t += PAUSE_NS
        for name in part:
            moments.append(t)
            names.append(name)
            t += KERNEL_NS + GAP_NS
    assembly = Assembly("made")
    start_ns = np.array(moments, np.int64)
    assembly.add(
        start_ns=start_ns,
        duration_ns=np.full(len(start_ns), KERNEL_NS),
        kind=Kind.KERNEL,
        lane=assembly.lane("p", "stream 7", device),
        name=named(assembly, names),
    )
    return assembly.timeline()


def lengths_ns(line: Timeline) -> list[int]:
    steps = repeated_steps(line)
    return [] if steps is None else (steps.end_ns - steps.start_ns).tolist()


WHOLE_NS = len(STEP) * (KERNEL_NS + GAP_NS) + PAUSE_NS


def test_steps_begin_where_the_device_paused_most() -> None:
    line = run(*[STEP] * 5)
    assert lengths_ns(line) == [WHOLE_NS] * 4
    steps = repeated_steps(line)
    assert steps is not None and "`embedding`" in (steps.inferred or "") and steps.start_ns[0] == 0


def test_micro_batches_are_parts_of_a_step() -> None:
    step = [*FORWARD, *BACKWARD] * 4 + UPDATE
    assert lengths_ns(run(*[step] * 4)) == [len(step) * (KERNEL_NS + GAP_NS) + PAUSE_NS] * 3


def test_what_comes_before_and_between_is_no_step() -> None:
    setting_up, evaluation = ["normal_"] * 20 + ["uniform_"] * 9, FORWARD * 3
    found = lengths_ns(run(setting_up, *[STEP] * 6, evaluation, *[STEP] * 6))
    assert 9 <= len(found) <= 11 and set(found) == {WHOLE_NS}


def test_steps_may_differ_a_little() -> None:
    rng = random.Random(3)
    parts = [[name for name in STEP if rng.random() > 0.02] + ["copy_kernel"] * rng.randrange(3) for _ in range(20)]
    assert 15 <= len(lengths_ns(run(*parts))) <= 19


def test_a_long_pause_belongs_to_no_step() -> None:
    line = run(*[STEP] * 3, [], [], [], [], [], [], *[STEP] * 3)
    assert max(lengths_ns(line)) <= len(STEP) * (KERNEL_NS + GAP_NS) + 7 * PAUSE_NS
    long = run(*[STEP] * 3, *[[]] * 12, *[STEP] * 3)
    assert max(lengths_ns(long)) < WHOLE_NS + PAUSE_NS


@pytest.mark.parametrize(
    "parts",
    [
        [FORWARD],  # layers of one pass
        [FORWARD] * 6,  # a model that only infers
        [STEP],
        [STEP, STEP],
        [["gemm"] * 500],
        [["gemm", "adam_kernel"] * 100],  # two kernels in turn: a measurement
        [["a_backward", "b", "c", "d", "e"]],
        [[]],
    ],
)
def test_other_repetitions_are_no_steps(parts: list[list[str]]) -> None:
    line = run(*parts)
    assert repeated_steps(line) is None
    assert len(with_some_steps(line).steps) == min(len(line), 1)


def test_devices_may_have_any_number() -> None:
    assert lengths_ns(run(*[STEP] * 5, device=1 << 60)) == [WHOLE_NS] * 4
