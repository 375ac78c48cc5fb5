"""The engine: every plan makes the same training, exactly as many steps, and no window is ever lost."""

from __future__ import annotations

import copy
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jobs import Points, classifier, point_job, point_loss, text_job, texts

from nearpeak import Plan, Run
from nearpeak.errors import LossNotFiniteError, NotEquivalentError, OutOfMemoryError, SettingError
from nearpeak.job import job_steps
from nearpeak.plan import LoaderSettings
from nearpeak.testing import assert_same_training
from nearpeak.train.equivalence import compare_gradients
from nearpeak.train.loader import WindowLoader
from nearpeak.train.order import SampleOrder
from nearpeak.train.parallel import Ranks
from nearpeak.train.prepare import preparation_of
from nearpeak.train.run import _source_of

INLINE = LoaderSettings(workers=0)
FIXED = Plan(micro_batching="fixed", micro_batch=3, loader=INLINE)


def watched(job, seen: list[list[int]]):
    """The job with data that notes which samples are read."""

    class Watched(type(job.data)):
        def __getitem__(self, index):
            seen[-1].append(index)
            return super().__getitem__(index)

    data = copy.copy(job.data)
    data.__class__ = Watched
    return data


@settings(max_examples=25, deadline=None)
@given(
    samples=st.integers(1, 40),
    batch=st.integers(1, 12),
    epochs=st.integers(1, 3),
    remainder=st.sampled_from(["short", "carry", "drop"]),
    micro=st.integers(1, 5),
    workers=st.sampled_from([0, 0, 0, 1, 2]),
    stop=st.integers(0, 5),
)
def test_every_window_is_trained_on_exactly_once(samples, batch, epochs, remainder, micro, workers, stop):
    assume(remainder != "drop" or samples >= batch)
    trained: list[list[int]] = []

    def loss(model, micro_batch):
        trained[-1] += micro_batch[2].tolist()
        return point_loss(model, micro_batch)

    class Numbered(Points):
        def __getitem__(self, index):
            return (*super().__getitem__(index), index)

    job = point_job(data=Numbered(samples), global_batch=batch, epochs=epochs, remainder=remainder, loss=loss)
    plan = Plan(micro_batching="fixed", micro_batch=micro, loader=LoaderSettings(workers=workers))
    run = Run(job, plan)
    steps = []
    while run.next_step < len(run):  # stopped once, then taken up again
        trained.append([])
        for step in run:
            steps.append(step)
            if step.last or step.index == stop:
                break
            trained.append([])
    order = SampleOrder(samples, batch, remainder=remainder)
    end = epochs * samples if remainder == "carry" else None
    assert [sorted(window) for window in trained] == [sorted(order.window(k, end).indices) for k in range(len(run))]
    assert [step.index for step in steps] == list(range(run.optimizer_steps))
    assert f"= {len(steps):,} optimizer steps" in run.count.formula
    assert [step.samples for step in steps] == [len(window) for window in trained]


PLANS = {
    "fixed 1": Plan(micro_batching="fixed", micro_batch=1, loader=INLINE),
    "fixed 3": FIXED,
    "partition": Plan(micro_batching="partition", loader=INLINE),
    "partition of few tokens": Plan(micro_batching="partition", micro_batch_tokens=30, loader=INLINE),
    "packed": Plan(micro_batching="packed", loader=INLINE),
    "packed in several rows": Plan(micro_batching="packed", micro_batch_tokens=40, loader=INLINE),
    "recompute blocks": Plan(micro_batching="packed", recompute="blocks", loader=INLINE),
    "recompute every other": Plan(micro_batching="partition", recompute="every_nth", loader=INLINE),
    "recompute selectively": Plan(micro_batching="packed", recompute="selective", loader=INLINE),
}


def first_gradient(job, plan) -> dict[str, torch.Tensor]:
    """The gradient of the first window, as the optimizer gets it."""
    caught: dict[str, torch.Tensor] = {}

    class Catch(torch.optim.SGD):
        def step(self, closure=None):
            caught.update({n: p.grad.clone() for n, p in job.model.named_parameters() if p.grad is not None})

    next(iter(Run(replace(job, optimizer=lambda model: Catch(model.parameters(), lr=0.0)), plan)))
    return caught


@pytest.mark.parametrize("name", PLANS)
def test_fp64_gradient_is_that_of_the_whole_window_at_once(name):
    whole = Plan(micro_batching="fixed", micro_batch=100, loader=INLINE)
    reference = first_gradient(text_job(model=classifier().double()), whole)
    deviation = compare_gradients(reference, first_gradient(text_job(model=classifier().double()), PLANS[name]))
    assert deviation.relative < 1e-10, deviation


