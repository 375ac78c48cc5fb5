"""What a captured step must hold, counted by hand on small models."""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from nearpeak.errors import MissingExtraError, NearpeakError, SettingError, UnsupportedError
from nearpeak.predict.capture import capture, capture_all
from nearpeak.predict.memory import forecast_memory
from nearpeak.predict.played import play
from nearpeak.predict.request import CaptureRequest
from nearpeak.predict.step_trace import StepTrace, repeated

pytest.importorskip("torch.utils.backend_registration", reason="needs torch")
KIB, MIB = 1 << 10, 1 << 20


STEPS: dict[str, dict[str, Any]] = {
    "perceptron": {},
    "perceptron bf16": {"precision": "bf16"},
    "perceptron bf16-weights": {"precision": "bf16-weights"},
    "perceptron fused": {"implementation": "fused"},
    "own_optimizer": {},
    "returning_more": {},
    "dropped": {},
    "attention bf16": {"precision": "bf16"},
    "attention fp32": {},
    "attention fp16 on Turing": {"precision": "fp16", "compute_capability": (7, 5)},
    "grouped": {},
    "grouped channels last": {"channels_last": True},
    "experts": {},
    "experts fp16-weights": {"precision": "fp16-weights"},
    "experts bf16-weights": {"precision": "bf16-weights"},
    "norms": {},
    "broken": {},
    "selecting": {},
    "changed": {},
    "failing_backward": {},
    "killed": {},
    "leaving": {},
    "perceptron again": {},
}


@functools.cache
def results() -> dict[str, StepTrace | NearpeakError]:
    """All in one process: each would cost seconds."""
    requests = [
        CaptureRequest(model=f"steps:{name.split()[0]}", kind="function", **settings)
        for name, settings in STEPS.items()
    ]
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{Path(__file__).parent}{os.pathsep}{before or ''}"
    try:
        return dict(zip(STEPS, capture_all(requests), strict=True))
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def captured(name: str) -> StepTrace:
    result = results()[name]
    assert isinstance(result, StepTrace), result
    return result


def live_bytes(trace: StepTrace, phase: str, step: int = 0) -> int:
    """In use when a phase ends."""
    live = 0
    for segment in trace.segments:
        for event in segment.events:
            size = trace.allocations[abs(event) - 1].bytes
            live += size if event > 0 else -size
        if (segment.phase, segment.step) == (phase, step):
            return live
    raise AssertionError(f"no {phase} {step}")


def by_category(trace: StepTrace) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in trace.allocations:
        total[each.category] = total.get(each.category, 0) + each.bytes
    return total


def test_a_perceptron_is_counted_as_by_hand() -> None:
    trace = captured("perceptron")
    weights, activation = 3 * 4 * MIB, MIB
    sizes = by_category(trace)
    assert trace.parameters == 3 * MIB
    assert sizes["parameters"] == sizes["gradients"] == weights
    assert sizes["optimizer_state"] == 2 * weights
    assert sizes["inputs"] == activation
    assert sizes["activations"] == 2 * activation + 4 or sizes["activations"] == 2 * activation
    assert live_bytes(trace, "backward") >= 2 * weights
    assert trace.flops == 2 * 256 * 1024 * 1024 * (3 + 3 + 2)  # no gradient for the input of the first


def test_modules_are_named_in_forward_and_in_backward() -> None:
    trace = captured("perceptron")
    products = [(each.phase, each.module) for each in trace.operators if each.name == "mm"]
    assert products[:3] == [("forward", "0"), ("forward", "1"), ("forward", "2")]
    assert sorted(products[3:]) == [("backward", "0"), *[("backward", "1")] * 2, *[("backward", "2")] * 2]


def test_later_steps_free_what_they_allocate() -> None:
    trace = repeated(captured("perceptron"), 4)
    steady = [live_bytes(trace, "zero_grad", step) for step in range(4)]
    assert steady[1] == steady[2] == steady[3]
    freed = [event for segment in trace.segments for event in segment.events if event < 0]
    assert len(freed) == len(set(freed))
    made = [event for segment in trace.segments for event in segment.events if event > 0]
    assert sorted(made) == list(range(1, len(trace.allocations) + 1))


