"""The demo end to end on a tiny library, and the figures of its table against what was measured."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nearpeak.cli import demo as verb
from nearpeak.cli.main import main
from nearpeak.errors import SettingError
from nearpeak.tasks.standard_library import demo as room
from nearpeak.tasks.standard_library import tutorial
from nearpeak.tasks.standard_library.demo import Demo, Settings, run_demo
from nearpeak.tasks.standard_library.ladder import Ladder, Rung, deviation
from nearpeak.tasks.standard_library.model import make_model, score
from nearpeak.tasks.standard_library.threads import threads_now, using_threads

STEPS = 100
WORDS = {
    "alpha": "socket address port listen accept connect packet stream",
    "beta": "matrix vector norm rotate scale angle product inverse",
    "gamma": "parse token grammar node tree visitor symbol lexer",
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three modules, each with words of its own, sources short and long."""
    root, draw = tmp_path_factory.mktemp("library"), random.Random(0)
    for module, words in WORDS.items():
        text = "".join(_function(f"f{n}", words.split(), draw) for n in range(60))
        (root / f"{module}.py").write_text(text, encoding="utf-8")
    (root / "ast.py").write_text("", encoding="utf-8")
    return root


def _function(name: str, words: list[str], draw: random.Random) -> str:
    count = max(2, int(draw.lognormvariate(1.6, 0.9)))
    lines = [f"    {draw.choice(words)}_{n} = {draw.choice(words)}.{draw.choice(words)}({n})" for n in range(count)]
    doc = " ".join(draw.choices(words, k=12))
    return f'def {name}(value):\n    """{doc}."""\n' + "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def demo(library: Path) -> Demo:
    """A budget that is used up at once: the fewest steps are made, however fast the machine is."""
    settings = Settings(seconds=5, classes=3, layers=2, hidden=32, library=library)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "FEWEST_STEPS", STEPS)
        patch.setattr(room, "MOST_EPOCHS", 0)
        return run_demo(settings)


def test_losses_are_the_tutorials(demo: Demo) -> None:
    assert demo.same_losses
    assert demo.deviation < 1e-5
    assert demo.ladder.steps >= 1
    assert all(len(rung.losses) == demo.ladder.steps for rung in demo.ladder.rungs)


def test_training_repeats_the_compared_steps(demo: Demo) -> None:
    """The same samples from the same weights: training is the job that was compared."""
    compared = next(rung for rung in demo.ladder.rungs if rung.plan and rung.plan.precision == demo.plan.precision)
    first = demo.trained.losses[: demo.ladder.steps]
    assert first == pytest.approx(compared.losses, rel=1e-2 if demo.plan.precision == "bf16" else 1e-5)


def test_step_count_is_kept_and_explained(demo: Demo) -> None:
    trained = demo.trained
    assert len(trained.losses) == trained.optimizer_steps == STEPS
    assert trained.reason.choice == f"optimizer_steps={trained.optimizer_steps}"
    assert trained.epochs == pytest.approx(trained.optimizer_steps * 32 / len(demo.corpus.train))


def test_it_learns(demo: Demo) -> None:
    assert demo.accuracy > demo.majority + 0.3
    assert demo.trained.losses[-1] < 0.8 * demo.trained.losses[0]


def test_rungs_are_measured_and_the_tutorial_comes_first(demo: Demo) -> None:
    names = [rung.name for rung in demo.ladder.rungs]
    assert names[:4] == ["as in tutorials", "dynamic padding", "nearpeak: partition", "+ no padding at all"]
    assert demo.ladder.rungs[0].plan is None
    assert all(cpu > 0 for rung in demo.ladder.rungs for cpu in rung.cpu_s)
    assert demo.ladder.ratio(demo.ladder.rungs[0]) == 1


def test_plan_is_a_rung_of_the_ladder_with_reasons(demo: Demo) -> None:
    fastest = demo.ladder.fastest()
    assert fastest.plan is not None
    assert replace(demo.plan, threads=None, reasons=()) == fastest.plan
    assert [reason.choice.partition("=")[0] for reason in demo.plan.reasons] == ["plan", "threads"]


def test_table_figures_are_consistent(demo: Demo, capsys: pytest.CaptureFixture[str]) -> None:
    verb._print_table(demo)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines()[: len(demo.ladder.rungs) + 6])) <= 80
    for rung in demo.ladder.rungs:
        line = next(line for line in printed.splitlines() if line.startswith(rung.name + " "))
        cells = line.removeprefix(rung.name).split()
        assert cells[0] == f"{rung.wall_s_per_step:.2f}"
        assert cells[2] == f"{demo.ladder.rungs[0].cpu_s_per_step / rung.cpu_s_per_step:.1f}"
    assert f"{demo.accuracy:.1%}" in printed
    assert f"{demo.majority:.1%}" in printed


