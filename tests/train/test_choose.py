"""Choices are proven on real samples, leave no trace, and say why."""

from __future__ import annotations

import copy
import pickle
import random

import numpy as np
import pytest
import torch
from jobs import Points, classifier, perceptron, point_job, text_job, texts

from nearpeak import Plan, Run
from nearpeak.errors import LossNotFiniteError, NotEquivalentError, SettingError, UnsupportedError
from nearpeak.plan import LoaderSettings
from nearpeak.testing import assert_same_training
from nearpeak.train import choose

INLINE = LoaderSettings(workers=0)
FIXED = Plan(micro_batching="fixed", micro_batch=3, loader=INLINE)


def test_settling_refuses_what_changes_the_gradient_and_says_why():
    def batchwise(model, batch):
        return model(**batch).logits.var(0, unbiased=False).sum()

    run = Run(text_job(loss=batchwise), Plan(loader=INLINE))
    assert run.plan.micro_batching == "fixed"
    assert any("changes the gradient" in reason.because for reason in run.reasons)
    with pytest.raises(NotEquivalentError, match="partition changes the gradient"):
        Run(text_job(loss=batchwise), Plan(micro_batching="partition"))


def test_batch_norm_keeps_fixed_micro_batches_with_the_reason():
    run = Run(point_job(model=perceptron(norm=True)), Plan())
    assert run.plan.micro_batching == "fixed" and run.plan.micro_batch == 8
    assert any("BatchNorm1d" in reason.because for reason in run.reasons)
    with pytest.raises(UnsupportedError, match="couples the samples"):
        Run(point_job(model=perceptron(norm=True)), Plan(micro_batching="partition"))


def test_packed_is_refused_where_the_model_cannot():
    with pytest.raises(UnsupportedError, match="public table"):
        Run(text_job(model=classifier("deberta-v2")), Plan(micro_batching="packed"))
    assert Run(text_job(model=classifier("deberta-v2")), Plan()).plan.micro_batching == "partition"


def test_auto_leaves_no_trace_and_says_why():
    job = text_job(model=classifier(hidden_dropout_prob=0.1))
    before = copy.deepcopy(job.model.state_dict())
    states = (random.getstate()[1][:5], np.random.get_state()[1][:5].tolist(), torch.get_rng_state())
    threads = torch.get_num_threads()
    run = Run(job, "auto", allow=("bf16",))
    assert all(torch.equal(before[key], value) for key, value in job.model.state_dict().items())
    assert states[0] == random.getstate()[1][:5] and states[1] == np.random.get_state()[1][:5].tolist()
    assert torch.equal(states[2], torch.get_rng_state())
    assert all(p.grad is None for p in job.model.parameters()) and torch.get_num_threads() == threads
    assert run.next_step == 0
    assert any(reason.choice == "micro_batch_tokens=16384" for reason in run.reasons)
    text = "\n".join(map(str, run.reasons))
    for choice in ("threads=", "matmul=", "dropout=", "micro_batching=", "fused_optimizer="):
        assert choice in text
    assert_same_training(job, FIXED, run.plan, steps=3, tolerance=3e-2)


@pytest.mark.parametrize("plan", ["auto", Plan()], ids=["auto", "a plan"])
def test_choosing_draws_none_of_the_numbers_that_samples_draw(plan):
    class Noisy(Points):
        rng = None

        def __getitem__(self, index):
            noise = random.random() + np.random.rand() + torch.rand(()).item() + self.rng.random()
            return super().__getitem__(index)[0] + noise, self.classes[index]

    def states():
        global_states = random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state().tolist()
        return pickle.dumps((global_states, data.rng.bit_generator.state))

    data = Noisy(40)
    data.rng = np.random.default_rng(0)
    job = point_job(data=data)
    before = states()
    run = Run(job, plan)
    assert states() == before
    list(run)
    assert states() == before


@pytest.mark.parametrize(("ms_of", "best"), [(lambda n: 8 / n, 8), (lambda n: n, 1), (lambda n: abs(n - 4), 4)])
def test_threads_are_those_that_measure_fastest(monkeypatch, ms_of, best):
    """Eight cores, which other processes leave alone, or need all of, or half of."""
    monkeypatch.setattr(choose, "_usable_cores", lambda: 8)
    monkeypatch.setattr(choose, "_timed_ms", lambda run: ms_of(torch.get_num_threads()))
    before = torch.get_num_threads()
    threads, reason = choose._best_threads(choose.Trial(text_job(), torch.device("cpu"), []))
    assert threads == best and reason.evidence.keys() == {"threads_1_ms", "threads_4_ms", "threads_8_ms"}
    assert torch.get_num_threads() == before


def test_auto_changes_rounding_only_where_allowed():
    assert Run(text_job(), "auto").plan.precision == "fp32"
    with pytest.raises(SettingError, match="fp8"):
        Run(text_job(), "auto", allow=("fp8",))


