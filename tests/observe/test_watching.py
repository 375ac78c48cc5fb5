"""The probe as a line in the user's code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from watched import run_script

import nearpeak
from nearpeak.errors import SettingError
from nearpeak.observe.probe import current
from nearpeak.recording import Recording

torch = pytest.importorskip("torch")


def train(batches: object) -> None:
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:  # type: ignore[attr-defined]
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_block_is_recorded_and_leaves_torch_as_it_was(tmp_path: Path) -> None:
    before = {name: getattr(torch.Tensor, name) for name in ("item", "__bool__", "tolist")}
    functions = torch.save, torch.autograd.backward, torch.nn.Module.eval, torch.nn.Linear.__call__, list(sys.meta_path)
    with nearpeak.watching(tmp_path / "run") as folder:
        train(torch.randn(6, 3, 4))
        assert current() is not None
        assert torch.save is not functions[0]
    after = torch.save, torch.autograd.backward, torch.nn.Module.eval, torch.nn.Linear.__call__, list(sys.meta_path)
    assert after == functions
    assert {name: getattr(torch.Tensor, name) for name in before} == before
    assert current() is None
    recording = Recording(folder)
    assert [step.samples for step in recording.steps()] == [None, *[3] * 5]  # the model is met in the first update
    assert recording.ending is not None and recording.ending.outcome == "finished"


def test_blocks_one_after_another_and_inside_each_other(tmp_path: Path) -> None:
    for name in ("first", "second"):
        with nearpeak.watching(tmp_path / name) as outer, nearpeak.watching(tmp_path / "inner") as inner:
            train(torch.randn(4, 3, 4))
        assert outer == inner
        assert len(Recording(tmp_path / name).steps()) == 4
    assert not (tmp_path / "inner").exists()


def test_a_block_that_fails_says_so(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="shapes"), nearpeak.watching(tmp_path / "run"):
        train([*torch.randn(4, 3, 4), torch.randn(3, 5)])
    ending = Recording(tmp_path / "run").ending
    assert ending is not None and ending.outcome == "failed"
    assert current() is None


def test_a_recording_is_never_replaced_unasked(tmp_path: Path) -> None:
    with nearpeak.watching(tmp_path):
        pass
    with pytest.raises(SettingError, match="force"), nearpeak.watching(tmp_path):
        pass
    assert current() is None
    with nearpeak.watching(tmp_path, force=True):
        pass


def test_ranks_must_share_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SettingError, match="folder"), nearpeak.watching():
        pass


@pytest.mark.parametrize("loader", [False, True], ids=["any source", "torch's loader"])
def test_batches_alone_are_enough(tmp_path: Path, loader: bool) -> None:
    data = torch.randn(32, 4)
    source = torch.utils.data.DataLoader(data, batch_size=4) if loader else iter(data.reshape(8, 4, 4))
    train(nearpeak.watched(source, tmp_path / "run"))
    assert current() is None
    steps = Recording(tmp_path / "run").steps()
    assert [step.samples for step in steps] == [4] * 8
    assert all(step.input_ms for step in steps)
    assert all((step.fetch_ms is not None) == loader for step in steps)


def test_under_nearpeak_run_the_recording_is_its_own(tmp_path: Path) -> None:
    text = """
    import nearpeak
    with nearpeak.watching("other") as folder:
        train(3)
    print(folder)
    """
    done = run_script(tmp_path, text)
    assert done.stdout.strip() == str(tmp_path / "run"), done.stderr
    assert not (tmp_path / "other").exists()
    assert len(Recording(tmp_path / "run").steps()) == 3


def test_the_callback_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from nearpeak.integrations.watch_transformers import WatchCallback

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=50, **sizes))
    rows = [{"input_ids": [1] * 8, "attention_mask": [1] * 8, "labels": 0}] * 16
    arguments = transformers.TrainingArguments(
        str(tmp_path / "out"), max_steps=5, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no"
    )
    callback = WatchCallback(tmp_path / "run")
    transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[callback]).train()
    recording = Recording(tmp_path / "run")
    assert len(recording.steps()) == 5
    facts = json.loads(recording.processes[0].facts)
    assert (facts["framework"], facts["expected_steps"]) == ("transformers", 5)
    assert recording.ending is not None


LIGHTNING = """
    import lightning
    from nearpeak.integrations.watch_lightning import WatchCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = make()[0]
        def training_step(self, batch, index):
            return nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        def validation_step(self, batch, index):
            self.log("loss", nn.functional.cross_entropy(self.model(batch[0]), batch[1]))
        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    data = make()[2]
    settings = dict(max_epochs=2, accumulate_grad_batches=2, accelerator="cpu", logger=False)
    settings |= dict(enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0)
    trainer = lightning.Trainer(**settings, callbacks=CALLBACKS)
    trainer.fit(Module(), DataLoader(data, batch_size=16), DataLoader(data, batch_size=64))
"""


@pytest.mark.parametrize("watched", [True, False], ids=["nearpeak run", "callback"])
def test_lightning(tmp_path: Path, watched: bool) -> None:
    pytest.importorskip("lightning")
    callbacks = "[]" if watched else 'WatchCallback("run")'
    done = run_script(tmp_path, LIGHTNING.replace("CALLBACKS", callbacks), watched=watched)
    assert done.returncode == 0, done.stderr
    recording = Recording(tmp_path / "run")
    steps = recording.steps()
    assert [(step.samples, step.micro_batches) for step in steps] == [(32, 2)] * 16
    for step in steps[5:]:  # the module that Lightning calls is found within a few steps
        spent = {name: getattr(step, f"{name}_ms") for name in ("input", "forward", "backward", "optimizer")}
        assert min(spent.values()) > 0
    assert steps[8].evaluation_ms and steps[8].checkpoint_ms
    facts = json.loads(recording.processes[0].facts)
    assert (facts["framework"], facts["accumulation"], facts["expected_steps"]) == ("lightning", 2, 16)
    kinds = [event.kind for event in recording.events]
    assert (kinds.count("evaluation"), kinds.count("checkpoint")) == (2, 2)
