"""`nearpeak run`: the command's own life is passed through; what was applied is told afterwards."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from nearpeak.recording import Recording

NEARPEAK = [sys.executable, "-m", "nearpeak", "run"]
WAITING = """
import signal, sys, time
def leave(number, frame):
    print("got", signal.Signals(number).name, flush=True)
    sys.exit(7)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, leave)
print("ready", flush=True)
time.sleep(30)
"""
# A stand-in for transformers, so that what is told can be tested without it: 5.x by name, but with nothing to regroup.
OLD_TRANSFORMERS = {
    "__init__.py": "__version__ = '4.40.0'",
    "trainer.py": "class Trainer:\n    def train(self):\n        return 'trained'",
}


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*NEARPEAK, *arguments], capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload]


def test_passes_output_and_exit_code_through() -> None:
    done = run("--", sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")


def test_options_behind_the_command_are_the_commands_own() -> None:
    done = run(sys.executable, "-c", "import sys; print(sys.argv[1:])", "--json", "--apply", "none", "--help")
    assert done.stdout == "['--json', '--apply', 'none', '--help']\n"


def test_a_signal_death_is_told_as_shells_do() -> None:
    assert run("--", "sh", "-c", "kill -KILL $$").returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize(("command", "code"), [("no-such-command-here", 127), ("/", 126)])
def test_a_command_that_cannot_be_run(command: str, code: int) -> None:
    done = run("--", command)
    assert done.returncode == code
    assert done.stderr.startswith(f"error: {command}:")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_reach_the_command(number: signal.Signals) -> None:
    # A session of its own: no terminal would hand the signal to both.
    process = subprocess.Popen(
        [*NEARPEAK, "--", sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.stdout.read() == f"got {number.name}\n"
    assert process.wait(10) == 7
    process.stdout.close()


def test_bad_usage() -> None:
    assert run().returncode == 2
    assert run("--apply", "everything", "--", "true").returncode == 2
    done = run("--precision", "bf16", "--", "true")
    assert done.returncode == 2
    assert "needs --apply safe" in done.stderr


def test_json_alone_stands_on_stdout() -> None:
    done = run("--apply", "safe", "--json", "--", sys.executable, "-c", "print('theirs')")
    result = json.loads(done.stdout)
    assert (result["schema"], result["exit_code"], result["apply"], result["processes"]) == (1, 0, "safe", [])
    assert "theirs" in done.stderr
    assert "nothing applied" in done.stderr


def test_output_is_never_overwritten_unasked(tmp_path: Path) -> None:
    output = tmp_path / "run"
    assert run("--apply", "safe", "--output", str(output), "--", "true").stdout == ""
    assert json.loads((output / "result.json").read_text())["command"] == ["true"]
    again = run("--output", str(output), "--", "true")
    assert again.returncode == 2
    assert "--force" in again.stderr
    assert run("--output", str(output), "--force", "--", "false").returncode == 1
    assert json.loads((output / "result.json").read_text())["exit_code"] == 1


def test_a_command_that_trains_nothing_leaves_nothing(tmp_path: Path) -> None:
    done = run("--apply", "safe", "--", sys.executable, "-c", "print('theirs')", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "theirs\n")
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("--output", str(tmp_path / "file" / "run"), "--", "true")
    assert done.returncode == 2
    assert "cannot hold a recording" in done.stderr


def test_a_version_we_do_not_know_trains_as_it_would(tmp_path: Path) -> None:
    package = tmp_path / "transformers"
    package.mkdir()
    for name, text in OLD_TRANSFORMERS.items():
        (package / name).write_text(text)
    code = "from transformers.trainer import Trainer; print(Trainer().train())"
    done = run("--apply", "safe", "--", sys.executable, "-c", code, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "kept the script's own way: transformers 4.40.0" in done.stderr
    assert "Traceback" not in done.stderr


TRAINING = """
import sys, time, torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(sys.argv[1])):
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.01)
    print("step", flush=True)
sys.exit(3)
"""


def test_a_training_is_recorded_and_judged(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = run("--live", "--json", "--output", "kept", "--", sys.executable, "-c", TRAINING, "60", cwd=tmp_path)
    assert done.returncode == 3
    result = json.loads(done.stdout)
    assert (result["exit_code"], result["steps"] > 10) == (3, True)
    assert result["recording"] == str(tmp_path / "kept")
    assert json.loads((tmp_path / "kept" / "result.json").read_text())["findings"] == result["findings"]
    assert "nearpeak: step 60" in done.stderr
    recording = Recording(tmp_path / "kept")
    assert recording.ending is not None
    assert (recording.ending.outcome, recording.ending.exit_code) == ("failed", 3)
    assert len(recording.steps()) == 60
    assert [reading.device for reading in recording.readings]
    runs = subprocess.run([*NEARPEAK[:-1], "runs", ".", "--json"], capture_output=True, text=True, cwd=tmp_path)
    (listed,) = json.loads(runs.stdout)["runs"]
    assert (listed["steps"], listed["outcome"], listed["exit_code"], listed["folder"]) == (60, "failed", 3, "kept")


@pytest.mark.parametrize("victim", ["nearpeak", "command"])
def test_a_kill_leaves_a_recording(tmp_path: Path, victim: str) -> None:
    pytest.importorskip("torch")
    process = subprocess.Popen(
        [*NEARPEAK, "--", sys.executable, "-c", TRAINING, "100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    for _ in range(60):
        process.stdout.readline()
    (child,) = psutil.Process(process.pid).children()
    child.suspend()  # what it has written so far is what must be there
    (process if victim == "nearpeak" else child).kill()
    assert process.wait(60) == (-signal.SIGKILL if victim == "nearpeak" else 128 + signal.SIGKILL)
    with contextlib.suppress(psutil.NoSuchProcess):
        child.kill()
    process.stdout.close()
    (folder,) = (tmp_path / "nearpeak-runs").iterdir()
    assert Recording(folder).steps()
    assert (Recording(folder).ending is None) == (victim == "nearpeak")
    assert subprocess.run([*NEARPEAK[:-1], "report", str(folder)], capture_output=True, cwd=tmp_path).returncode == 0


def test_runs_of_no_folder(tmp_path: Path) -> None:
    done = subprocess.run([*NEARPEAK[:-1], "runs"], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("nearpeak run -- COMMAND")) == (1, 1)
