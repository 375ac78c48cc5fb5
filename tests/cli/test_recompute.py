"""`nearpeak predict memory --recompute auto`, on a step of three blocks that is written down here."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nearpeak.cli.main import main
from nearpeak.errors import MissingExtraError
from nearpeak.plan import Plan, load_plan, save_plan
from nearpeak.planner import recompute
from nearpeak.predict.request import CaptureRequest
from nearpeak.predict.step_trace import Allocation, Operator, Segment, StepTrace

MIB = 1 << 20
BLOCKS = 3


def step(request: CaptureRequest, **_: Any) -> StepTrace:
    """Each block makes 100 MiB by a function and 100 MiB of these by a product; a plan drops what is not kept."""
    allocations = [Allocation(50 * MIB, "parameters", "", "build", -1)]
    operators: list[Operator] = []
    forward: list[int] = []
    dropped = _dropped(request)
    for index in range(BLOCKS):
        for name, flops in (("gelu", 0), ("mm", 10**9)):
            module, number = f"layers.{index}", len(allocations) + 1
            size = 1 if (module, name) in dropped else 100 * MIB
            allocations.append(Allocation(size, "activations", module, "forward", len(operators)))
            reads = (number - 1,)
            operators.append(Operator(name, module, "forward", flops, 200 * MIB, reads, (number,), (number,)))
            forward.append(number)
    backward: list[int] = []
    for number in reversed(forward):
        module = allocations[number - 1].module
        flops = 2 * operators[number - 2].flops
        operators.append(Operator("grad", module, "backward", flops, 0, (number,), (), ()))
        if (module, "mm") in dropped and flops:
            operators.append(Operator("mm", module, "backward", 10**9, 0, (), (), ()))
        backward.append(-number)
    segments = (Segment("build", 0, (1,)), Segment("forward", 0, tuple(forward)))
    return StepTrace(
        allocations=tuple(allocations),
        operators=tuple(operators),
        segments=(*segments, Segment("backward", 0, tuple(backward))),
        parameters=1,
        trainable_parameters=1,
    )


def _dropped(request: CaptureRequest) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for block in request.prepare_arguments.get("blocks", ()):
        for entry in block["operators"]:
            name, _, letter = entry.rpartition(":")
            found |= {(module, name) for module in block["modules"] if letter != "k"}
    return found


@pytest.fixture(autouse=True)
def captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recompute, "capture", step)


def predicted(capfd: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["predict", "memory", "some-model", "--json", "--recompute", "auto", *options]) == 0
    return json.loads(capfd.readouterr().out)


def test_what_is_free_goes_first(capfd: pytest.CaptureFixture[str]) -> None:
    document = predicted(capfd, "--memory-budget", "0.8")
    chosen = document["recompute"]
    assert chosen["met"] and chosen["extra_flops"] == 0
    assert chosen["activation_bytes"] == 600 * MIB
    assert chosen["peak_bytes"] <= chosen["wanted_peak_bytes"] == 530 * MIB < chosen["plain_peak_bytes"] == 650 * MIB
    assert document["allocated_bytes"]["likely"] == chosen["peak_bytes"]
    assert chosen["plan"]["recompute"] == "chosen"


def test_a_budget_in_bytes_is_a_peak(capfd: pytest.CaptureFixture[str]) -> None:
    assert predicted(capfd, "--memory-budget", "600MiB")["recompute"]["wanted_peak_bytes"] == 600 * MIB


def test_a_budget_counts_outputs_as_long_as_the_loop_holds_them(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def returning(request: CaptureRequest, **_: Any) -> StepTrace:
        """200 MiB come out of forward, backward does not read them, and nobody frees them."""
        trace = step(request)
        outputs = Allocation(200 * MIB, "activations", "", "forward", len(trace.operators) - 1)
        build, forward, backward = trace.segments
        forward = replace(forward, events=(*forward.events, len(trace.allocations) + 1))
        return replace(trace, allocations=(*trace.allocations, outputs), segments=(build, forward, backward))

    monkeypatch.setattr(recompute, "capture", returning)
    for until in ("next_step", "backward"):
        document = predicted(capfd, "--memory-budget", "900MiB", "--outputs-until", until)
        assert document["recompute"]["peak_bytes"] == document["allocated_bytes"]["likely"] <= 900 * MIB
        assert bool(document["recompute"]["plan"]["recompute_blocks"]) is (until == "next_step")


def test_a_card_asks_for_no_more_than_it_needs(capfd: pytest.CaptureFixture[str]) -> None:
    document = predicted(capfd, "--gpu-memory", "64GiB")
    assert document["fits"] is True
    assert document["recompute"]["plan"] == {"recompute": "none", "recompute_blocks": []}


def test_a_card_that_is_too_small_is_said_to_be(capfd: pytest.CaptureFixture[str]) -> None:
    document = predicted(capfd, "--gpu-memory", "40MiB")
    assert document["fits"] is False and document["recompute"]["met"] is False
    assert "No recomputation keeps within what the card has" in document["recompute"]["why"]


def test_text_shows_saving_and_price_in_eighty_columns(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "memory", "some-model", "--recompute", "auto", "--memory-budget", "0.7"]) == 0
    out = capfd.readouterr().out
    assert "Recomputation, allocated memory" in out and "more arithmetic" in out and "Chosen" in out
    assert max(map(len, out.splitlines())) <= 80


def test_the_plan_is_written_with_what_it_was_made_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.toml"
    options = ("--memory-budget", "0.7", "--precision", "bf16", "--batch", "4", "--save-plan", str(path))
    document = predicted(capfd, *options)
    plan = load_plan(path)
    assert (plan.precision, plan.micro_batch, plan.recompute) == ("bf16", 4, "chosen")
    assert [list(b.operators) for b in plan.recompute_blocks] == [
        b["operators"] for b in document["recompute"]["plan"]["recompute_blocks"]
    ]
    assert main(["predict", "memory", "some-model", "--recompute", "auto", *options]) == 2
    assert "--force replaces it" in capfd.readouterr().err


def test_a_plan_that_cannot_be_written_as_toml_is_refused_before_the_search(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tomli_w", None)  # as where it is not installed
    monkeypatch.setattr(recompute, "capture", unexpected)
    options = ("predict", "memory", "some-model", "--recompute", "auto", "--memory-budget", "0.5", "--save-plan")
    assert main([*options, str(tmp_path / "plan.toml")]) == 1
    assert "pip install 'nearpeak[train]'" in capfd.readouterr().err
    with pytest.raises(MissingExtraError, match="tomli-w"):
        save_plan(Plan(), tmp_path / "plan.toml")
    save_plan(Plan(), tmp_path / "plan.json")


@pytest.mark.parametrize("option", ["--save-plan", "--output"])
@pytest.mark.parametrize("inside", ["missing/out.json", "file/out.json"])
def test_what_cannot_be_written_is_refused_before_the_search(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str], option: str, inside: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(recompute, "capture", unexpected)
    path = str(tmp_path / inside)
    assert main(["predict", "memory", "some-model", "--recompute", "auto", "--memory-budget", "0.5", option, path]) == 2
    assert f"{option} {path}: there is no folder" in capfd.readouterr().err


@pytest.mark.parametrize("option", ["--save-plan", "--output"])
def test_what_fails_to_be_written_at_the_end_is_said_after_the_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str], option: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()

    def losing(request: CaptureRequest, **given: Any) -> StepTrace:
        """The folder goes while the search runs."""
        folder.rmdir() if folder.exists() else None
        return step(request, **given)

    monkeypatch.setattr(recompute, "capture", losing)
    options = ("--recompute", "auto", "--memory-budget", "0.7", option, str(folder / "out.json"))
    assert main(["predict", "memory", "some-model", "--json", *options]) in (1, 2)
    said = capfd.readouterr()
    assert json.loads(said.out)["recompute"]["met"]
    assert "out.json: cannot be written" in said.err


def unexpected(request: CaptureRequest, **_: Any) -> StepTrace:
    raise AssertionError("captured before the options were checked")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--recompute", "auto"], "needs the memory to keep within"),
        (["--memory-budget", "0.5"], "belongs to --recompute auto"),
        (["--recompute", "auto", "--memory-budget", "0.5", "--layout", "fsdp:8"], "exclude each other"),
        (["--recompute", "auto", "--gpu-memory", "8GiB", "--find-batch"], "exclude each other"),
        (["--recompute", "auto", "--memory-budget", "1.5"], "must be a share"),
        (["--recompute", "auto", "--memory-budget", "much"], "much"),
        (["--recompute", "auto", "--memory-budget", "5368709120"], "a peak with its unit"),
        (["--recompute", "auto", "--memory-budget", "nan"], "must be a share"),
        (["--recompute", "auto", "--memory-budget", "0GiB"], "a peak must be above 0"),
        (["--recompute", "auto", "--gpu-memory", "8GiB", "--layout", "fsdp:1"], "needs at least 2"),
    ],
)
def test_bad_usage_is_named_before_the_search(
    monkeypatch: pytest.MonkeyPatch, options: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recompute, "capture", unexpected)
    assert main(["predict", "memory", "some-model", *options]) == 2
    assert said in capfd.readouterr().err