@pytest.mark.parametrize("name", PLANS)
def test_token_normalised_gradients(name):
    import transformers
    from jobs import config

    torch.manual_seed(0)
    model = transformers.AutoModelForTokenClassification.from_config(config("bert")).double()
    data = [{**s, "labels": [-100 if t % 4 == 0 else t % 3 for t in s["input_ids"]]} for s in texts(16)]
    # One sample without any target: its mean alone would be 0/0.
    data[3]["labels"] = [-100] * len(data[3]["labels"])

    def job():
        return text_job(model=copy.deepcopy(model), data=data, normaliser="tokens", epochs=None, optimizer_steps=1)

    reference = first_gradient(job(), Plan(micro_batching="fixed", micro_batch=100, loader=INLINE))
    deviation = compare_gradients(reference, first_gradient(job(), PLANS[name]))
    assert deviation.relative < 1e-10, deviation


@pytest.mark.parametrize(
    "plan", [Plan(), Plan(matmul="onednn", dropout="bits"), Plan(fused_optimizer=False), Plan(threads=2)]
)
def test_plans_of_one_job_train_the_same(plan):
    same = assert_same_training(text_job(clip_norm=1.0), FIXED, plan, steps=5)
    assert same.loss_deviation < 1e-5


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_sixteen_bit_plans_stay_close(precision):
    assert_same_training(text_job(), FIXED, Plan(precision=precision, loader=INLINE), steps=5)


def test_a_different_training_is_noticed():
    def batchwise(model, batch):
        return model(**batch).logits.var(0).sum()  # couples the samples of a micro-batch

    with pytest.raises(NotEquivalentError, match="learn different things"):
        assert_same_training(text_job(loss=batchwise), FIXED, Plan(micro_batching="fixed", micro_batch=8), steps=3)


def test_dropout_is_a_function_of_the_step_not_of_what_the_user_draws():
    def losses(draws: int) -> list[float]:
        torch.manual_seed(draws)
        found = []
        for step in Run(text_job(model=classifier(hidden_dropout_prob=0.3)), FIXED):
            torch.rand(draws)
            found.append(step.loss)
        return found

    assert losses(1) == losses(7)


def test_the_users_random_numbers_go_on_undisturbed():
    run = iter(Run(text_job(model=classifier(hidden_dropout_prob=0.3)), FIXED))
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    drawn = []
    for _ in range(3):
        next(run)
        drawn.append(torch.rand(1))
    assert torch.equal(torch.cat(drawn), expected)


# -- fp16 ------------------------------------------------------------------------------------------------------------


def test_a_loss_that_overflows_fp16_loses_no_window():
    """Gradients 300 times too large for the initial scale: every update is redone until it fits."""
    job = point_job(
        60,
        loss=lambda model, batch: point_loss(model, batch) * 300,
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=1e-4),
    )
    run = Run(job, Plan(precision="fp16", micro_batching="fixed", micro_batch=8, loader=INLINE))
    steps = list(run)
    assert len(steps) == run.optimizer_steps == 8
    assert run.scaler.overflows > 0 and run.scaler.scale < 2**16
    assert any("no window is lost" in reason.because for reason in run.reasons)
    reference = [s.loss for s in Run(point_job(60, loss=job.loss, optimizer=job.optimizer), FIXED)]
    assert [s.loss for s in steps] == pytest.approx(reference, rel=2e-3)


