"""Faster kernels compute the same, are chosen by measurement, and leave the model as it was."""

from __future__ import annotations

import copy

import pytest
import torch
from jobs import classifier, perceptron, text_job, texts
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy

from nearpeak import Plan, Run
from nearpeak.errors import UnsupportedError
from nearpeak.train.batches import default_collate
from nearpeak.train.device import choose_device, is_out_of_memory, map_tensors, prefetch
from nearpeak.train.kernels import (
    OneDnnLinear,
    apply_attention,
    apply_dropout,
    apply_matmul,
    fastest_dropout,
    fastest_matmul,
    fuse_optimizer,
)
from nearpeak.train.prepare import MicroBatch, PreparedWindow
from nearpeak.train.recompute import _policy, apply_recompute

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN")


@needs_onednn
def test_onednn_linear_equals_torch_in_value_and_gradient():
    torch.manual_seed(0)
    plain = nn.Linear(48, 32)
    other = copy.deepcopy(plain)
    undo = apply_matmul(other, "onednn")
    assert type(other) is OneDnnLinear
    values = torch.randn(5, 7, 48)
    for layer in (plain, other):
        layer(values.requires_grad_()).square().sum().backward()
    torch.testing.assert_close(plain(values), other(values))
    torch.testing.assert_close(plain.weight.grad, other.weight.grad)
    torch.testing.assert_close(plain.bias.grad, other.bias.grad)
    undo()
    assert type(other) is nn.Linear


@needs_onednn
def test_changed_layers_are_still_linear_layers():
    model = perceptron()
    apply_matmul(model, "onednn")
    twin = copy.deepcopy(model)
    assert isinstance(model[0], nn.Linear) and model.state_dict().keys() == perceptron().state_dict().keys()
    twin[0].weight.data.zero_()
    assert model[0].weight.abs().sum() > 0, "a copy must own its weights"
    with torch.autocast("cpu", torch.bfloat16):
        assert model[0](torch.randn(2, 6)).dtype == torch.bfloat16
    assert model.double()[0](torch.randn(2, 6).double()).dtype == torch.float64


def test_choices_come_with_their_measurements():
    choice, reason = fastest_matmul(classifier(), torch.device("cpu"))
    assert choice in ("keep", "onednn") and choice in reason.choice
    assert fastest_matmul(nn.Embedding(2, 2), torch.device("cpu"))[0] == "keep"
    choice, reason = fastest_dropout(classifier(hidden_dropout_prob=0.1))
    assert {"keep_ms", "bits_ms"} == reason.evidence.keys()
    assert fastest_dropout(perceptron())[1].because == "The model has no dropout."


def test_measuring_dropout_draws_no_number():
    model, state = classifier(hidden_dropout_prob=0.1), torch.get_rng_state()
    fastest_dropout(model)
    assert torch.equal(state, torch.get_rng_state())


def test_dropout_is_put_back():
    model = classifier(hidden_dropout_prob=0.1)
    undo = apply_dropout(model, "bits")
    assert not any(type(m) is nn.Dropout for m in model.modules())
    undo()
    assert any(type(m) is nn.Dropout for m in model.modules())


def test_optimizers_are_fused_where_they_can_be():
    model = perceptron()
    parameters = list(model.parameters())
    adam = torch.optim.AdamW(parameters)
    assert fuse_optimizer(adam, True, model).choice == "fused_optimizer=yes" and adam.param_groups[0]["fused"]
    assert fuse_optimizer(torch.optim.AdamW(parameters, foreach=True), True, model).choice == "fused_optimizer=no"
    assert fuse_optimizer(torch.optim.RMSprop(parameters), True, model).choice == "fused_optimizer=no"
    assert fuse_optimizer(torch.optim.AdamW(parameters), False, model).because == "As set."
    sparse = torch.nn.Embedding(5, 3, sparse=True)
    assert "sparse" in fuse_optimizer(torch.optim.Adagrad(sparse.parameters()), True, sparse).because


