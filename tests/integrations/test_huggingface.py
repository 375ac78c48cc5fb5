"""The drop-in: same training, same logs, same callbacks; and what it must notice."""

from __future__ import annotations

import copy
import random
import warnings
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import transformers
from torch.nn.functional import cross_entropy
from trainer_tools import WIDTH, collate, losses, make_model, make_rows, train

from nearpeak.errors import UnsupportedError
from nearpeak.integrations._regroup import regrouped
from nearpeak.integrations.huggingface import Trainer, check_version

TIMES = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "train_tokens_per_second")


def compare(
    tmp_path: Path, plain_class: Any = transformers.Trainer, our_class: Any = Trainer, **settings: Any
) -> tuple[Any, ...]:
    """Train the same twice, learning."""
    model, rows = settings.pop("model", None) or make_model("bert"), settings.pop("rows", None) or make_rows(32)
    settings = {"learning_rate": 1e-2, "num_train_epochs": 2, **settings}
    plain = train(plain_class, copy.deepcopy(model), rows, tmp_path / "plain", **settings)
    ours = train(our_class, copy.deepcopy(model), rows, tmp_path / "ours", **settings)
    return *plain, *ours


def chose(trainer: Any) -> str:
    """How windows were regrouped."""
    return next(r.choice.partition("=")[2] for r in trainer.nearpeak.reasons if r.choice.startswith("micro_batching"))


def why(trainer: Any) -> str:
    return next(r.because for r in trainer.nearpeak.reasons if r.choice.startswith("micro_batching"))


def test_logs_callbacks_and_counts_are_those_of_transformers(tmp_path: Path) -> None:
    plain, plain_recorder, ours, recorder = compare(tmp_path, max_grad_norm=0.05, include_num_input_tokens_seen="all")
    assert chose(ours) in ("packed", "partition")
    assert recorder.events == plain_recorder.events
    assert ours.state.global_step == plain.state.global_step == 12
    assert ours.state.total_flos == plain.state.total_flos > 0
    for entry, expected in zip(ours.state.log_history, plain.state.log_history, strict=True):
        assert entry.keys() == expected.keys()
        for name in entry.keys() - set(TIMES):
            assert entry[name] == pytest.approx(expected[name], rel=1e-6), name
    for name, value in ours.model.state_dict().items():
        torch.testing.assert_close(value, plain.model.state_dict()[name], rtol=1e-7, atol=1e-9)


def test_evaluation_and_prediction_are_untouched(tmp_path: Path) -> None:
    plain, _, ours, _ = compare(tmp_path, num_train_epochs=1)
    rows = make_rows(7, seed=5)
    assert ours.evaluate(rows)["eval_loss"] == pytest.approx(plain.evaluate(rows)["eval_loss"], rel=1e-9)
    numpy.testing.assert_allclose(ours.predict(rows).predictions, plain.predict(rows).predictions, rtol=1e-9)


def test_after_training_the_trainer_is_as_before(tmp_path: Path) -> None:
    _, _, ours, _ = compare(tmp_path, num_train_epochs=1)
    assert not {"training_step", "get_batch_samples", "compute_loss", "log"} & set(vars(ours))
    assert "backward" not in vars(ours.accelerator)


def test_computes_fewer_tokens_and_never_a_larger_micro_batch(tmp_path: Path) -> None:
    sizes = []

    class Watching(Trainer):
        def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            sizes.append(inputs["input_ids"].numel())
            return super().training_step(model, inputs, *args, **kwargs)

    rows = make_rows(32)
    trainer, _ = train(Watching, make_model("bert"), rows, tmp_path)
    assert max(sizes) <= 3 * WIDTH
    assert trainer.nearpeak.computed_tokens < trainer.nearpeak.own_tokens / 2
    assert "overrides" not in why(trainer)
    assert "overridden training_step" in why(trainer)


def test_a_window_of_one_batch_is_regrouped_too(tmp_path: Path) -> None:
    plain, _, ours, _ = compare(tmp_path, per_device_train_batch_size=8, gradient_accumulation_steps=1)
    assert ours.nearpeak.regrouped == 8
    assert losses(ours) == pytest.approx(losses(plain), rel=1e-6)


