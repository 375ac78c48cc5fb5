"""What only a GPU can prove of the engine. `pytest -m gpu` runs it where one is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
from drawn import Drawn, applied
from jobs import classifier, point_job, text_job, texts

from nearpeak import Plan, Run
from nearpeak.plan import LoaderSettings
from nearpeak.testing import assert_exact_resume, assert_same_training
from nearpeak.train.batches import default_collate

pytestmark = pytest.mark.gpu

INLINE = LoaderSettings(workers=0)
FIXED = Plan(micro_batching="fixed", micro_batch=4, loader=INLINE)


@pytest.mark.parametrize(
    "plan",
    [
        Plan(micro_batching="partition", loader=INLINE),
        Plan(micro_batching="packed", loader=INLINE),
        Plan(micro_batching="partition", recompute="blocks", loader=INLINE),
        Plan(micro_batching="partition", recompute="selective", loader=INLINE),
        Plan(micro_batching="packed", loader=LoaderSettings(workers=2)),
        Plan(micro_batching="packed", precision="bf16", loader=INLINE),
        Plan(micro_batching="packed", precision="fp16", loader=INLINE),
        Plan(micro_batching="partition", precision="tf32", loader=INLINE),
    ],
    ids=lambda plan: f"{plan.micro_batching}-{plan.precision}-{plan.recompute}-{plan.loader.workers}",
)
def test_plans_train_the_same(plan: Plan) -> None:
    assert_same_training(text_job(), FIXED, plan, steps=5, device="cuda")


@pytest.mark.timeout(300)
def test_compiled_blocks_train_the_same() -> None:
    compiled = Plan(micro_batching="partition", compile="blocks", loader=INLINE)
    assert_same_training(text_job(), FIXED, compiled, steps=4, device="cuda")


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("micro_batching", ["partition", "packed"])
def test_a_stopped_run_goes_on_bit_for_bit(precision: str, micro_batching: str) -> None:
    plan = Plan(micro_batching=micro_batching, precision=precision, loader=INLINE)

    def make():
        return text_job(model=classifier(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1))

    assert_exact_resume(make, (1, 3), plan=plan, device="cuda")


def test_an_overflow_loses_no_window() -> None:
    def steep(model, batch):
        return model(**batch).loss * 3e4

    job = text_job(loss=steep, optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1e-7))
    run = Run(job, Plan(precision="fp16", micro_batching="packed", loader=INLINE), device="cuda")
    assert len([step.loss for step in run]) == run.optimizer_steps
    assert any("overflow" in reason.because or "scale" in reason.choice for reason in run.reasons)


def test_training_never_waits_for_the_device() -> None:
    """Nobody reads a loss here; then no step may synchronise."""
    job = text_job(data=texts(96), global_batch=8, clip_norm=1.0)
    seen = 0
    with contextlib.ExitStack() as stack:
        for step in Run(job, Plan(micro_batching="packed", precision="bf16", loader=INLINE), device="cuda"):
            seen += 1
            if step.index == 3:  # pools are filled, kernels are loaded
                stack.enter_context(synchronising_is_an_error())
            if step.index == 8:
                stack.close()
    assert seen == 12


@contextlib.contextmanager
def synchronising_is_an_error() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_full_device_costs_smaller_micro_batches_and_no_window() -> None:
    """The device is filled until a window no longer fits at once, but its gradients and a single text do."""
    data = texts(128, longest=60, seed=3)

    def make():
        wide = classifier(hidden_size=1024, intermediate_size=4096)
        return text_job(model=wide, data=data, global_batch=64, epochs=2)

    reference = [step.loss for step in Run(make(), FIXED, device="cuda")]
    run = Run(make(), Plan(micro_batching="packed", loader=INLINE), device="cuda")
    steps = iter(run)
    losses = [next(steps).loss]  # the optimizer's state is there from now on
    gradients = sum(p.numel() * p.element_size() for p in run.model.parameters())
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    ballast = torch.empty(free - gradients - 60 * 2**20, dtype=torch.uint8, device="cuda")
    losses += [step.loss for step in steps]
    del ballast
    torch.cuda.empty_cache()
    assert losses == pytest.approx(reference, rel=1e-4)
    assert any("did not fit" in reason.because for reason in run.reasons)


def test_prefetched_batches_are_not_overwritten_while_they_are_read() -> None:
    """The same losses as without the side stream, with a device that is kept busy."""
    ballast = torch.randn(4096, 4096, device="cuda")

    def slow(model, batch):
        for _ in range(20):
            ballast @ ballast
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

    plan = Plan(micro_batching="fixed", micro_batch=8, loader=LoaderSettings(workers=2))
    losses = [step.loss for step in Run(point_job(400, loss=slow), plan, device="cuda")]
    on_cpu = [step.loss for step in Run(point_job(400), Plan(micro_batching="fixed", micro_batch=8), device="cpu")]
    assert losses == pytest.approx(on_cpu, rel=1e-4)


@pytest.mark.parametrize("autocast", [False, True])
def test_recomputation_operator_by_operator_draws_the_same_numbers(autocast: bool) -> None:
    """Attention drops out in one kernel, whose second run may be skipped; what is dropped after it stays the same.
    Other numbers would change gradients by as much as they are."""
    model = classifier(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.3, num_hidden_layers=3).cuda().train()
    batch = {key: each.cuda() for key, each in default_collate(texts(6)).items()}

    def gradients() -> torch.Tensor:
        model.zero_grad()
        torch.manual_seed(5)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
            loss = model(**batch).loss
        loss.backward()
        return torch.cat([p.grad.flatten().double() for p in model.parameters() if p.grad is not None])

    plain = gradients()
    for letters in ("r", "h", "krh"):
        with applied(model, Drawn(letters)):
            again = gradients()
        assert float((again - plain).norm() / plain.norm()) < (2e-2 if autocast else 1e-4), letters