def test_json_document_is_complete_and_agrees_with_itself(demo: Demo, capsys: pytest.CaptureFixture[str]) -> None:
    verb._print_json(demo)
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    first = document["rungs"][0]
    for rung in document["rungs"]:
        assert rung["ratio"] == pytest.approx(first["cpu_s_per_step"] / rung["cpu_s_per_step"])
        assert rung["cpu_s_per_step"] == pytest.approx(sum(rung["cpu_s"]) / document["compared_steps"])
        assert rung["relative_deviation"] == pytest.approx(deviation(first["losses"], rung["losses"]))
    assert document["training"]["optimizer_steps"] == len(document["training"]["losses"])
    assert document["deviation"]["holds"] is True
    assert document["data"]["train"] == len(demo.corpus.train)


def test_command_line_end_to_end(
    library: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("nearpeak.tasks.standard_library.snippets.standard_library_path", lambda: library)
    code = main(["demo", "--json", "--seconds", "5", "--classes", "3", "--layers", "1", "--hidden", "16"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    assert json.loads(captured.out)["compared_steps"] >= 1
    assert "step 1, as in tutorials" in captured.err


def test_deviating_losses_exit_1_and_say_so(
    demo: Demo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = replace(demo, ladder=_with_wrong_loss(demo.ladder))
    assert wrong.deviation == pytest.approx(2e-4, rel=1e-2)
    monkeypatch.setattr(room, "run_demo", lambda settings, watcher: wrong)
    assert main(["demo"]) == 1
    captured = capsys.readouterr()
    assert "FALLS SHORT" in captured.out
    assert "deviate by 2.0e-04" in captured.err
    assert "did not learn the same" in captured.err


def _with_wrong_loss(ladder: Ladder) -> Ladder:
    rungs = [replace(rung, losses=list(rung.losses)) for rung in ladder.rungs]
    rungs[2].losses[0] = ladder.rungs[0].losses[0] * (1 + 2e-4)
    return Ladder(rungs, ladder.left_out)


def test_bf16_may_deviate(demo: Demo) -> None:
    """Precision changes rounding by design; only fp32 is held to the limit."""
    plan = replace(demo.plan, precision="bf16")
    first = demo.ladder.rungs[0]
    other = Rung(
        "+ bf16", "precision=bf16", plan, list(first.wall_s), list(first.cpu_s), [x * 1.01 for x in first.losses]
    )
    fp32 = [rung for rung in demo.ladder.rungs if rung.precision == "fp32"]
    assert replace(demo, ladder=Ladder([*fp32, other], [])).same_losses


def test_ties_go_to_the_earlier_rung(demo: Demo) -> None:
    rungs = [Rung(name, "", demo.plan, [1.0], [cpu], [1.0]) for name, cpu in (("a", 1.0), ("b", 0.98), ("c", 0.5))]
    assert Ladder(rungs[:2], []).fastest().name == "a"
    assert Ladder(rungs, []).fastest().name == "c"


@pytest.mark.parametrize(
    ("left_s", "step_s", "steps"), [(100.0, 0.1, 792), (100.0, 0.01, 1360), (3.0, 1.0, 8), (-20.0, 0.5, 8)]
)
def test_step_count_from_step_time(left_s: float, step_s: float, steps: int) -> None:
    clock: Any = type("Clock", (), {"left_s": left_s, "budget_s": 165.0})
    made, reason = room._steps_that_fit(step_s, clock, train=7258, held_out=640)
    assert made == pytest.approx(steps, abs=1)
    assert reason.evidence["step_s"] == step_s


def test_settings_are_checked() -> None:
    with pytest.raises(SettingError, match=r"seconds=2: the demo needs at least 5"):
        Settings(seconds=2)
    with pytest.raises(SettingError, match=r"classes=1: telling modules apart takes at least 2"):
        Settings(classes=1)


def test_schedule_starts_alike_however_many_steps_follow() -> None:
    rates = []
    for steps in (50, 400):
        optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        schedule = tutorial.warm_up_then_fall(optimizer, steps)
        made = []
        for _ in range(steps):
            made.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        rates.append(made)
    assert rates[0][: tutorial.WARM_UP_STEPS] == rates[1][: tutorial.WARM_UP_STEPS]
    assert all(made[-1] < 0.05 for made in rates)


def test_model_is_the_same_for_a_seed_and_leaves_the_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    first, second = (make_model(50, 3, layers=1, hidden=16, seed=4) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    for left, right in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(left, right)
    assert not any(module.p for module in first.modules() if isinstance(module, torch.nn.Dropout))


def test_scoring_counts_every_sample_once(demo: Demo) -> None:
    model = make_model(50, 3, layers=1, hidden=16)
    samples = [
        {"input_ids": [2] + [5] * (n % 40), "attention_mask": [1] * (n % 40 + 1), "labels": n % 3} for n in range(90)
    ]
    plan = replace(demo.plan, precision="fp32")
    scored = list(score(model, samples, plan))
    assert sum(count for count, _ in scored) == 90
    one_by_one = sum(right for sample in samples for _, right in score(model, [sample], plan))
    assert sum(right for _, right in scored) == one_by_one
    assert model.training


def test_threads_are_measured_and_put_back() -> None:
    with using_threads(2):
        count, reason = threads_now()
        assert torch.get_num_threads() == 2
    assert count in (1, 2)
    assert set(reason.evidence) == {"threads_1_ms", "threads_2_ms"}
    assert torch.get_num_threads() == 1
