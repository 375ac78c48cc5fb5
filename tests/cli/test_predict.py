from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nearpeak.cli.main import main
from nearpeak.predict import capture as capturing
from nearpeak.predict import largest
from nearpeak.predict.request import CaptureRequest
from nearpeak.predict.step_trace import Allocation, Operator, Segment, StepTrace

MIB = 1 << 20
FIXED, PER_SAMPLE = 1000 * MIB, 100 * MIB


def step(request: CaptureRequest) -> StepTrace:
    """A model of 1000 MiB that keeps 100 MiB a sample."""
    allocations = (
        Allocation(FIXED, "parameters", "layers.0", "build", -1),
        Allocation(PER_SAMPLE * request.batch, "activations", "layers.1", "forward", 0),
        Allocation(FIXED, "gradients", "layers.0", "backward", 0),
    )
    segments = (
        Segment("build", 0, (1,)),
        Segment("forward", 0, (2,)),
        Segment("backward", 0, (3, -2)),
        Segment("zero_grad", 0, (-3,)),
    )
    operators = (Operator("mm", "layers.1", "forward", 10**9, 10**6, (1,), (2,), (2,)),)
    return StepTrace(
        allocations=allocations,
        operators=operators,
        segments=segments,
        parameters=262_144_000,
        trainable_parameters=262_144_000,
        risks=("something assumed",),
    )


@pytest.fixture(autouse=True)
def captured(monkeypatch: pytest.MonkeyPatch) -> list[CaptureRequest]:
    requests: list[CaptureRequest] = []

    def one(request: CaptureRequest, **_: Any) -> StepTrace:
        requests.append(request)
        return step(request)

    monkeypatch.setattr(capturing, "capture", one)
    monkeypatch.setattr(largest, "capture", one)
    monkeypatch.setattr(largest, "capture_all", lambda requests: [one(each) for each in requests])
    return requests


def predicted(capfd: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["predict", "memory", "some-model", "--json", *options]) == 0
    return json.loads(capfd.readouterr().out)


def test_json_holds_the_promised_names(capfd: pytest.CaptureFixture[str]) -> None:
    result = predicted(capfd, "--batch", "4", "--gpu", "RTX 4090")
    assert result["schema"] == 1
    assert result["allocated_bytes"]["likely"] == 2 * FIXED + 4 * PER_SAMPLE
    for name in ("allocated_bytes", "reserved_bytes", "device_used_bytes"):
        assert result[name]["low"] < result[name]["likely"] < result[name]["high"]
    assert result["device_used_bytes"]["likely"] > result["reserved_bytes"]["likely"]
    assert result["fits"] is True
    assert result["by_category"] == {"parameters": FIXED, "gradients": FIXED, "activations": 4 * PER_SAMPLE}
    assert result["by_module"][0]["module"] == "layers.0"
    assert result["risks"] == [{"name": "something assumed", "extra_bytes": None}]
    assert result["unsupported"] == []


@pytest.mark.parametrize(("batch", "fits"), [("100", True), ("220", None), ("400", False)])
def test_verdict_has_three_answers(capfd: pytest.CaptureFixture[str], batch: str, fits: bool | None) -> None:
    assert predicted(capfd, "--batch", batch, "--gpu", "RTX 4090")["fits"] is fits


def test_find_batch_gives_the_largest_that_is_sure_to_fit(capfd: pytest.CaptureFixture[str]) -> None:
    found = predicted(capfd, "--find-batch", "--gpu", "RTX 4090")
    assert found["fits"] is True
    assert predicted(capfd, "--batch", str(found["batch"] + 1), "--gpu", "RTX 4090")["fits"] is not True
    assert "checked at" in found["found"]


