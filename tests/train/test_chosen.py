"""Recomputation operator by operator: the same gradients, whatever is kept, and no plan of another model."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import Drawn, applied
from jobs import classifier, text_job, texts
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from nearpeak import Run
from nearpeak.errors import SettingError, UnsupportedError
from nearpeak.plan import BlockRecompute, LoaderSettings, Plan, load_plan, save_plan
from nearpeak.train import chosen
from nearpeak.train.batches import default_collate
from nearpeak.train.chosen import Recomputation
from nearpeak.train.recompute import apply_recompute

pytest.importorskip("transformers")
INLINE = LoaderSettings(workers=0)


def bert() -> tuple[torch.nn.Module, dict[str, Any]]:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    config = BertConfig(vocab_size=50, num_labels=3, attention_probs_dropout_prob=0.0, **sizes)
    model = BertForSequenceClassification(config)
    ids = torch.randint(5, 50, (3, 9))
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor([0, 1, 2])}


def gpt2() -> tuple[torch.nn.Module, dict[str, Any]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=50, n_embd=32, n_layer=3, n_head=4, n_positions=32, bos_token_id=1, eos_token_id=2)
    ids = torch.randint(5, 50, (3, 9))
    return GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}


def vit() -> tuple[torch.nn.Module, dict[str, Any]]:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    config = ViTConfig(image_size=16, patch_size=4, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, **sizes)
    return ViTForImageClassification(config), {
        "pixel_values": torch.randn(2, 3, 16, 16),
        "labels": torch.tensor([0, 1]),
    }


MODELS = {"bert": bert, "gpt2": gpt2, "vit": vit}


def gradients(model: torch.nn.Module, batch: dict[str, Any], autocast: bool = False) -> tuple[torch.Tensor, ...]:
    """Of one step from a fixed seed; the last one tells where the random numbers stand afterwards."""
    model.zero_grad()
    torch.manual_seed(7)
    with torch.autocast("cpu", dtype=torch.bfloat16) if autocast else contextlib.nullcontext():
        loss = model(**batch).loss
    loss.backward()
    return (*(p.grad.clone() for p in model.parameters() if p.grad is not None), torch.rand(2))


def furthest(first: tuple[torch.Tensor, ...], second: tuple[torch.Tensor, ...]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(first, second, strict=True))


def made(name: str, seed: int = 0) -> tuple[torch.nn.Module, dict[str, Any]]:
    torch.manual_seed(seed)
    model, batch = MODELS[name]()
    return model.train(), batch


class Counted(TorchDispatchMode):
    """How often each operator runs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.name()] = self.calls.get(func.name(), 0) + 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("letters", ["r", "h", "krh"])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_keeping_everything(name: str, letters: str) -> None:
    model, batch = made(name)
    model.double()
    batch = {key: each.double() if each.is_floating_point() else each for key, each in batch.items()}
    plain = gradients(model, batch)
    for seed in range(3):
        with applied(model, Drawn(letters, seed)):
            assert furthest(gradients(model, batch), plain) < 1e-10
    assert furthest(gradients(model, batch), plain) == 0


@pytest.mark.parametrize("name", MODELS)
def test_autocast_casts_as_it_did_the_first_time(name: str) -> None:
    model, batch = made(name)
    plain = gradients(model, batch, autocast=True)
    with applied(model, Drawn("rh", 1)):
        assert furthest(gradients(model, batch, autocast=True), plain) == 0


def test_what_is_not_kept_is_computed_again_and_only_that() -> None:
    model, batch = made("bert")
    batch = dict(batch)
    counts: dict[str, int] = {}
    for letters in ("k", "h", "r"):
        with applied(model, Drawn(letters)):
            loss = model(**batch).loss
            with Counted() as counted:
                loss.backward()
        counts[letters] = counted.calls.get("aten::addmm", 0)
    # Of a block's six products two end in a sum that only a norm reads, whose input is made of them again.
    assert counts["k"] == 0 and counts["h"] == 3 * 6 and counts["r"] > counts["h"]


