"""Packed rows through unmodified models: the same loss and gradient as padded ones."""

from __future__ import annotations

import pytest
import torch
from jobs import classifier, config, texts
from torch.nn import functional

from nearpeak.errors import UnsupportedError
from nearpeak.train.batches import default_collate
from nearpeak.train.cpu_attention import attend_with_dropout
from nearpeak.train.cpu_dropout import BitDropout, keep_mask
from nearpeak.train.equivalence import compare_gradients, gradients, without_dropout
from nearpeak.train.packed import PackedAdapter, find_blocks, packed_attention

FIRST_TOKEN = ["bert", "distilbert", "roberta", "xlm-roberta", "electra", "albert", "modernbert"]


def deviation_of(model, batch) -> float:
    model = without_dropout(model.double())
    adapter, reason = PackedAdapter.find(model)
    assert adapter is not None, reason
    model(**batch).loss.backward()
    reference = gradients(model)
    model.zero_grad()
    packed, packing = adapter.pack(batch)
    assert packed["input_ids"].shape == (1, sum(packing.lengths))
    with adapter(packing):
        model(**packed).loss.backward()
    return compare_gradients(reference, gradients(model)).relative


@pytest.mark.parametrize("kind", FIRST_TOKEN)
def test_classifiers_that_pool_the_first_token(kind):
    assert deviation_of(classifier(kind), default_collate(texts(7))) < 1e-12


@pytest.mark.parametrize(
    ("kind", "head"),
    [("bert", "TokenClassification"), ("roberta", "MaskedLM"), ("llama", "CausalLM"), ("gpt2", "CausalLM")],
)
def test_heads_with_a_prediction_for_each_token(kind, head):
    import transformers

    torch.manual_seed(0)
    model = getattr(transformers, f"AutoModelFor{head}").from_config(config(kind))
    samples = [{**s, "labels": [t % 3 for t in s["input_ids"]]} for s in texts(7)]
    # A causal model's loss leaves the double-precision graph for fp32 inside transformers.
    assert deviation_of(model, default_collate(samples)) < 1e-6


@pytest.mark.parametrize(("kind", "why"), [("deberta-v2", "public table"), ("llama", "first token")])
def test_models_that_cannot_are_refused_with_the_reason(kind, why):
    adapter, reason = PackedAdapter.find(classifier(kind))
    assert adapter is None and why in reason.because


def test_mean_pooling_is_refused():
    adapter, reason = PackedAdapter.find(classifier("modernbert", classifier_pooling="mean"))
    assert adapter is None and "mean" in reason.because
    assert PackedAdapter.find(torch.nn.Linear(2, 2))[1].because == "it is not a transformers model."


def test_the_model_is_left_as_it_was():
    model = classifier()
    adapter, _ = PackedAdapter.find(model)
    before = model.config._attn_implementation
    packed, packing = adapter.pack(default_collate(texts(3)))
    with adapter(packing):
        model(**packed)
    assert model.config._attn_implementation == before
    assert not adapter.stack._forward_hooks
    assert model(**default_collate(texts(3))).logits.shape == (3, 3)


def test_outside_of_a_packed_micro_batch_it_refuses():
    tensor = torch.zeros(1, 1, 2, 4)
    with pytest.raises(UnsupportedError, match="outside"):
        packed_attention(torch.nn.Linear(1, 1), tensor, tensor, tensor, None)


def test_blocks_are_the_outermost_stack():
    assert find_blocks(classifier("bert"))[0] == "bert.encoder.layer"
    assert find_blocks(classifier("albert"))[0] == "albert.encoder.albert_layer_groups"
    assert find_blocks(torch.nn.Linear(2, 2)) is None


