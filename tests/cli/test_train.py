"""`nearpeak train` as it is typed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nearpeak.cli.main import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "text_classification" / "config.toml"
FAST = ["--set", "job.epochs=1", "--set", "plan.micro_batching=partition", "--device", "cpu"]


def test_print_config_as_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(EXAMPLE), "--print-config", "--set", "job.global_batch=64", "--output", "there"]) == 0
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if "." in line}
    assert lines["job.global_batch"] == ["job.global_batch", "64", "command", "line"]
    assert lines["job.epochs"][-1] == "config.toml"
    assert lines["job.warmup"] == ["job.warmup", "0.06", "default"]
    assert main(["train", str(EXAMPLE), "--print-config", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["job.seed"] == {"value": 0, "from": "default"}
    assert found["model.from_scratch"] == {"value": "tiny", "from": "config.toml"}


def test_json_is_one_object_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(EXAMPLE), *FAST, "--output", str(tmp_path / "model"), "--json"]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert (found["schema"], found["steps"], len(found["losses"])) == (1, 9, 9)
    assert found["formula"] in shown.err
    assert "micro_batching=partition" in shown.err
    assert found["plan"]["micro_batching"] == "partition"
    assert set(found["metrics"]) == {"validation", "test"}
    assert found["output"] == str(tmp_path / "model")
    assert found["interrupted"] is None


def test_the_table_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(EXAMPLE), *FAST, "--output", str(tmp_path / "model")]) == 0
    shown = capsys.readouterr().out
    for text in ("9 of 9", "test accuracy", "Classes (test)", "billing", "samples/s"):
        assert text in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert main(["train", str(EXAMPLE), *FAST, "--output", str(tmp_path / "model")]) == 2
    assert "--force" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere.toml"], 2, "error: nowhere.toml: no such file"),
        ([str(EXAMPLE), "--set", "job.epoch=3"], 2, "Did you mean 'epochs'"),
        ([str(EXAMPLE), "--set", "data.label=topic"], 1, "has no column 'topic'"),
        ([], 2, "Missing argument 'CONFIG'"),
    ],
)
def test_errors_are_one_line_and_a_code(
    arguments: list[str], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *arguments, "--output", str(tmp_path / "model")]) == code
    shown = capsys.readouterr()
    assert message in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_finishes_the_step_saves_and_says_so(tmp_path: Path, number: signal.Signals) -> None:
    arguments = [
        "train",
        str(EXAMPLE),
        *FAST,
        "--set",
        "job.epochs=1000",
        "--output",
        str(tmp_path / "model"),
        "--json",
    ]
    command = [sys.executable, "-m", "nearpeak", *arguments]
    process = subprocess.Popen(
        [*command, "--set", "plan.loader.workers=1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if "saved in" in line:
            break
    time.sleep(0.2)
    os.killpg(process.pid, number)  # as a terminal or a job scheduler does: workers get it too
    out, err = process.communicate(timeout=60)
    assert process.returncode == (75 if number == signal.SIGUSR1 else 128 + number), err
    assert f"stopped by {'Ctrl-C' if number == signal.SIGINT else number.name} after" in err
    assert "goes on from here" in err and (tmp_path / "model.state").exists()
    assert json.loads(out)["interrupted"] == number
    assert (tmp_path / "model" / "model.safetensors").exists()
    assert (tmp_path / "model" / "interrupted" / "model.safetensors").exists()


def _model_without_dropout(folder: Path) -> Path:
    """Dropout draws other numbers on other ranks; without it they must learn the same."""
    import csv

    from transformers import BertConfig

    from nearpeak.tasks.text_classification.model import train_tokenizer

    with (EXAMPLE.parent / "tickets.csv").open(encoding="utf-8") as file:
        tokenizer = train_tokenizer([row["text"] for row in csv.DictReader(file)], 400)
    tokenizer.save_pretrained(folder)
    BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    ).save_pretrained(folder)  # fmt: skip
    return folder


@pytest.mark.slow
def test_two_ranks_learn_what_one_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under torchrun only the first rank writes and prints; losses and metrics are those of one process."""
    model = _model_without_dropout(tmp_path / "start")
    arguments = [*FAST, "--set", f"model.from_config={model}", "--set", "model.from_scratch=", "--json"]
    assert main(["train", str(EXAMPLE), *arguments, "--output", str(tmp_path / "one")]) == 0
    one = json.loads(capsys.readouterr().out)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "nearpeak"]
    process = subprocess.run(
        [*launcher, "train", str(EXAMPLE), *arguments, "--output", str(tmp_path / "two")],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    two = json.loads(process.stdout)
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-5)
    assert two["metrics"]["test"]["loss"] == pytest.approx(one["metrics"]["test"]["loss"], rel=1e-4)
    assert (two["steps"], two["tokens"]) == (one["steps"], one["tokens"])
    assert (tmp_path / "two" / "model.safetensors").exists()
    assert process.stderr.count("saved in") == 1