def test_outputs_are_held_as_long_as_the_loop_does() -> None:
    """What the model returns beside the loss: 64 MiB that backward does not read."""
    trace = captured("returning_more")
    kept, returned, dropped = (
        play(repeated(trace, 3, outputs_until=until)).peak_allocated for until in ("next_step", "step_end", "backward")
    )
    assert kept >= returned
    assert returned - dropped >= 60 * MIB
    forecast = forecast_memory(trace)
    assert forecast.allocated.interval.likely == kept
    assert forecast.allocated.interval.low < dropped
    assert any("--outputs-until" in risk.name for risk in forecast.risks)
    told = forecast_memory(trace, outputs_until="backward")
    assert told.allocated.interval.likely == dropped
    assert not any("--outputs-until" in risk.name for risk in told.risks)


def test_state_that_an_optimizer_replaces_does_not_pile_up() -> None:
    trace = repeated(captured("own_optimizer"), 5)
    steady = [live_bytes(trace, "zero_grad", step) for step in range(5)]
    assert len(set(steady[1:])) == 1
    assert steady[1] - steady[0] < MIB


def test_autocast_keeps_casts_of_weights_and_halves_activations() -> None:
    full, half = captured("perceptron"), captured("perceptron bf16")
    assert by_category(half)["autocast_cache"] == by_category(full)["parameters"] // 2
    assert by_category(half)["gradients"] == by_category(full)["gradients"]
    pure = captured("perceptron bf16-weights")
    assert by_category(pure)["parameters"] == by_category(full)["parameters"] // 2
    assert "autocast_cache" not in by_category(pure)


def test_dropout_keeps_a_mask_of_one_byte_an_element() -> None:
    kept = [each.bytes for each in captured("dropped").allocations if each.category == "activations"]
    assert MIB in kept
    assert 4 * MIB not in kept[1:] or kept.count(4 * MIB) <= 1


@pytest.mark.parametrize(
    ("step", "kernel"),
    [
        ("attention bf16", "_scaled_dot_product_flash_attention"),
        ("attention fp32", "_scaled_dot_product_efficient_attention"),
        ("attention fp16 on Turing", "_scaled_dot_product_efficient_attention"),
    ],
)
def test_attention_runs_the_kernel_of_card_and_precision(step: str, kernel: str) -> None:
    names = {each.name for each in captured(step).operators}
    assert {each for each in names if each.endswith("_attention")} == {kernel}


def test_grouped_convolution_backward_costs_twice_forward() -> None:
    flops: dict[str, int] = {}
    for each in captured("grouped").operators:
        if each.module != "1":
            continue
        flops[each.name] = flops.get(each.name, 0) + each.flops
    assert flops["convolution"] == 2 * 8 * 16 * 16 * 64 * 16 * 9
    assert flops["convolution_backward"] == 2 * flops["convolution"]


@pytest.mark.parametrize(("step", "size"), [("", 4), (" fp16-weights", 2), (" bf16-weights", 2)])
def test_products_of_experts_run_in_each_precision(step: str, size: int) -> None:
    trace = captured("experts" + step)
    products = [each for each in trace.operators if each.name.startswith("_grouped_mm")]
    assert [(each.phase, each.flops) for each in products] == [
        ("forward", 2 * 64 * 128 * 256),
        *[("backward", 2 * 64 * 128 * 256)] * 2,
    ]
    made = [[trace.allocations[n - 1].bytes for n in each.new] for each in products]
    assert made[0] == [size * 64 * 256]
    assert sorted(made[1:]) == [[size * 64 * 128], [size * 4 * 128 * 256]]


def test_channels_last_changes_formats_and_no_sizes() -> None:
    plain, last = captured("grouped"), captured("grouped channels last")
    assert by_category(last)["parameters"] == by_category(plain)["parameters"]
    assert by_category(last)["gradients"] == by_category(plain)["gradients"]


def test_values_read_in_forward_are_a_named_risk_and_frozen_weights_have_no_gradient() -> None:
    trace = captured("norms")
    assert any(".item()" in risk for risk in trace.risks)
    assert trace.parameters - trace.trainable_parameters == 32 * 32 + 32
    assert by_category(trace)["gradients"] == 4 * trace.trainable_parameters