def test_attention_kernels_are_switched_and_put_back():
    model = classifier()
    undo = apply_attention(model, "eager")
    assert model.config._attn_implementation == "eager"
    undo()
    assert model.config._attn_implementation == "sdpa"
    with pytest.raises(UnsupportedError, match="not a transformers model"):
        apply_attention(perceptron(), "eager")


@pytest.mark.parametrize(("policy", "blocks"), [("blocks", 4), ("every_nth", 2), ("selective", 4)])
def test_recomputation_computes_again_and_is_taken_off(policy, blocks):
    model, batch = classifier(num_hidden_layers=4), default_collate(texts(3))
    undo, reason = apply_recompute(model.train(), policy, every=2)
    assert reason.evidence["blocks"] == blocks
    forwards = []
    hooks = [block.attention.register_forward_hook(lambda *_: forwards.append(1)) for block in model.bert.encoder.layer]
    model(**batch).loss.backward()
    assert len(forwards) == 4 + blocks
    undo()
    forwards.clear()
    model(**batch).loss.backward()
    assert len(forwards) == 4
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize(
    ("arguments", "kept"), [((0.0,), True), ((0.1,), False), ((), True), ((0.1, False, False), False)]
)
def test_attention_that_drops_out_is_not_skipped(arguments, kept):
    """Its second run, if skipped, would leave dropout after it with numbers that it did not have in forward."""
    tensors = [torch.zeros(1, 1, 2, 8)] * 3
    attention = torch.ops.aten._scaled_dot_product_flash_attention.default
    chosen = _policy(None, attention, *tensors, *arguments)
    assert (chosen is CheckpointPolicy.MUST_SAVE) is kept
    assert _policy(None, torch.ops.aten.mm.default, *tensors[:2]) is CheckpointPolicy.MUST_SAVE
    assert _policy(None, torch.ops.aten.gelu.default, tensors[0]) is CheckpointPolicy.PREFER_RECOMPUTE


def test_recomputation_needs_blocks():
    with pytest.raises(UnsupportedError, match="no ModuleList"):
        apply_recompute(perceptron(), "blocks")


def test_a_run_takes_its_kernels_off_when_the_loop_ends():
    job = text_job(model=classifier(hidden_dropout_prob=0.1))
    kinds = [type(m) for m in job.model.modules()]
    threads = torch.get_num_threads()
    for _ in Run(job, Plan(matmul="onednn", dropout="bits", recompute="blocks", threads=2)):
        break
    assert [type(m) for m in job.model.modules()] == kinds and torch.get_num_threads() == threads
    assert all("forward" not in vars(block) for block in job.model.bert.encoder.layer)


def test_structures_keep_their_shape():
    window = PreparedWindow((MicroBatch({"a": torch.ones(2)}, ((0, 0, 0),), 1, 2, 2),))
    doubled = map_tensors(lambda tensor: tensor * 2, window)
    assert doubled.micro_batches[0].batch["a"].tolist() == [2, 2] and doubled.micro_batches[0].refs == ((0, 0, 0),)
    assert list(prefetch(iter([window]), choose_device("cpu", 0))) == [window]


def test_what_out_of_memory_looks_like():
    assert is_out_of_memory(torch.OutOfMemoryError("x"))
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes"))
    assert not is_out_of_memory(RuntimeError("size mismatch"))
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)  # what this build of torch itself says
    assert is_out_of_memory(caught.value)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "plan",
    [
        Plan(micro_batching="partition"),
        Plan(micro_batching="packed"),
        Plan(micro_batching="packed", precision="bf16"),
        Plan(micro_batching="partition", precision="fp16"),
        Plan(micro_batching="packed", recompute="selective"),
    ],
)
def test_plans_on_a_gpu_follow_the_cpu(plan):
    reference = [step.loss for step in Run(text_job(), Plan(micro_batching="fixed", micro_batch=8), device="cpu")]
    losses = [step.loss for step in Run(text_job(), plan, device="cuda")]
    assert losses == pytest.approx(reference, rel=1e-4 if plan.precision == "fp32" else 2e-2)


@pytest.mark.gpu
def test_auto_on_a_gpu():
    run = Run(text_job(), "auto", device="cuda", allow=("bf16",))
    assert len([step.loss for step in run]) == run.optimizer_steps