def test_kept_random_operators_leave_the_others_their_numbers() -> None:
    """torch's own selective checkpointing draws other numbers here: what it skips does not advance the generator."""

    class TwoDropouts(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first = torch.native_dropout(x * x, 0.5, True)[0]
            return (torch.native_dropout(first * first, 0.5, True)[0] * first).sin()

    class KeepsTheFirst:
        def begin(self) -> None:
            self.seen = 0

        def choices(self, block: str, operator: str, tensors: int) -> str:
            self.seen += operator == "native_dropout"
            return ("k" if operator == "native_dropout" and self.seen == 1 else "r") * tensors

        def end(self) -> None:
            pass

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), TwoDropouts())
    x = torch.randn(64, 8)

    def step() -> torch.Tensor:
        model.zero_grad()
        torch.manual_seed(3)
        model(x).sum().backward()
        return model[0].weight.grad.clone()

    plain = step()
    recomputation = Recomputation(model, ["1"], KeepsTheFirst())
    assert torch.equal(step(), plain)
    recomputation.remove()


def test_memory_is_given_back_as_backward_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept lives until backward has passed it: nothing but the graph holds it."""
    kept: list[StorageWeakRef] = []
    original = chosen._detached

    def noted(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(StorageWeakRef(tensor.untyped_storage()))
        return original(tensor)

    monkeypatch.setattr(chosen, "_detached", noted)
    model, batch = made("bert")
    alive: list[int] = []

    def count(*_: Any) -> None:
        alive.append(sum(not each.expired() for each in kept))

    with applied(model, Drawn("kh")):
        loss = model(**batch).loss
        count()
        for layer in model.bert.encoder.layer:
            layer.output.dense.weight.register_post_accumulate_grad_hook(count)
        loss.backward()
        count()
    assert len(kept) >= alive[0] > alive[1] > alive[2] > alive[3] > alive[4] == 0


class OfEachOperator:
    """Letters by operator."""

    def __init__(self, **letters: str) -> None:
        self.letters = letters

    def begin(self) -> None:
        pass

    def choices(self, block: str, operator: str, tensors: int) -> str:
        return self.letters.get(operator, "r" * tensors)

    def end(self) -> None:
        pass


@pytest.mark.parametrize(("letter", "stays"), [("k", False), ("r", True)])
def test_kept_results_hold_no_operands(letter: str, stays: bool) -> None:
    """What the block reads is needed for nothing but to compute it again."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
    between: list[StorageWeakRef] = []
    model[0].register_forward_hook(lambda _module, _args, out: between.append(StorageWeakRef(out.untyped_storage())))
    recomputation = Recomputation(model, ["1"], OfEachOperator(relu=letter))
    y = model(torch.randn(3, 4))
    assert between[0].expired() is not stays
    y.sum().backward()
    recomputation.remove()


