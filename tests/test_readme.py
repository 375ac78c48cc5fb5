"""The README keeps what it promises to somebody who copies from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nearpeak.cli.main import VERBS
from nearpeak.tasks.text_classification.config import load_config

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_commands_exist() -> None:
    shell = "\n".join(blocks("sh"))
    verbs = set(re.findall(r"^nearpeak (\w+)", shell, flags=re.MULTILINE))
    targets = set(re.findall(r"^make (\w+)", shell, flags=re.MULTILINE))
    rules = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert verbs
    assert targets
    assert verbs <= set(VERBS)
    assert targets <= rules


def test_the_configuration_is_one(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    (tmp_path / "train.toml").write_text(text)
    for name in ("train.csv", "test.csv"):
        (tmp_path / name).write_text("text,label\na,b\n")
    config = load_config(tmp_path / "train.toml")
    assert (config.job.global_batch, config.job.length) == (32, {"epochs": 3.0})


@pytest.mark.parametrize("code", blocks("python"))
def test_python_compiles(code: str) -> None:
    compile(code, "README.md", "exec")


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    missing = [link for link in links if link != "docs/" and not (ROOT / link).exists()]
    assert not missing
