"""The measure of equality itself."""

from __future__ import annotations

import pytest
import torch
from jobs import classifier, perceptron
from torch import nn

from nearpeak.train.equivalence import compare_gradients, couples_samples, holds, without_dropout
from nearpeak.train.precision import LossScaler
from nearpeak.train.untraced import dropout_off, untraced


def test_deviation_of_known_gradients():
    reference = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0])}
    same = compare_gradients(reference, reference)
    assert (same.relative, same.cosine, same.scale) == (0.0, pytest.approx(1.0), 1.0)
    off = compare_gradients(reference, {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.5])})
    assert off.relative == pytest.approx(0.1) and off.worst == "b"
    assert compare_gradients(reference, {k: 4 * v for k, v in reference.items()}).scale == pytest.approx(4)


def test_a_missing_gradient_counts_as_zero():
    reference = {"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}
    assert compare_gradients(reference, {"a": torch.tensor([3.0])}).relative == pytest.approx(0.8)
    assert compare_gradients({}, {"a": torch.tensor([1.0])}).relative == float("inf")
    assert compare_gradients({}, {}).relative == 0


@pytest.mark.parametrize(
    ("precision", "error", "verdict"),
    [("fp64", 1e-11, True), ("fp64", 1e-9, False), ("fp32", 1e-6, True), ("fp32", 1e-4, False), ("bf16", 1e-2, True)],
)
def test_what_rounding_explains(precision, error, verdict):
    reference = {"a": torch.ones(100, dtype=torch.float64)}
    candidate = {"a": reference["a"] + error * torch.tensor([1.0, -1.0]).repeat(50)}
    assert holds(compare_gradients(reference, candidate), precision) is verdict


def test_measured_rounding_widens_the_limit_but_never_far():
    reference = {"a": torch.ones(100, dtype=torch.float64)}
    off = [compare_gradients(reference, {"a": reference["a"] * (1 + error)}) for error in (3e-5, 3e-4)]
    assert not holds(off[0], "fp32") and not holds(off[0], "fp32", rounding=1e-6)
    assert holds(off[0], "fp32", rounding=1e-5)
    assert not holds(off[1], "fp32", rounding=1e-2), "a loss that depends on the order of samples is not rounding"


def test_a_wrong_weight_is_never_rounding():
    reference = {"a": torch.ones(10)}
    assert not holds(compare_gradients(reference, {"a": 4 * torch.ones(10)}), "bf16")


def test_without_dropout_is_a_deterministic_copy():
    model = classifier("modernbert", attention_dropout=0.5, mlp_dropout=0.5, embedding_dropout=0.5).train()
    clone = without_dropout(model)
    batch = {"input_ids": torch.arange(5, 15)[None], "labels": torch.tensor([1])}
    assert clone(**batch).loss == clone(**batch).loss
    assert model(**batch).loss != model(**batch).loss


def test_dropout_off_is_put_back():
    model = classifier(hidden_dropout_prob=0.25)
    with dropout_off(model):
        assert all(m.p == 0 for m in model.modules() if isinstance(m, nn.Dropout))
    assert any(m.p == 0.25 for m in model.modules() if isinstance(m, nn.Dropout))


def test_untraced_puts_everything_back():
    model = perceptron(norm=True).eval()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    torch.manual_seed(0)
    state, expected = {k: v.clone() for k, v in model.state_dict().items()}, torch.rand(1)
    torch.manual_seed(0)
    with untraced(model, torch.device("cpu")):
        model.train()
        model(torch.randn(9, 6)).sum().backward()
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(state[k], v) for k, v in model.state_dict().items())
    assert not model.training and model[0].weight.grad.eq(1).all() and model[3].weight.grad is None


def test_coupled_samples_are_noticed():
    assert couples_samples(perceptron(norm=True)) == "1 (BatchNorm1d)"
    assert couples_samples(perceptron()) is None


def test_loss_scale_grows_after_enough_updates_and_halves_on_overflow():
    scaler = LossScaler(scale=8.0, growth_interval=3)
    for _ in range(3):
        scaler.accept()
    assert scaler.scale == 16
    assert scaler.reject() and scaler.scale == 8 and scaler.updates_since_change == 0
    tired = LossScaler(scale=2.0**-10)
    assert not tired.reject()