def test_a_reading_narrows_the_figure(capfd: pytest.CaptureFixture[str]) -> None:
    free = predicted(capfd, "--batch", "8", "--gpu", "RTX 4090")["device_used_bytes"]
    read = predicted(capfd, "--batch", "8", "--gpu", "RTX 4090", "--calibrate", "used=3000MiB,batch=4")
    used = read["device_used_bytes"]
    assert used["high"] - used["low"] < free["high"] - free["low"]
    assert used["likely"] == pytest.approx(3000 * MIB + 4 * PER_SAMPLE, rel=0.02)
    assert "3,000 MiB" in read["calibrated_on"]


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--layout", "fsdp:8"),
        ("--layout", "ddp:2"),
        *(("--outputs-until", until) for until in ("next_step", "step_end", "backward")),
    ],
)
def test_a_reading_predicts_itself(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    def returning(request: CaptureRequest, **_: Any) -> StepTrace:
        """4 GiB come out of forward, backward does not read them, and nobody frees them."""
        trace = step(request)
        outputs = Allocation(4096 * MIB, "activations", "layers.2", "forward", 0)
        build, forward, *others = trace.segments
        segments = (build, replace(forward, events=(*forward.events, 4)), *others)
        return replace(trace, allocations=(*trace.allocations, outputs), segments=segments)

    monkeypatch.setattr(capturing, "capture", returning)
    read = predicted(capfd, "--batch", "4", "--calibrate", "used=20000MiB", *options)
    assert read["device_used_bytes"]["likely"] == 20000 * MIB


def test_layouts_shard_what_they_shard(capfd: pytest.CaptureFixture[str]) -> None:
    alone = predicted(capfd, "--batch", "4")
    sharded = predicted(capfd, "--batch", "4", "--layout", "fsdp:8")
    assert sharded["by_category"]["parameters"] == alone["by_category"]["parameters"] / 8
    assert sharded["by_category"]["activations"] == alone["by_category"]["activations"]
    copied = predicted(capfd, "--batch", "4", "--layout", "ddp:2")
    assert copied["allocated_bytes"]["likely"] == alone["allocated_bytes"]["likely"] + FIXED


def test_options_reach_the_capture(captured: list[CaptureRequest], capfd: pytest.CaptureFixture[str]) -> None:
    predicted(
        capfd, "--seq", "77", "--precision", "bf16", "--optimizer", "sgd", "--lora", "4", "--recompute", "every_nth",
        "--recompute-every", "3", "--set", "num_hidden_layers=3", "--accumulate", "2", "--gpu", "RTX 3060",
    )  # fmt: skip
    (request,) = captured
    assert (request.sequence, request.precision, request.optimizer) == (77, "bf16", "sgd")
    assert request.lora is not None
    assert request.overrides == {"num_hidden_layers": 3}
    assert request.prepare == "nearpeak.train.recompute:apply_recompute"
    assert request.prepare_arguments == {"policy": "every_nth", "every": 3}
    assert request.compute_capability == (8, 6)


def test_text_fits_eighty_columns_and_names_verdict_and_risk(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "memory", "some-model", "--batch", "4", "--gpu", "NVIDIA GeForce RTX 4090"]) == 0
    out = capfd.readouterr().out
    assert "Fits\n" in out
    assert "something assumed." in out
    assert "layers.*" in out
    assert max(map(len, out.splitlines())) <= 80


def test_html_report_has_the_timeline_and_the_treemap(tmp_path: Path) -> None:
    output = tmp_path / "memory.html"
    assert main(["predict", "memory", "some-model", "--gpu-memory", "3.2GiB", "--output", str(output)]) == 0
    page = output.read_text()
    assert "It fits" in page or "Too close" in page
    assert 'class="treemap"' in page
    assert "memory of the card" in page
    assert main(["predict", "memory", "some-model", "--output", str(output)]) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--gpu", "RTX 9999"), "its memory is not known"),
        (("--gpu", "A100"), "'A100 40GB' or 'A100 80GB'"),
        (("--precision", "fp8"), "precision='fp8'"),
        (("--find-batch",), "--find-batch needs --gpu"),
        (("--calibrate", "used=many"), "must be a size"),
        (("--layout", "fsdp"), "SCHEME:DEVICES"),
        (("--layout", "fsdp:1"), "needs at least 2"),
        (("--layout", "rows:2"), "must be one of ddp"),
        (("--alloc-conf", "max_split_size_mb:1"), "at least 20"),
    ],
)
def test_bad_usage_exits_2_and_says_why_before_any_capture(
    captured: list[CaptureRequest], capfd: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    assert main(["predict", "memory", "some-model", *options]) == 2
    assert said in capfd.readouterr().err
    assert captured == []
