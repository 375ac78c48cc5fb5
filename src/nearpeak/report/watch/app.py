"""`nearpeak watch` on a terminal: keys in, lines out. What the lines say is computed by `screen`.

One widget draws all lines and redraws only those that changed: at one reading a second, that is what makes the view
cheap. Devices are read on a thread of their own, so that neither a driver nor a disk ever holds the view up.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.color import ColorSystem
from rich.segment import Segment
from rich.style import Style
from textual.app import App, ComposeResult
from textual.events import Key, Resize
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from nearpeak.errors import NearpeakError
from nearpeak.hardware.reading_store import ReadingWriter
from nearpeak.report.watch.lines import Line
from nearpeak.report.watch.processes_view import SORTS, process_rows
from nearpeak.report.watch.screen import ViewState, screen_lines
from nearpeak.report.watch.watcher import ReplayWatcher, Watcher

if TYPE_CHECKING:
    from nearpeak.hardware.live.sampler import Snapshot

__all__ = ["WatchApp"]

FASTEST_S, SLOWEST_S = 0.1, 60.0
MANY_LINES = 40
STYLES = {
    "": Style(),
    "dim": Style(dim=True),
    "bold": Style(bold=True),
    "title": Style(bold=True, underline=True),
    "ok": Style(color="green"),
    "warn": Style(color="yellow"),
    "bad": Style(color="red", bold=True),
    "chosen": Style(reverse=True),
}
PLAIN = {name: Style(bold=style.bold, dim=style.dim, reverse=style.reverse) for name, style in STYLES.items()}


def _ansi_of(style: Style) -> str:
    """The escape sequence that begins a style."""
    codes = style._make_ansi_codes(ColorSystem.STANDARD)
    return f"\x1b[{codes}m" if codes else ""


class LinesView(Widget):
    """Draws lines; each again only when it changed."""

    DEFAULT_CSS = "LinesView { width: 100%; height: 100%; }"

    def __init__(self, *, color: bool) -> None:
        super().__init__()
        self._styles = STYLES if color else PLAIN
        self._codes = {name: _ansi_of(style) for name, style in self._styles.items()}
        self._lines: list[Line] = []

    def show(self, lines: list[Line]) -> str:
        """Replace what is drawn. Returns what to write to the terminal, where only some lines changed.

        The toolkit would lay out and compose the whole screen for each of them, which costs several times more than
        everything else that a reading does.
        """
        before, self._lines = self._lines, lines
        if len(before) != len(lines) or not before:
            self.refresh()
            return ""
        changed = [y for y, (old, new) in enumerate(zip(before, lines, strict=True)) if old != new]
        if len(changed) > len(lines) // 2 and len(changed) > MANY_LINES:
            self.refresh()
            return ""
        return "".join(f"\x1b[{y + 1};1H{self._ansi(lines[y])}" for y in changed)

    def _ansi(self, line: Line) -> str:
        return "".join(f"{self._codes[style]}{text}\x1b[0m" if self._codes[style] else text for text, style in line)

    def render_lines(self, crop: Region) -> list[Strip]:
        """All lines of a part of the screen. Without the toolkit's cache, which does not know of what `show` wrote."""
        lines = [self._strip(y) for y in range(crop.y, crop.bottom)]
        return [line.crop(crop.x, crop.right) for line in lines]

    def _strip(self, y: int) -> Strip:
        line = self._lines[y] if y < len(self._lines) else ()
        return Strip([Segment(text, self._styles[style]) for text, style in line]).adjust_cell_length(self.size.width)