def test_a_forward_that_overflows_fp16_at_every_scale_runs_that_window_in_fp32():
    class Hot(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(6, 3)

        def forward(self, values):
            return self.layer(values * 3e4) / 3e4  # beyond 65,504 in the product

    torch.manual_seed(0)
    run = Run(point_job(24, model=Hot()), Plan(precision="fp16", micro_batching="fixed", micro_batch=8, loader=INLINE))
    losses = [step.loss for step in run]
    assert len(losses) == 3 and all(np.isfinite(losses))
    assert any(reason.choice == "precision=fp32" for reason in run.reasons)


# -- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_names_the_samples():
    data = Points(16)
    data.values[5] = float("nan")
    job = point_job(data=data, order="sequential", global_batch=8)
    before = copy.deepcopy(job.model.state_dict())
    with pytest.raises(LossNotFiniteError, match=r"step 0 is nan: among the samples with dataset index 4, 5\."):
        list(Run(job, Plan(micro_batching="fixed", micro_batch=2, loader=INLINE)))
    assert all(torch.equal(before[k], v) for k, v in job.model.state_dict().items()), "the weights must still be good"


def test_a_window_without_any_target_is_named():
    data = [{**s, "labels": [-100] * len(s["input_ids"])} for s in texts(8)]
    import transformers
    from jobs import config

    job = text_job(
        model=transformers.AutoModelForTokenClassification.from_config(config()), data=data, normaliser="tokens"
    )
    with pytest.raises(LossNotFiniteError, match="no target token"):
        list(Run(job, FIXED))


@pytest.mark.parametrize(
    "plan", [Plan(micro_batching="partition", loader=INLINE), Plan(micro_batching="packed", loader=INLINE)]
)
def test_out_of_memory_goes_on_with_the_same_window_in_smaller_parts(plan):
    reference = [step.loss for step in Run(text_job(), FIXED)]

    def hungry(model, batch):
        if batch["input_ids"].numel() > 30 and armed:
            armed.append(armed[-1] + 1)
            raise torch.OutOfMemoryError("CUDA out of memory (planted)")
        return model(**batch).loss

    armed: list[int] = []
    run = Run(text_job(loss=hungry), plan)
    armed.append(0)
    failures = []
    for step, expected in zip(run, reference, strict=True):
        assert step.loss == pytest.approx(expected, abs=1e-5)
        failures.append(armed[-1])
    assert any("did not fit" in reason.because for reason in run.reasons)
    assert failures[0] > 0 and failures[-1] <= 3, "what did not fit once is not tried again in every window"


def test_one_sample_that_does_not_fit_is_named():
    def hungry(model, batch):
        if armed:
            raise torch.OutOfMemoryError("planted")
        return model(**batch).loss

    armed: list[int] = []
    run = Run(text_job(loss=hungry), Plan(loader=INLINE))
    armed.append(1)
    with pytest.raises(OutOfMemoryError, match=r"sample \d+ .*alone"):
        list(run)


def test_a_loss_function_that_returns_no_number_is_explained():
    with pytest.raises(SettingError, match="must return one number"):
        list(Run(text_job(loss=lambda model, batch: model(**batch).logits), FIXED))


def test_tf32_needs_its_hardware():
    if not torch.cuda.is_available():
        with pytest.raises(SettingError, match="tf32"):
            Run(text_job(), Plan(precision="tf32"))


# -- data ------------------------------------------------------------------------------------------------------------


def test_iterable_data():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(texts(20))

    job = text_job(data=Stream(), epochs=None, optimizer_steps=6)
    steps = list(Run(job, Plan(loader=INLINE)))
    assert [step.samples for step in steps] == [8, 8, 4, 8, 8, 4]
    with pytest.raises(SettingError, match="no length"):
        Run(text_job(data=Stream()), Plan())


def test_datasets_dataset():
    from datasets import Dataset

    reference = [step.loss for step in Run(text_job(), FIXED)]
    run = Run(text_job(data=Dataset.from_list(texts(40))), Plan(loader=INLINE))
    assert [step.loss for step in run] == pytest.approx(reference, abs=1e-5)


def test_samples_padded_by_the_tokenizer_are_run_at_their_real_length():
    padded = []
    for sample in texts(40):
        rest = 60 - len(sample["input_ids"])
        padded.append({k: v + [0] * rest if isinstance(v, list) else v for k, v in sample.items()})
    run = Run(text_job(data=padded), Plan(loader=INLINE))
    steps = list(run)
    assert steps[0].padded_tokens == steps[0].tokens < 8 * 60
    reference = [step.loss for step in Run(text_job(), FIXED)]
    assert [step.loss for step in steps] == pytest.approx(reference, abs=1e-5)


def test_schedule_and_clipping_are_counted_in_optimizer_steps():
    job = text_job(
        schedule=lambda optimizer, steps: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps),
        clip_norm=1e-3,
    )
    steps = list(Run(job, FIXED))
    assert [s.learning_rate for s in steps] == pytest.approx([1e-3 * (1 - k / 5) for k in range(5)])
    assert all(s.grad_norm > 1e-3 for s in steps)


def test_a_plan_from_a_file(tmp_path):
    from nearpeak import load_plan, save_plan

    for name in ("plan.toml", "plan.json"):
        run = Run(text_job(), Plan(loader=INLINE))
        save_plan(run.plan, tmp_path / name)
        assert load_plan(tmp_path / name) == run.plan
        again = Run(text_job(), tmp_path / name)
        assert again.plan.micro_batching == run.plan.micro_batching
    (tmp_path / "bad.toml").write_text("precison = 'fp32'")
    with pytest.raises(SettingError, match="precison"):
        load_plan(tmp_path / "bad.toml")
    (tmp_path / "worse.json").write_text("{")
    with pytest.raises(SettingError, match="not a plan"):
        load_plan(tmp_path / "worse.json")


TEXT_JOB, POINT_JOB = text_job(), point_job()