def test_a_precision_that_is_not_even_tried_is_explained(monkeypatch):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(texts(20))

    monkeypatch.setattr(choose, "bf16_is_native", lambda device: (True, "planted"))
    run = Run(text_job(data=Stream(), epochs=None, optimizer_steps=2), "auto", allow=("bf16",))
    assert run.plan.precision == "fp32" and any("a stream has no window" in reason.because for reason in run.reasons)
    monkeypatch.setattr(choose, "bf16_is_native", lambda device: (False, "no such instruction"))
    run = Run(text_job(), "auto", allow=("bf16",))
    assert run.plan.precision == "fp32" and any("no such instruction" in reason.because for reason in run.reasons)


@pytest.mark.parametrize("chosen", ["partition", "packed"])
def test_padding_is_measured_against_packing_by_its_own_measured_cost(monkeypatch, chosen):
    """Whichever wins: what was found out about the winner stays in its plan."""

    def window_ms(trial, settled, windows):
        one = windows[0].micro_batches[0]
        probe = len(windows) == 1 and len(set(one.refs)) == 1  # one sample, so many times
        return 3 + 0.5 * one.padded_tokens if probe else (1 if settled.plan.micro_batching == chosen else 2)

    monkeypatch.setattr(choose, "_window_ms", window_ms)
    run = Run(text_job(), "auto")
    assert run.plan.micro_batching == chosen
    costs = [reason for reason in run.reasons if reason.choice.startswith("cost=")]
    if chosen == "partition":
        assert run.plan.cost_terms == pytest.approx((3, 0.5, 0), abs=1e-9) and len(costs) == 1
        assert run._preparation.cost.launch_ms == run.plan.cost_terms[0]
    else:
        assert run.plan.cost_terms is None and not costs


@pytest.mark.parametrize("kind", ["bert", "deberta-v2"])
def test_auto_on_texts_of_one_length(kind):
    data = [{**sample, "input_ids": [7] * 9, "attention_mask": [1] * 9} for sample in texts(24)]
    run = Run(text_job(model=classifier(kind), data=data), "auto")
    assert len(list(run)) == run.optimizer_steps


def test_measured_cost_is_kept_in_the_plan():
    run = Run(text_job(model=classifier("deberta-v2")), "auto")
    assert run.plan.micro_batching == "partition" and run.plan.cost_terms is not None
    assert run._preparation.cost.token_ms == run.plan.cost_terms[1]


def test_measuring_what_does_not_fit_takes_smaller_micro_batches():
    def hungry(model, batch):
        if batch["input_ids"].numel() > most:
            raise torch.OutOfMemoryError("CUDA out of memory (planted)")
        return model(**batch).loss

    most = 40
    run = Run(text_job(loss=hungry), "auto")
    assert max(len(sample["input_ids"]) for sample in texts(40)) <= run.plan.micro_batch_tokens <= most
    assert any("did not fit" in reason.because for reason in run.reasons)
    reference = [step.loss for step in Run(text_job(), FIXED)]
    assert [step.loss for step in run] == pytest.approx(reference, abs=1e-5)


def test_checked_samples_reach_from_the_shortest_to_the_longest():
    data = texts(60)
    refs = [(i, 0, i) for i in range(60)]
    trial = choose.Trial(text_job(), torch.device("cpu"), [(data[:40], refs[:40])], (data[40:], refs[40:]))
    samples, chosen = trial.checked_samples()
    lengths = [len(sample["input_ids"]) for sample in data]
    assert [data[index] for index, _, _ in chosen] == samples and len(samples) == 12
    found = [len(sample["input_ids"]) for sample in samples]
    assert min(found) == min(lengths) and max(found) == max(lengths)
    assert len(trial.checked_samples(3)[0]) == 3


def test_a_loss_that_is_not_finite_is_found_before_training():
    model, data = classifier(), texts(40)
    longest = max(range(40), key=lambda i: len(data[i]["input_ids"]))
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[data[longest]["input_ids"][0]] = float("nan")
    with pytest.raises(LossNotFiniteError) as caught:
        Run(text_job(model=model, order="sequential", global_batch=40), Plan(loader=INLINE))
    assert longest in caught.value.samples and caught.value.step == 0


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_kernel_that_is_wrong_in_the_plans_precision_only_is_noticed(precision, monkeypatch):
    """Other precisions run other kernels: what held in fp32 says nothing about them."""
    from nearpeak.train import packed

    right = packed._each_by_itself

    def wrong_in_16_bit(query, *rest):
        output = right(query, *rest)
        return output * 0 + 1 if torch.is_autocast_enabled("cpu") else output

    monkeypatch.setattr(packed, "_each_by_itself", wrong_in_16_bit)
    run = Run(text_job(), Plan(precision=precision), device="cpu")
    assert run.plan.micro_batching == "partition"
    refused = next(reason for reason in run.reasons if reason.choice == "micro_batching≠packed")
    assert "in the plan's precision" in refused.because
    monkeypatch.undo()
    assert Run(text_job(), Plan(precision=precision), device="cpu").plan.micro_batching == "packed"