class WatchApp(App[int]):
    """The view. `watcher` is read on a thread; everything else happens on the app's own."""

    CSS = "Screen { background: ansi_default; color: ansi_default; overflow: hidden; }"
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, watcher: Watcher, *, interval_s: float, color: bool, output: Path | None = None) -> None:
        super().__init__(ansi_color=True)
        self._watcher = watcher
        replayed = watcher.path.name if isinstance(watcher, ReplayWatcher) else None
        self.state = ViewState(interval_s=interval_s, replay=replayed)
        self._view = LinesView(color=color)
        self._output = output
        self._writer: ReadingWriter | None = None
        self._lock = threading.Lock()
        """Around the writer and the watcher: keys and readings come on two threads."""
        self._stop, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._read, name="nearpeak-watch", daemon=True)
        self._message_until_s = 0.0
        # The app's own size is a guess until the terminal answers.
        self._width, self._height = shutil.get_terminal_size()
        self._asked_pid: int | None = None

    def compose(self) -> ComposeResult:
        """One widget."""
        yield self._view

    def on_mount(self) -> None:
        """The screen stands before the first driver is asked."""
        self._draw()
        self.call_after_refresh(self._thread.start)

    def on_resize(self, event: Resize) -> None:
        """Lay everything out anew."""
        self._width, self._height = event.size.width, event.size.height
        self._draw()

    def leave(self) -> None:
        """Stop reading, then the view."""
        self._stop.set()
        self._wake.set()
        self._stop_recording()
        self.exit(0)

    # -- reading, on its thread ----------------------------------------------------------------------------------------

    def _read(self) -> None:
        self._watcher.open()
        due_s = time.monotonic()
        while not self._stop.is_set():
            snapshot = self._tick()
            if snapshot is not None:
                self._hand_over()
            due_s = max(due_s + self.state.interval_s, time.monotonic())
            self._wake.wait(due_s - time.monotonic())
            self._wake.clear()
        self._watcher.close()

    def _tick(self) -> Snapshot | None:
        if self.state.replay and self.state.paused:
            return None
        with self._lock:
            snapshot = self._watcher.tick()
            if snapshot is not None and self._writer is not None:
                self._write(self._writer, snapshot)
        return snapshot

    def _write(self, writer: ReadingWriter, snapshot: Snapshot) -> None:
        for device in snapshot.devices:
            writer.add_device(device)
        for reading in (*snapshot.readings, snapshot.host):
            writer.add(reading)

    def _hand_over(self) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed() and not self._stop.is_set():
            loop.call_soon_threadsafe(self._show_reading)

    def _show_reading(self) -> None:
        if not self.state.paused:
            self._draw()

    # -- drawing -------------------------------------------------------------------------------------------------------

    def _draw(self) -> None:
        if self.state.message and time.monotonic() > self._message_until_s:
            self.state.message = ""
        self.state.findings, self.state.runs = self._watcher.findings, self._watcher.runs
        changes = self._view.show(screen_lines(self._watcher.history, self.state, self._width, self._height))
        if changes and self._driver is not None:
            self._driver.write(changes)
            self._driver.flush()

    def _tell(self, message: str) -> None:
        self.state.message, self._message_until_s = message, time.monotonic() + 5

    # -- keys ----------------------------------------------------------------------------------------------------------

    def on_key(self, event: Key) -> None:
        """Every key is ours."""
        event.stop()
        event.prevent_default()
        if self.state.asking is not None:
            self._answer(event.key == "y")
        elif self.state.typing:
            self._type(event)
        else:
            action = KEYS.get(event.key) or KEYS.get(event.character or "")
            if action is not None:
                action(self)
        if self.is_running:
            self._draw()

    def _type(self, event: Key) -> None:
        state = self.state
        if event.key in ("enter", "escape"):
            state.typing = False
            state.words = "" if event.key == "escape" else state.words
        elif event.key == "backspace":
            state.words = state.words[:-1]
        elif event.is_printable and event.character:
            state.words += event.character
        state.chosen = 0

    def change_sort(self) -> None:
        """The next order of processes."""
        self.state.sort = SORTS[(SORTS.index(self.state.sort) + 1) % len(SORTS)]

    def start_typing(self) -> None:
        """Words of the filter follow."""
        self.state.typing = True

    def change_pause(self) -> None:
        """Hold the picture, or let it go."""
        self.state.paused = not self.state.paused

    def change_help(self) -> None:
        """Show the keys, or what was before."""
        self.state.helping = not self.state.helping

    def choose(self, by: int) -> None:
        """Another process."""
        snapshot = self._watcher.history.latest
        rows = process_rows(snapshot, self.state.sort, self.state.words) if snapshot else []
        self.state.chosen = min(max(0, self.state.chosen + by), max(0, len(rows) - 1))

    def change_interval(self, factor: float) -> None:
        """Read more or less often."""
        self.state.interval_s = min(max(round(self.state.interval_s * factor, 3), FASTEST_S), SLOWEST_S)
        self._wake.set()

    def move_replay(self, readings: int) -> None:
        """Back or on in what is replayed."""
        if isinstance(self._watcher, ReplayWatcher):
            with self._lock:
                self._watcher.move(readings)
                self._watcher.tick()

    def ask_to_end(self) -> None:
        """Ask before the chosen process is ended."""
        snapshot = self._watcher.history.latest
        rows = process_rows(snapshot, self.state.sort, self.state.words) if snapshot else []
        if self.state.replay:
            self._tell("A replay has no processes to end.")
        elif self.state.chosen < len(rows):
            use = rows[self.state.chosen].use
            self._asked_pid = use.pid
            self.state.asking = f"End process {use.pid} ({use.name or 'unknown'}) with SIGTERM?"
        else:
            self._tell("No process is chosen.")

    def _answer(self, sure: bool) -> None:
        self.state.asking, pid, self._asked_pid = None, self._asked_pid, None
        if not sure or pid is None:
            return
        try:
            os.kill(pid, signal.SIGTERM)
        except OSError as error:
            self._tell(f"{pid}: {error.strerror}.")
        else:
            self._tell(f"Asked {pid} to end.")

    def change_recording(self) -> None:
        """Begin to record, or stop."""
        if self._writer is not None:
            folder = self.state.recording
            self._stop_recording()
            self._tell(f"Recorded to {folder}; `nearpeak watch --replay {folder}` shows it.")
            return
        folder = self._output or Path(time.strftime("nearpeak-watch-%Y%m%d-%H%M%S"))
        snapshot = self._watcher.history.latest
        try:
            with self._lock:
                self._writer = ReadingWriter(folder, snapshot.devices if snapshot else ())
        except (NearpeakError, OSError) as error:
            self._tell(f"Cannot record: {error}")
            return
        self.state.recording = str(folder)

    def _stop_recording(self) -> None:
        with self._lock:
            writer, self._writer, self.state.recording = self._writer, None, None
            if writer is not None:
                writer.close()


KEYS = {
    "q": WatchApp.leave,
    "ctrl+c": WatchApp.leave,
    "escape": WatchApp.leave,
    "s": WatchApp.change_sort,
    "f": WatchApp.start_typing,
    "/": WatchApp.start_typing,
    "p": WatchApp.change_pause,
    "space": WatchApp.change_pause,
    "?": WatchApp.change_help,
    "h": WatchApp.change_help,
    "up": lambda app: app.choose(-1),
    "down": lambda app: app.choose(1),
    "k": WatchApp.ask_to_end,
    "r": WatchApp.change_recording,
    "+": lambda app: app.change_interval(0.5),
    "-": lambda app: app.change_interval(2.0),
    "left": lambda app: app.move_replay(-10),
    "right": lambda app: app.move_replay(10),
}