@settings(max_examples=25, deadline=None)
@given(draw=st.data())
def test_the_ranks_of_a_window_hold_it_exactly(draw):
    """Each rank's loader, as a run builds it, stopped once and begun anew: together the ranks hold every window."""
    samples, batch = draw.draw(st.integers(1, 40), "samples"), draw.draw(st.integers(1, 12), "global batch")
    remainder = draw.draw(st.sampled_from(["short", "carry", *(["drop"] if samples >= batch else [])]), "remainder")
    epochs = draw.draw(st.integers(1, 2), "epochs")
    texts_or_points = draw.draw(st.sampled_from([(TEXT_JOB, texts(samples)), (POINT_JOB, Points(samples))]), "data")
    job, data = texts_or_points
    # Points have no lengths: there is one way to cut them.
    ways = ["fixed", "partition", "packed"] if job is TEXT_JOB else ["fixed"]
    way = draw.draw(st.sampled_from(ways), "micro-batching")
    job = replace(job, data=data, global_batch=batch, epochs=epochs, remainder=remainder)
    preparation = preparation_of(job, way, micro_batch=draw.draw(st.integers(1, 5), "micro-batch"), **TOKENS)
    count = job_steps(job)
    stop = draw.draw(st.integers(0, count.optimizer_steps), "restart at")
    held: list[list[int]] = [[] for _ in range(count.optimizer_steps)]
    for first, last in ((0, stop), (stop, count.optimizer_steps)):
        ranks, workers = draw.draw(st.integers(1, 4), "ranks"), draw.draw(st.integers(0, 2), "workers")
        for rank in range(ranks):
            source, one = _source_of(job, Ranks(rank, ranks)), LoaderSettings(workers=workers if rank == 0 else 0)
            with WindowLoader(source, preparation, first=first, last=last, settings=one, seed=0) as loader:
                for k, window in enumerate(loader, first):
                    held[k] += [ref[0] for part in window.micro_batches for ref in part.refs]
                    assert all(map(within(preparation), window.micro_batches))
    order, end = SampleOrder(samples, batch, remainder=remainder), epochs * samples if remainder == "carry" else None
    assert [sorted(w) for w in held] == [sorted(order.window(k, end).indices) for k in range(len(held))]
    assert f"= {len(held):,} optimizer steps" in count.formula
    kept = samples // batch * batch if remainder == "drop" else samples
    assert sum(map(len, held)) == epochs * kept


TOKENS = {"micro_batch_tokens": 40}


def within(preparation):
    """Whether a micro-batch is one sample, or within the limits."""

    def holds(part) -> bool:
        too_many = part.packing is None and part.samples > preparation.micro_batch
        sorted_by_length = preparation.micro_batching != "fixed" and part.padded_tokens is not None
        return part.samples == 1 or not (too_many or (sorted_by_length and part.padded_tokens > 40))

    return holds


def test_workers_come_during_the_run_when_the_step_waits_for_input():
    class Slow(Points):
        def __getitem__(self, index):
            time.sleep(0.003)
            return super().__getitem__(index)

    job = point_job(data=Slow(8), epochs=48)
    run = Run(job, Plan(micro_batching="fixed", micro_batch=8))
    steps = list(run)
    raised = [reason for reason in run.reasons if reason.choice.startswith("loader.workers=")]
    assert "waits" in raised[0].because and int(raised[0].choice.partition("=")[2]) >= 2
    assert min(step.wait_s for step in steps[-16:]) < 0.012 < min(step.wait_s for step in steps[:4])
    assert [step.loss for step in steps] == [step.loss for step in Run(point_job(8, epochs=48), plan_inline(8))]


def plan_inline(micro_batch: int) -> Plan:
    return Plan(micro_batching="fixed", micro_batch=micro_batch, loader=INLINE)


def test_compiled_blocks_share_one_graph_for_all_lengths():
    import torch._dynamo
    from torch._dynamo.utils import counters

    from nearpeak.train.kernels import apply_compile

    model, data = classifier().eval(), texts(30, longest=40)
    expected = [model(input_ids=torch.tensor([s["input_ids"]])).logits for s in data]
    torch._dynamo.reset()
    counters.clear()
    undo, reason = apply_compile(model, "blocks", backend="eager")
    for sample, logits in zip(data, expected, strict=True):
        assert torch.allclose(model(input_ids=torch.tensor([sample["input_ids"]])).logits, logits, atol=1e-5)
    assert len({len(s["input_ids"]) for s in data}) > 8
    assert counters["stats"]["unique_graphs"] <= 2, "one for any length, and at most one more for a first shape"
    undo()
    assert (
        all(block._compiled_call_impl is None for block in model.bert.encoder.layer)
        and "share one graph" in reason.because
    )