def test_fused_optimizer_needs_no_temporaries_of_the_size_of_the_model() -> None:
    def temporary(trace: StepTrace) -> int:
        return sum(a.bytes for a in trace.allocations if a.phase == "optimizer" and a.category == "temporaries")

    assert temporary(captured("perceptron")) >= 12 * MIB
    assert temporary(captured("perceptron fused")) < MIB


def test_what_fails_is_named_with_operator_and_module() -> None:
    error = results()["broken"]
    assert isinstance(error, UnsupportedError)
    assert "steps:broken: unsupported: operator aten::mm in module inner.matmul: " in str(error)


def test_values_that_follow_from_arguments_alone_are_used() -> None:
    assert not captured("selecting").risks


def test_unknown_values_are_named_even_where_known_ones_stood() -> None:
    risks = " ".join(captured("changed").risks)
    assert ".item()" in risks
    assert "boolean selection" in risks


def test_what_fails_in_backward_is_named() -> None:
    error = results()["failing_backward"]
    assert isinstance(error, UnsupportedError)
    assert "steps:failing_backward: unsupported: operator aten::mm in module " in str(error)


def test_a_process_that_dies_is_named_with_its_last_operator_and_harms_no_other() -> None:
    error = results()["killed"]
    assert isinstance(error, UnsupportedError)
    assert "operator aten::addmm in module 0: the process that ran its step ended by signal SIGSEGV" in str(error)
    assert captured("perceptron again") == captured("perceptron")


def test_a_model_that_exits_is_named() -> None:
    assert "steps:leaving: unsupported: before its first operator: the process" in str(results()["leaving"])


@pytest.fixture
def steps_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


def test_limits_hold_on_time_and_memory(steps_found: None) -> None:
    hanging = CaptureRequest(model="steps:hanging", kind="function")
    with pytest.raises(UnsupportedError, match=r"not done after 0\.2 s"):
        capture(hanging, time_limit_s=0.2)
    with pytest.raises(UnsupportedError, match="the process that ran its step ended|MemoryError"):
        capture(hanging, memory_limit_bytes=64 << 20)


def test_what_catches_its_interruption_is_interrupted_again(steps_found: None) -> None:
    with pytest.raises(UnsupportedError, match=r"not done after 0\.2 s"):
        capture(CaptureRequest(model="steps:stubborn", kind="function"), time_limit_s=0.2)


def test_a_step_that_cannot_be_interrupted_is_ended_with_all_it_started(
    steps_found: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    clock = SimpleNamespace(monotonic=lambda: 1e6 if pids.exists() and pids.read_text() else 0.0)
    monkeypatch.setattr("nearpeak.predict.capture.time", clock)
    with pytest.raises(UnsupportedError, match=r"steps:deaf: the process that ran its step gave no answer within"):
        capture(CaptureRequest(model="steps:deaf", kind="function", overrides={"pids": str(pids)}), time_limit_s=60)
    patience = time.monotonic() + 10
    while any(_runs(pid) for pid in map(int, pids.read_text().split())):
        assert time.monotonic() < patience
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    """Whether a process is there and not just waiting to be noticed."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_requests_are_checked_before_anything_runs() -> None:
    with pytest.raises(SettingError, match="precision='fp8'"):
        CaptureRequest(model="x", precision="fp8")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="batch=0"):
        CaptureRequest(model="x", batch=0)


@pytest.mark.parametrize(
    ("torch", "kind", "said"),
    [
        (
            "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')",
            MissingExtraError,
            "some-model: torch is not installed. Get it with: pip install 'nearpeak[train]'",
        ),
        ("raise ImportError('libfoo.so: cannot open')", UnsupportedError, "torch cannot be loaded: libfoo.so"),
    ],
)
def test_without_torch_each_request_is_answered_with_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: str, kind: type[NearpeakError], said: str
) -> None:
    (tmp_path / "torch.py").write_text(torch)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    answers = capture_all([CaptureRequest(model=name) for name in ("some-model", "another")])
    assert [type(each) for each in answers] == [kind] * 2
    assert said in str(answers[0])
    assert str(answers[1]).startswith("another: ")