@pytest.mark.parametrize("causal", [False, True])
def test_cpu_attention_equals_torch(causal):
    torch.manual_seed(0)
    runs = [(2, 3), (1, 7), (3, 5)]
    q, k, v = (torch.randn(4, 28, 8, dtype=torch.double, requires_grad=True) for _ in range(3))
    ours = attend_with_dropout(q, k, v, runs, None, 1e-15, causal)
    spans = [(3 * i, 3) for i in range(2)] + [(6, 7)] + [(13 + 5 * i, 5) for i in range(3)]
    theirs = [
        functional.scaled_dot_product_attention(*(t[None, :, s : s + n] for t in (q, k, v)), is_causal=causal)[
            0
        ].transpose(0, 1)
        for s, n in spans
    ]
    weights = torch.randn_like(ours)
    left = torch.autograd.grad((ours * weights).sum(), (q, k, v))
    right = torch.autograd.grad((torch.cat(theirs) * weights).sum(), (q, k, v))
    assert all(torch.allclose(a, b, rtol=1e-8, atol=1e-9) for a, b in zip(left, right, strict=True))


def test_cpu_attention_with_dropout_has_the_gradient_of_what_it_computes():
    torch.manual_seed(0)
    inputs = [torch.randn(2, 10, 4, dtype=torch.double, requires_grad=True) for _ in range(3)]

    def attend(*qkv):
        torch.manual_seed(1)
        return attend_with_dropout(*qkv, [(2, 5)], None, 0.3, False)

    assert torch.autograd.gradcheck(attend, inputs)


@pytest.mark.parametrize("keep", [0.9, 0.5, 0.123456])
def test_dropout_keeps_at_the_exact_rate(keep):
    torch.manual_seed(0)
    mask = keep_mask(torch.empty(1_000_003), keep)
    kept = (mask > 0).double().mean()
    # Four standard deviations of a fair draw.
    assert abs(kept - keep) < 4 * (keep * (1 - keep) / 1_000_003) ** 0.5
    assert mask[mask > 0].unique().tolist() == pytest.approx([1 / keep])


def test_bit_dropout_masks_the_gradient_like_the_values():
    torch.manual_seed(0)
    layer, values = BitDropout(0.4), torch.ones(1000, requires_grad=True)
    output = layer(values)
    output.sum().backward()
    assert torch.equal(values.grad, output.detach())
    assert torch.equal(layer.eval()(values), values)


@pytest.mark.parametrize(("dtype", "dropout"), [(torch.float32, 0.0), (torch.bfloat16, 0.1), (torch.float32, 0.1)])
@pytest.mark.parametrize("key_heads", [4, 2])
def test_cuda_kernels_are_called_as_torch_declares_them(dtype, dropout, key_heads):
    """Shapes and signatures only: fake tensors run no kernel, so that this holds without a GPU."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from nearpeak.train.batches import Packing
    from nearpeak.train.packed import _varlen

    with FakeTensorMode(allow_non_fake_inputs=True):
        query = torch.empty(1, 4, 12, 32, dtype=dtype, device="cuda")
        key, value = (torch.empty(1, key_heads, 12, 32, dtype=dtype, device="cuda") for _ in range(2))
        packing = Packing(torch.empty(4, dtype=torch.int32, device="cuda"), (3, 4, 5))
        arguments = {"scale": None, "dropout_p": dropout, "is_causal": False, "enable_gqa": key_heads != 4}
        output = _varlen(query, key, value, packing, arguments)
    assert output.shape == (1, 12, 4, 32) and output.dtype == dtype


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_cuda_kernels_equal_attention_sample_by_sample(dtype, causal):
    from nearpeak.train.batches import Packing
    from nearpeak.train.packed import _each_by_itself, _varlen

    torch.manual_seed(0)
    qkv = [torch.randn(1, 4, 40, 32, dtype=dtype, device="cuda", requires_grad=True) for _ in range(3)]
    lengths = (3, 7, 10, 20)
    bounds = torch.tensor([0, 3, 10, 20, 40], dtype=torch.int32, device="cuda")
    arguments = {"scale": None, "dropout_p": 0.0, "is_causal": causal, "enable_gqa": False}
    one = _varlen(*qkv, Packing(bounds, lengths), arguments)
    other = _each_by_itself(*qkv, Packing(bounds, lengths), None, arguments)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)
    grads = [torch.autograd.grad(output.square().sum(), qkv) for output in (one, other)]
    for left, right in zip(*grads, strict=True):
        torch.testing.assert_close(left, right, atol=10 * tolerance, rtol=10 * tolerance)
