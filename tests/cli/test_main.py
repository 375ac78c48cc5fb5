from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from types import ModuleType
from typing import Any

import click
import pytest

from nearpeak import __version__
from nearpeak.cli import main as entry
from nearpeak.cli.group import cli
from nearpeak.cli.main import VERBS, help_text, main
from nearpeak.errors import DataError, SettingError
from nearpeak.report import terminal


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Registers a verb `try` that does what the test says."""

    def register(action: Any) -> None:
        module = ModuleType("nearpeak_test_verb")

        @click.command("try")
        @click.argument("words", nargs=-1)
        def command(words: tuple[str, ...]) -> Any:
            return action()

        module.command = command  # pyright: ignore[reportAttributeAccessIssue]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(VERBS, "try", (module.__name__, "A verb of the tests."))

    return register


def raising(error: BaseException) -> Any:
    def action() -> None:
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (DataError("data.csv, row 3: no text"), 1, "error: data.csv, row 3: no text\n"),
        (SettingError("steps=0: must be at least 1."), 2, "error: steps=0: must be at least 1.\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (click.Abort(), 130, "interrupted\n"),
        (
            ModuleNotFoundError("No module named 'transformers'", name="transformers"),
            1,
            "error: transformers is not installed. Get it with: pip install 'nearpeak[hf]'\n",
        ),
        (
            ModuleNotFoundError("No module named 'torch.x'", name="torch.x"),
            1,
            "error: torch is not installed. Get it with: pip install 'nearpeak[train]'\n",
        ),
    ],
)
def test_errors_become_one_line_and_an_exit_code(
    verb: Any, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, said: str
) -> None:
    verb(raising(error))
    assert main(["try"]) == code
    assert capsys.readouterr().err.lstrip("\n") == said


def test_verbose_shows_where_an_error_comes_from(verb: Any, capsys: pytest.CaptureFixture[str]) -> None:
    verb(raising(DataError("bad row")))
    assert main(["-v", "try"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("error", [ZeroDivisionError("ours"), ModuleNotFoundError("No module", name="attic")])
def test_a_bug_is_not_dressed_up(verb: Any, error: Exception) -> None:
    verb(raising(error))
    with pytest.raises(type(error)):
        main(["try"])


@pytest.mark.parametrize(("result", "code"), [(None, 0), (0, 0), (7, 7), ("text", 0)])
def test_a_verb_may_return_its_exit_code(verb: Any, result: Any, code: int) -> None:
    verb(lambda: result)
    assert main(["try"]) == code


def test_a_verb_may_exit(verb: Any) -> None:
    verb(lambda: click.get_current_context().exit(5))
    assert main(["try"]) == 5


@pytest.mark.parametrize(
    ("arguments", "verbosity"),
    [(["try"], 0), (["-q", "try"], -1), (["try", "-q"], -1), (["-vv", "try"], 2), (["try", "--verbose"], 1)],
)
def test_quiet_and_verbose_stand_on_either_side(verb: Any, arguments: list[str], verbosity: int) -> None:
    seen: list[int] = []
    verb(lambda: seen.append(terminal.verbosity()))
    assert main(arguments) == 0
    assert seen == [verbosity]


def test_what_follows_two_dashes_belongs_to_the_command(verb: Any) -> None:
    words: list[tuple[str, ...]] = []
    verb(lambda: words.append(click.get_current_context().params["words"]))
    assert main(["try", "--", "python", "x.py", "-v", "--no-color"]) == 0
    assert words == [("python", "x.py", "-v", "--no-color")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian"], "Did you mean train"),
        (["docter"], "Did you mean doctor"),
        (["xyzzy"], "No such command 'xyzzy'."),
        (["--nonsense"], "No such option"),
        (["completion", "tcsh"], "'tcsh' is not one of"),
        (["completion"], "Missing argument"),
    ],
)
def test_bad_usage_exits_2_and_helps(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_nothing_asked_shows_help_and_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert help_text() in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["-q", "--help"]])
def test_help_is_the_same_with_and_without_click(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main(arguments) == 0
    assert capsys.readouterr().out == help_text() + "\n"


def test_help_names_every_option_and_verb_in_eighty_columns() -> None:
    text = help_text()
    names = [name for parameter in cli.get_params(click.Context(cli)) for name in parameter.opts]
    assert [name for name in (*names, *VERBS) if name not in text] == []
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("arguments", [["--version"], ["-q", "--version"]])
def test_version(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"nearpeak {__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_the_shells_own(shell: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell, "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert (document["schema"], document["shell"]) == (1, shell)
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=document["script"], text=True, check=True)
    assert "_NEARPEAK_COMPLETE" in document["script"]


@pytest.mark.parametrize(
    ("typed", "expected"), [("nearpeak d", ["doctor", "demo"]), ("nearpeak doctor --", ["--json"])]
)
def test_completion_answers(typed: str, expected: list[str]) -> None:
    environment = {"_NEARPEAK_COMPLETE": "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    done = subprocess.run(
        [sys.executable, "-m", "nearpeak"], env=os.environ | environment, capture_output=True, text=True, check=True
    )
    offered = [line.partition(",")[2] for line in done.stdout.splitlines()]
    assert offered[: len(expected)] == expected


def test_completing_a_verb_imports_none() -> None:
    items = cli.shell_complete(click.Context(cli), "tr")
    assert [item.value for item in items] == ["train"]


def test_a_closed_pipe_ends_quietly() -> None:
    code = "from nearpeak.cli.main import main; raise SystemExit(main(['completion', 'bash']))"
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=30
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


INTERRUPTIBLE = """
import signal, sys, time, types, click
from nearpeak.cli.main import VERBS, main
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background has it ignored
command = click.Command("try", callback=lambda: (print("ready", flush=True), time.sleep(30)))
module = types.ModuleType("m")
module.command = command
sys.modules["m"] = module
VERBS["try"] = ("m", "")
sys.exit(main(["try"]))
"""


def test_ctrl_c_exits_130_without_a_traceback() -> None:
    child = subprocess.Popen([sys.executable, "-c", INTERRUPTIBLE], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=20)
    assert (child.returncode, said.strip()) == (130, b"interrupted")


def test_what_a_stream_cannot_show_is_no_crash() -> None:
    code = "from nearpeak.cli.main import main; print('≤') if main(['--version']) == 0 else None"
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "?"


def test_the_entry_point_is_the_module() -> None:
    done = subprocess.run([sys.executable, "-m", "nearpeak", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"nearpeak {__version__}\n"
    assert entry.main is main