def test_label_smoothing_and_a_loss_function_of_ones_own(tmp_path: Path) -> None:
    plain, _, ours, _ = compare(tmp_path, label_smoothing_factor=0.1)
    assert ours.nearpeak.regrouped == ours.nearpeak.windows
    assert losses(ours) == pytest.approx(losses(plain), rel=1e-6)

    def summed(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        return cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch

    plain, _, ours, _ = compare(tmp_path, extra={"compute_loss_func": summed})
    assert ours.nearpeak.regrouped == ours.nearpeak.windows
    assert losses(ours) == pytest.approx(losses(plain), rel=1e-6)


def test_tokens_normalised_over_the_window(tmp_path: Path) -> None:
    """A causal language model divides by num_items_in_batch."""
    plain, first, ours, second = compare(
        tmp_path, model=make_model("llama", kind="ForCausalLM"), rows=make_rows(20, "causal")
    )
    assert ours.nearpeak.regrouped == ours.nearpeak.windows
    chosen = next(reason for reason in ours.nearpeak.reasons if reason.choice.startswith("micro_batching"))
    assert "num_items_in_batch" in chosen.evidence["normaliser"]
    assert losses(ours) == pytest.approx(losses(plain), rel=1e-6)
    for gradient, expected in zip(second.gradients, first.gradients, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-10)


def test_tokens_normalised_over_each_batch(tmp_path: Path) -> None:
    """BERT's masked language model takes the mean over each batch's own labelled tokens."""
    plain, first, ours, second = compare(
        tmp_path, model=make_model("bert", kind="ForMaskedLM"), rows=make_rows(20, "causal")
    )
    assert ours.nearpeak.regrouped == ours.nearpeak.windows
    assert losses(ours) == pytest.approx(losses(plain), rel=1e-6)
    for gradient, expected in zip(second.gradients, first.gradients, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-10)


def test_recomputation_works_on_packed_rows(tmp_path: Path) -> None:
    plain, _, ours, _ = compare(tmp_path, gradient_checkpointing=True)
    assert ours.nearpeak.regrouped == ours.nearpeak.windows
    assert losses(ours) == pytest.approx(losses(plain), rel=1e-6)


def test_data_that_only_iterates(tmp_path: Path) -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(make_rows(32))

    plain, _, ours, _ = compare(tmp_path, rows=Stream(), max_steps=5)
    assert ours.nearpeak.regrouped == 5
    assert losses(ours) == pytest.approx(losses(plain), rel=1e-6)


def test_a_compiled_model_is_left_alone(tmp_path: Path) -> None:
    model = make_model("bert")
    model.bert.pooler = torch.compile(model.bert.pooler, backend="eager")
    _, _, ours, _ = compare(tmp_path, model=model, num_train_epochs=1)
    assert "compiled" in why(ours)


def test_bf16_where_it_is_asked_for(tmp_path: Path) -> None:
    """Training computes in bf16, evaluation does not, and the change of rounding is told."""
    seen: dict[bool, set[torch.dtype]] = {True: set(), False: set()}

    class Looking(transformers.Trainer):
        def train(self, *args: Any, **kwargs: Any) -> Any:
            with regrouped(self, bf16=True) as self.nearpeak:
                return super().train(*args, **kwargs)

        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
            seen[model.training].add(outputs.logits.dtype)
            return (loss, outputs) if return_outputs else loss

    model = make_model("bert", dtype=torch.float32)
    plain, _, ours, _ = compare(tmp_path, transformers.Trainer, Looking, model=model, learning_rate=1e-3)
    ours.evaluate(make_rows(4))
    assert seen == {True: {torch.float32, torch.bfloat16}, False: {torch.float32}}
    (reason,) = [r for r in ours.nearpeak.reasons if r.choice.startswith("precision")]
    assert reason.choice == "precision=bf16"
    assert "cosine" in reason.because
    assert losses(ours) == pytest.approx(losses(plain), rel=0.02)
    assert losses(ours) != pytest.approx(losses(plain), rel=1e-7)


def test_inputs_keep_their_kind(tmp_path: Path) -> None:
    """A compute_loss that reads inputs.labels works on regrouped micro-batches as well."""

    def encode(rows: list[Any]) -> Any:
        return transformers.BatchEncoding(collate(rows))

    class Own(transformers.Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
            outputs = model(
                input_ids=inputs.input_ids,
                attention_mask=inputs.get("attention_mask"),
                position_ids=inputs.get("position_ids"),
            )
            loss = cross_entropy(outputs.logits, inputs.labels)
            return (loss, outputs) if return_outputs else loss

    ours = type("Ours", (Own, Trainer), {})
    plain, _, trainer, _ = compare(tmp_path, Own, ours, collator=encode)
    assert trainer.nearpeak.regrouped == trainer.nearpeak.windows
    assert "compute_loss" in why(trainer)
    assert losses(trainer) == pytest.approx(losses(plain), rel=1e-6)


# Planted violations: the check must catch each, and the training be the script's own to the last bit.


class CentredPooler(torch.nn.Module):
    """Couples the samples of a micro-batch: each is seen relative to the others' mean."""

    def __init__(self, pooler: torch.nn.Module) -> None:
        super().__init__()
        self.pooler = pooler

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        pooled = self.pooler(hidden)
        return pooled - pooled.mean(0, keepdim=True)


class PaddingPooler(torch.nn.Module):
    """Reads padding: the mean over all positions, real or not."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden.mean(1)


class WeightedLoss:
    """Takes a mean over class weights, whose sum is another in each batch."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = cross_entropy(outputs.logits, labels, weight=torch.tensor([0.1, 1.0, 7.0], dtype=torch.float64))
        return (loss, outputs) if return_outputs else loss


def violation(name: str) -> tuple[Any, Any, Any]:
    model = make_model("bert")
    if name == "couples samples":
        model.bert.pooler = CentredPooler(model.bert.pooler)
    elif name == "reads padding":
        model.bert.pooler = PaddingPooler()
    else:
        return model, type("Plain", (WeightedLoss, transformers.Trainer), {}), type("Ours", (WeightedLoss, Trainer), {})
    return model, transformers.Trainer, Trainer


@pytest.mark.parametrize("name", ["couples samples", "reads padding", "weighs classes over the batch"])
def test_planted_violations_are_caught(name: str, tmp_path: Path) -> None:
    model, plain_class, our_class = violation(name)
    plain, first, ours, second = compare(tmp_path, plain_class, our_class, model=model, extra={})
    assert chose(ours) == "fixed"
    assert ours.nearpeak.regrouped == 0
    assert losses(ours) == losses(plain)
    assert all(torch.equal(a, b) for a, b in zip(first.gradients, second.gradients, strict=True))


def test_batch_norm_keeps_the_scripts_way(tmp_path: Path) -> None:
    model = make_model("bert")
    model.bert.pooler = torch.nn.Sequential(model.bert.pooler, torch.nn.BatchNorm1d(32).double())
    plain, _, ours, _ = compare(tmp_path, model=model)
    assert chose(ours) == "fixed"
    assert "BatchNorm1d" in why(ours)
    assert losses(ours) == losses(plain)
    torch.testing.assert_close(
        ours.model.bert.pooler[1].running_mean, plain.model.bert.pooler[1].running_mean, rtol=0, atol=0
    )


def test_a_step_that_fails_only_when_regrouped_is_left_alone(tmp_path: Path) -> None:
    class Strict(transformers.Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
            assert inputs["input_ids"].shape[1] == WIDTH
            return super().compute_loss(model, inputs, return_outputs, **kwargs)

    plain, _, ours, _ = compare(tmp_path, Strict, type("Ours", (Strict, Trainer), {}))
    assert chose(ours) == "fixed"
    assert "its step raised AssertionError" in why(ours)
    assert "overrides compute_loss" in why(ours)
    assert losses(ours) == losses(plain)


def test_batches_that_are_no_dictionaries_of_tokens(tmp_path: Path) -> None:
    def without_mask(rows: list[Any]) -> Any:
        return {key: value for key, value in collate(rows).items() if key != "attention_mask"}

    plain, _, ours, _ = compare(tmp_path, collator=without_mask)
    assert chose(ours) == "fixed"
    assert "attention_mask" in why(ours)
    assert losses(ours) == losses(plain)


def test_an_own_get_batch_samples_is_respected(tmp_path: Path) -> None:
    class Reversed(transformers.Trainer):
        def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
            batches, items = super().get_batch_samples(*args, **kwargs)
            return batches[::-1], items

    plain, _, ours, _ = compare(tmp_path, Reversed, type("Ours", (Reversed, Trainer), {}))
    assert ours.nearpeak.regrouped == ours.nearpeak.windows
    assert "get_batch_samples" in why(ours)
    assert losses(ours) == pytest.approx(losses(plain), rel=1e-6)


def test_padding_that_first_appears_later_is_checked_then(tmp_path: Path) -> None:
    """The first window is full, so that a head which reads padding passes the check; the next one must not."""
    model = make_model("bert")
    model.bert.pooler = PaddingPooler()
    full = [
        {**row, "input_ids": torch.arange(5, 13), "attention_mask": torch.ones(8, dtype=torch.long)}
        for row in make_rows(6)
    ]

    def to_longest(rows: list[Any]) -> Any:
        batch, width = collate(rows), max(len(row["input_ids"]) for row in rows)
        return {key: value[:, :width] if value.dim() == 2 else value for key, value in batch.items()}

    class InOrder:
        def _get_train_sampler(self, *args: Any) -> Any:
            return None

    classes = [type("InOrder", (InOrder, base), {}) for base in (transformers.Trainer, Trainer)]
    plain, _, ours, _ = compare(
        tmp_path, *classes, model=model, rows=full + make_rows(18), collator=to_longest, num_train_epochs=1
    )
    assert [r.choice for r in ours.nearpeak.reasons if "micro" in r.choice][-1] == "micro_batching=fixed"
    assert ours.nearpeak.regrouped == 1
    assert losses(ours) == pytest.approx(losses(plain), rel=1e-6)


def test_the_check_leaves_no_trace(tmp_path: Path) -> None:
    """A loss that counts its calls and draws random numbers is called as often, on the same numbers, as without us."""
    model = make_model("bert")
    model.bert.pooler = torch.nn.Sequential(model.bert.pooler, torch.nn.BatchNorm1d(32).double())
    model.bert.pooler[1].track_running_stats = False
    model.bert.pooler[1].eval()

    class Counting:
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
            self.seen = [*getattr(self, "seen", []), random.random(), float(numpy.random.rand()), float(torch.rand(()))]
            self.log({"drawn": self.seen[-1]})
            return super().compute_loss(model, inputs, return_outputs, **kwargs)  # type: ignore[misc]

    class Coupling(Counting):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(model, inputs, *args, **kwargs)
            return loss * len(inputs["input_ids"]) ** 2

    ours_class, plain_class = (type("Own", (Coupling, base), {}) for base in (Trainer, transformers.Trainer))
    plain, first, ours, second = compare(tmp_path, plain_class, ours_class, rows=make_rows(30))
    assert chose(ours) == "fixed"
    assert ours.seen == plain.seen
    assert second.events == first.events
    assert losses(ours) == losses(plain)


def test_resumes_a_plain_checkpoint_and_is_resumed_by_plain(tmp_path: Path) -> None:
    settings = {"learning_rate": 1e-2, "max_steps": 6, "save_steps": 3, "save_strategy": "steps"}
    model, rows = make_model("bert"), make_rows(32)
    whole, _ = train(transformers.Trainer, copy.deepcopy(model), rows, tmp_path / "plain", **settings)
    ours, _ = train(Trainer, copy.deepcopy(model), rows, tmp_path / "ours", **settings)
    checkpoint = "checkpoint-3"
    resumed = [
        train(
            Trainer, copy.deepcopy(model), rows, tmp_path / "a", resume=str(tmp_path / "plain" / checkpoint), **settings
        )[0],
        train(
            transformers.Trainer,
            copy.deepcopy(model),
            rows,
            tmp_path / "b",
            resume=str(tmp_path / "ours" / checkpoint),
            **settings,
        )[0],
    ]
    assert resumed[0].nearpeak.regrouped == 3
    for trainer in (ours, *resumed):
        assert trainer.state.global_step == 6
        assert losses(trainer) == pytest.approx(losses(whole), rel=1e-6)


def test_dropout_changes_nothing_but_its_masks(tmp_path: Path) -> None:
    """With dropout the check still holds, and the same samples are trained on in the same order."""
    orders: dict[str, list[int]] = {}

    def recording(name: str, base: Any) -> Any:
        class Recording(base):
            def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
                batches, items = super().get_batch_samples(*args, **kwargs)
                orders.setdefault(name, []).extend(int(batch["input_ids"].sum()) for batch in batches)
                return batches, items

        return Recording

    model = make_model("bert", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    classes = recording("plain", transformers.Trainer), recording("ours", Trainer)
    plain, _, ours, _ = compare(tmp_path, *classes, model=model)
    assert chose(ours) in ("packed", "partition")
    assert orders["plain"] == orders["ours"]
    assert losses(ours) == pytest.approx(losses(plain), rel=0.3)


def test_the_boundary_warns_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError("our own bug")

    monkeypatch.setattr("nearpeak.integrations._check.compare_gradients", broken)
    model, rows = make_model("bert"), make_rows(12)
    plain, _ = train(transformers.Trainer, copy.deepcopy(model), rows, tmp_path)
    ours, _ = train(Trainer, copy.deepcopy(model), rows, tmp_path)
    assert chose(ours) == "fixed"
    assert caplog.text.count("our own bug") == 1
    assert losses(ours) == losses(plain)


def test_a_window_that_cannot_be_cut_is_trained_on_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later than the check, too: nothing of a window is skipped before all of it is cut."""
    from nearpeak.integrations import _regroup

    calls = []

    def break_at_the_third(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 3:
            raise ZeroDivisionError("our own bug")
        return cut(*args)

    cut = _regroup.micro_batches
    monkeypatch.setattr(_regroup, "micro_batches", break_at_the_third)
    plain, _, ours, _ = compare(tmp_path, num_train_epochs=1)
    assert (ours.nearpeak.regrouped, ours.nearpeak.windows) == (2, 6)
    assert losses(ours) == pytest.approx(losses(plain), rel=1e-6)


@pytest.mark.parametrize("version", ["4.57.6", "6.0.0", "6.1.0.dev0"])
def test_versions_we_have_not_read_are_refused(version: str) -> None:
    with pytest.raises(UnsupportedError, match=version):
        check_version(version)


@pytest.mark.parametrize("version", ["5.0.0", "5.23.0", "5.24.0.dev0"])
def test_versions_of_transformers_five_are_taken(version: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_version(version)
