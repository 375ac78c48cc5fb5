"""`nearpeak watch` on a real terminal: tmux types the keys and reads the screen."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

STUB = Path(__file__).parents[1] / "hardware" / "stub"
sys.path.insert(0, str(STUB))
from stub_nvml import StubDevice, build, describe, environment, geforce, h100, has_compiler  # noqa: E402

pytest.importorskip("textual")
needs_stub = pytest.mark.skipif(not has_compiler(), reason="the stub driver needs gcc on Linux")
needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
PATIENCE_S = 20.0


class Terminal:
    """One program in tmux."""

    def __init__(self, folder: Path, variables: dict[str, str], *arguments: str, width: int = 100, height: int = 30):
        self._socket = f"nearpeak-{os.getpid()}-{time.monotonic_ns()}"
        self._exit = folder / "exit-code"
        names = ("LD_LIBRARY_PATH", "STUB_NVML", "PYTHONPATH", "NO_COLOR", "PATH")
        exports = " ".join(f"{name}='{variables[name]}'" for name in names if name in variables)
        watch = f"env -u COLUMNS -u LINES {exports} {sys.executable} -m nearpeak watch {' '.join(arguments)}"
        size = ("-x", str(width), "-y", str(height))
        self._tmux("new-session", "-d", "-c", str(folder), *size, f"{watch}; echo $? > {self._exit}; sleep 60")

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-L", self._socket, "-f", "/dev/null", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def screen(self, *, colors: bool = False) -> str:
        return self._tmux("capture-pane", "-p", *(["-e"] if colors else []))

    def press(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", text)

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def until(self, told: Callable[[str], bool]) -> str:
        """The screen, once it is as it should be."""
        deadline = time.monotonic() + PATIENCE_S
        while not told(screen := self.screen()):
            assert time.monotonic() < deadline, screen
            time.sleep(0.05)
        return screen

    def shows(self, words: str) -> str:
        return self.until(lambda screen: words in screen)

    def exit_code(self) -> int:
        deadline = time.monotonic() + PATIENCE_S
        while not self._exit.exists() or not self._exit.read_text():
            assert time.monotonic() < deadline, self.screen()
            time.sleep(0.05)
        return int(self._exit.read_text())

    def close(self) -> None:
        self._tmux("kill-server")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("library"))


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands on the stub's devices."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)  # victim"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def open_terminal(tmp_path: Path, library: Path) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(devices: list[StubDevice], *arguments: str, **how: object) -> Terminal:
        variables = environment(library, describe(tmp_path / "devices.txt", devices))
        variables |= how.pop("variables", {})  # type: ignore[call-overload]
        opened.append(Terminal(tmp_path, variables, *arguments, **how))  # type: ignore[arg-type]
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


@needs_stub
@needs_tmux
def test_keys_change_what_is_shown(open_terminal: Callable[..., Terminal], victim: subprocess.Popen[bytes]) -> None:
    pid = victim.pid
    terminal = open_terminal([h100(0, pids=(os.getpid(),)), geforce(1, pid=pid)], "--interval", "0.2")
    screen = terminal.shows("SM 88%")  # counters need two readings
    assert "H100 80GB HBM3" in screen and "RTX 4090" in screen and "61°" in screen
    terminal.shows(f"{pid} 1")
    terminal.press("s")
    terminal.shows("s sort:busy")
    terminal.press("?")
    terminal.shows("sort processes: by memory, busy, cpu, pid")
    terminal.press("?")
    terminal.press("f")
    terminal.type("victim")
    terminal.until(lambda s: "show processes with: victim" in s and f"{os.getpid()} 0" not in s)
    terminal.press("Enter")
    terminal.shows("f filter:victim")
    terminal.press("p")
    terminal.shows("paused")
    terminal.press("p")
    terminal.until(lambda s: "paused" not in s)
    terminal.press("+")
    terminal.shows("0.1 s")
    terminal.press("q")
    assert terminal.exit_code() == 0


@needs_stub
@needs_tmux
def test_ending_a_process_asks_first(open_terminal: Callable[..., Terminal], victim: subprocess.Popen[bytes]) -> None:
    terminal = open_terminal([h100(0, pids=(victim.pid,))], "--interval", "0.2")
    terminal.shows(f"{victim.pid} 0")
    terminal.press("k")
    terminal.shows(f"End process {victim.pid}")
    terminal.press("n")
    terminal.shows("q leave")
    assert victim.poll() is None
    terminal.press("k")
    terminal.shows("y/n")
    terminal.press("y")
    terminal.shows(f"Asked {victim.pid} to end")
    assert victim.wait(10) == -signal.SIGTERM
    terminal.press("q")
    assert terminal.exit_code() == 0


@needs_stub
@needs_tmux
def test_a_recording_is_made_and_shown_again(open_terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    terminal = open_terminal([h100(0)], "--interval", "0.1", "--output", "kept")
    terminal.shows("SM 88%")
    terminal.press("r")
    terminal.shows("recording to kept")
    time.sleep(1.0)
    terminal.press("r")
    terminal.shows("Recorded to kept")
    terminal.press("q")
    assert terminal.exit_code() == 0
    command = [sys.executable, "-m", "nearpeak", "watch", "--replay", str(tmp_path / "kept"), "--once", "--json"]
    document = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    (device,) = document["devices"]
    assert device["name"] == "NVIDIA H100 80GB HBM3" and device["reading"]["sm_busy_percent"] == 88.12
    again = open_terminal([], "--replay", "kept", "--interval", "0.1")
    again.until(lambda screen: "SM 88%" in screen and "kept" in screen.splitlines()[0])
    again.press("Left")
    again.press("k")
    again.shows("A replay has no processes to end")
    again.press("q")


@needs_stub
@needs_tmux
def test_it_fits_forty_columns_and_follows_the_window(open_terminal: Callable[..., Terminal]) -> None:
    terminal = open_terminal([h100(0), h100(1)], "--interval", "0.2", width=40, height=12)
    screen = terminal.shows("SM 88%")
    assert max(map(len, screen.splitlines())) <= 40 and "1 H100" in screen and "431W" in screen
    terminal.resize(120, 30)
    terminal.shows("tensor 47%")
    terminal.resize(60, 8)
    terminal.until(lambda s: "tensor" not in s and "88%" in s)
    terminal.press("q")
    assert terminal.exit_code() == 0


@needs_stub
@needs_tmux
def test_without_colour_there_is_none(open_terminal: Callable[..., Terminal]) -> None:
    plain = open_terminal([h100(0)], "--no-color", "--interval", "0.2")
    plain.shows("SM 88%")
    colors = [code for code in plain.screen(colors=True).split("\x1b[")[1:] if code[:2] in ("31", "32", "33")]
    assert not colors
    colorful = open_terminal([h100(0)], "--interval", "0.2")
    colorful.shows("SM 88%")
    assert "\x1b[32m" in colorful.screen(colors=True)


@needs_stub
@needs_tmux
def test_a_driver_that_hangs_does_not_hold_the_view(open_terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    hung = h100(0)
    hung.hang = ("power", tmp_path / "hang")
    terminal = open_terminal([hung, h100(1)], "--interval", "0.2")
    terminal.shows("0 H100")
    (tmp_path / "hang").touch()
    terminal.shows("driver hangs")
    terminal.press("?")
    terminal.shows("this help")
    terminal.press("q")
    assert terminal.exit_code() == 0


@needs_tmux
def test_without_a_device_the_host_is_shown(open_terminal: Callable[..., Terminal]) -> None:
    if not has_compiler():
        pytest.skip("the stub driver needs gcc on Linux")
    terminal = open_terminal([], "--interval", "0.2")
    screen = terminal.shows("No GPU was found")
    assert "host" in screen and "mem" in screen
    terminal.press("q")
    assert terminal.exit_code() == 0


def run(*arguments: str, variables: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nearpeak", "watch", *arguments]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)


@needs_stub
def test_once_prints_and_leaves(library: Path, tmp_path: Path) -> None:
    variables = environment(library, describe(tmp_path / "d.txt", [h100(0)]))
    done = run("--once", variables=variables)
    assert done.returncode == 0 and not done.stderr
    assert "SM 88%" in done.stdout and max(map(len, done.stdout.splitlines())) <= 80
    empty = run("--once", variables=environment(library, describe(tmp_path / "none.txt", [])))
    assert empty.returncode == 0 and "No GPU was found" in empty.stdout and "host" in empty.stdout


def test_what_cannot_be_drawn_or_read_is_said(tmp_path: Path) -> None:
    done = run()
    assert done.returncode == 2 and "--once" in done.stderr and "Traceback" not in done.stderr
    (tmp_path / "log.csv").write_text("nothing of the kind\n")
    broken = run("--replay", str(tmp_path / "log.csv"), "--once")
    assert broken.returncode == 1 and broken.stderr.startswith("error: ") and "Traceback" not in broken.stderr