class Dropped(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.native_dropout(x, 0.5, True)[0]


@pytest.mark.parametrize(("letters", "stays"), [("rk", False), ("kr", True)])
def test_a_result_that_nobody_saved_holds_no_operands(letters: str, stays: bool) -> None:
    """Backward of dropout needs its mask; its other result is only added to."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), Dropped())
    between: list[StorageWeakRef] = []
    model[0].register_forward_hook(lambda _module, _args, out: between.append(StorageWeakRef(out.untyped_storage())))
    recomputation = Recomputation(model, ["1"], OfEachOperator(native_dropout=letters))
    y = model(torch.randn(3, 4)) + 1
    assert between[0].expired() is not stays
    y.sum().backward()
    recomputation.remove()


def test_a_second_backward_through_the_same_graph_works() -> None:
    model, batch = made("bert")
    torch.manual_seed(1)
    plain = model(**batch).loss
    plain.backward()
    once = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    with applied(model, Drawn("krh", 2)):
        torch.manual_seed(1)
        loss = model(**batch).loss
        loss.backward(retain_graph=True)
        loss.backward()
    twice = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(torch.allclose(b, 2 * a, rtol=1e-5, atol=1e-7) for a, b in zip(once, twice, strict=True))


# -- plans -------------------------------------------------------------------------------------------------------------


def planned(model: torch.nn.Module, batch: dict[str, Any], letters: str = "krh") -> tuple[BlockRecompute, ...]:
    drawn = Drawn(letters, 4)
    with applied(model, drawn):
        model(**batch)
    return drawn.plan()


class Masked(torch.nn.Module):
    """A block that reads a mask of inference mode, and a sparse matrix."""

    def __init__(self, mask: torch.Tensor, mixing: torch.Tensor) -> None:
        super().__init__()
        self.linear, self.mask, self.mixing = torch.nn.Linear(4, 4), mask, mixing

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            inside = torch.ones(4) * 3
        mixed = torch.sparse.mm(self.mixing * 2.0, self.linear(x).sin())
        return (mixed.exp() + self.mask + inside).sin()


@pytest.mark.parametrize("letters", ["k", "r", "h"])
def test_tensors_of_inference_mode_and_sparse_ones_are_read(letters: str) -> None:
    with torch.inference_mode():
        mask = torch.ones(3, 4).tril()
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), Masked(mask, torch.eye(3).to_sparse()), torch.nn.Linear(4, 4))
    x = torch.randn(3, 4)

    def step() -> list[torch.Tensor]:
        model.zero_grad()
        model(x).square().sum().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    plain = step()
    recomputation = Recomputation(model, ["1", "2"], Drawn(letters))
    again = step()
    recomputation.remove()
    assert len(plain) == 6 and all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


def test_a_plan_is_applied_and_taken_off() -> None:
    model, batch = made("bert")
    blocks = planned(model, batch)
    plain = gradients(model, batch)
    undo, reason = apply_recompute(model, "chosen", blocks=blocks)
    assert reason.evidence["blocks"] == 3
    assert furthest(gradients(model, batch), plain) == 0
    undo()
    assert all("forward" not in vars(module) for module in model.modules())


def test_a_plan_survives_its_file(tmp_path: Any) -> None:
    model, batch = made("bert")
    plan = Plan(recompute="chosen", recompute_blocks=planned(model, batch))
    for name in ("plan.json", "plan.toml"):
        save_plan(plan, tmp_path / name)
        assert load_plan(tmp_path / name) == plan


def test_a_misspelt_key_of_a_block_is_refused(tmp_path: Any) -> None:
    path = tmp_path / "plan.json"
    block = '{"modules": ["a.0"], "operators": ["addmm:k"], "operator": []}'
    path.write_text(f'{{"recompute": "chosen", "recompute_blocks": [{block}]}}')
    with pytest.raises(SettingError, match="unknown setting 'operator'; an entry of recompute_blocks has modules"):
        load_plan(path)


def test_a_plan_of_another_model_is_refused() -> None:
    model, batch = made("bert")
    blocks = planned(model, batch)
    with pytest.raises(UnsupportedError, match=r"no module bert\.encoder\.layer\.0"):
        apply_recompute(made("gpt2")[0], "chosen", blocks=blocks)
    model.set_attn_implementation("eager")
    undo, _ = apply_recompute(model, "chosen", blocks=blocks)
    said = r"block bert\.encoder\.layer\.0 calls bmm as its product 4, the plan has attention.*Choose anew"
    with pytest.raises(UnsupportedError, match=said):
        model(**batch)
    undo()


@pytest.mark.parametrize("paths", [["0", "1", "9"], ["0", "0"], ["0", "1", "2"]])
def test_a_plan_with_wrong_paths_leaves_the_model_as_it_was(paths: list[str]) -> None:
    """A missing one, one listed twice, one module under two paths."""
    shared = torch.nn.Linear(4, 4)
    model = torch.nn.Sequential(torch.nn.Tanh(), shared, shared)
    with pytest.raises(UnsupportedError, match="has no module 9|0 and 0 are the same|1 and 2 are the same"):
        Recomputation(model, paths, Drawn("r"))
    assert all("forward" not in vars(module) for module in model.modules())


def test_the_model_may_be_its_own_block() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    Recomputation(model, [""], Drawn("r")).remove()
    assert "forward" not in vars(model)


def test_what_stands_between_products_may_differ() -> None:
    """A mask, which some micro-batches need and others do not, and dropout that is off."""
    model, batch = made("bert")
    undo, _ = apply_recompute(model, "chosen", blocks=planned(model, batch))
    batch["attention_mask"][0, 5:] = 0
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    again = gradients(model, batch)
    undo()
    assert furthest(again, gradients(model, batch)) == 0


def test_fewer_operators_than_planned_are_refused() -> None:
    model, batch = made("bert")
    first, *others = planned(model, batch)
    longer = BlockRecompute(modules=first.modules, operators=(*first.operators, "addmm:k"))
    undo, _ = apply_recompute(model, "chosen", blocks=(longer, *others))
    with pytest.raises(UnsupportedError, match="calls nothing as its product 8, the plan has addmm"):
        model(**batch)
    undo()


def changed_after_it_was_read(model: Any, batch: dict[str, Any]) -> None:
    hidden: list[torch.Tensor] = []
    model.bert.encoder.layer[0].register_forward_pre_hook(lambda _, args: hidden.append(args[0]))
    loss = model(**batch).loss
    with torch.no_grad():
        hidden[0].mul_(2)
    loss.backward()


def changed_in_the_block(model: Any, batch: dict[str, Any]) -> None:
    layer = model.bert.encoder.layer[1].intermediate
    layer.register_forward_hook(lambda _module, _args, output: output.mul_(1.5))
    model(**batch).loss.backward()


@pytest.mark.parametrize("change", [changed_after_it_was_read, changed_in_the_block])
def test_changes_in_place_are_refused_and_never_silently_wrong(change: Callable[[Any, dict[str, Any]], None]) -> None:
    model, batch = made("bert")
    with applied(model, Drawn("r")), pytest.raises((UnsupportedError, RuntimeError), match="in place|inplace"):
        change(model, batch)


@pytest.mark.parametrize("letters", ["k", "r"])
@pytest.mark.parametrize("changed", ["weight in a block", "weight before the blocks", "result of no block"])
def test_what_no_block_made_is_not_changed_unnoticed(letters: str, changed: str) -> None:
    """Where plain torch refuses backward, so does this, whatever is kept."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4), torch.nn.Sigmoid())
    x = torch.randn(3, 4, requires_grad=True)
    recomputation = Recomputation(model, ["1", "2"], Drawn(letters))
    y = model(x)
    victims = {"weight in a block": model[2].weight, "weight before the blocks": model[0].weight}
    with torch.no_grad():
        victims.get(changed, y).mul_(2)
    with pytest.raises(UnsupportedError, match="that forward read was changed in place before backward"):
        y.sum().backward()
    recomputation.remove()


@pytest.mark.parametrize("letters", ["k", "r", "h"])
def test_a_forward_without_backward_leaves_nothing(letters: str) -> None:
    """By reference counts alone: a cycle through the graph is seen by no collector."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4), torch.nn.Sigmoid())
    recomputation = Recomputation(model, ["1", "2"], Drawn(letters))
    first: list[StorageWeakRef] = []
    model[0].register_forward_hook(lambda _module, _args, out: first.append(StorageWeakRef(out.untyped_storage())))
    y = model(torch.randn(3, 4))
    last = StorageWeakRef(y.untyped_storage())
    assert not last.expired()
    del y
    assert last.expired() and first[0].expired()
    recomputation.remove()


def test_the_model_still_tells_its_arguments() -> None:
    model, _ = made("bert")
    plain = inspect.signature(model.forward)
    with applied(model, Drawn("r")):
        assert inspect.signature(model.forward) == plain
    assert inspect.signature(model.forward) == plain


def test_without_gradients_nothing_is_remembered() -> None:
    model, batch = made("bert")
    drawn = Drawn("r")
    with applied(model, drawn), torch.no_grad():
        model(**batch)
    assert not drawn.log


def test_letters_and_tables_belong_together() -> None:
    with pytest.raises(SettingError, match="addmm:x"):
        BlockRecompute(modules=("a.0",), operators=("addmm:x",))
    with pytest.raises(SettingError, match="go together"):
        Plan(recompute="chosen")
    blocks = (BlockRecompute(modules=("a.0",), operators=("addmm:k",)),)
    with pytest.raises(SettingError, match="compiled blocks do not tell"):
        Plan(recompute="chosen", recompute_blocks=blocks, compile="blocks")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_learns_the_same(precision: Any) -> None:
    """Every loss of a job with dropout, and its weights at the end."""

    def job() -> Any:
        return text_job(model=classifier(hidden_dropout_prob=0.1, num_hidden_layers=3), data=texts(24), epochs=1)

    def run(**recompute: Any) -> tuple[list[float], list[torch.Tensor]]:
        plan = Plan(precision=precision, micro_batching="fixed", micro_batch=3, loader=INLINE, **recompute)
        run = Run(job(), plan)
        return [step.loss for step in run], [p.detach().clone() for p in run.model.parameters()]

    drawn = Drawn("krh", 3)
    model = job().model.train()
    casts = torch.autocast("cpu", dtype=torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()
    with applied(model, drawn), casts:
        model(**default_collate(texts(3)))
    losses, weights = run()
    again, others = run(recompute="chosen", recompute_blocks=drawn.plan())
    assert again == losses
    assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))
