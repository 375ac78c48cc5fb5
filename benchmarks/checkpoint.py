"""What saving costs a training: its stall, the time until the state is durable, memory, and what it slows beside it.

    python benchmarks/checkpoint.py
    python benchmarks/checkpoint.py --quick

About 0.9 GB of state: a transformer of 75 million parameters with AdamW. All ways of saving take turns, so that what
disturbs the machine disturbs them alike; written data is synced away between turns. Two situations:

    beside a training   begin a save after an update; forward and backward of a small window; whatever has to be waited
                        for; the next update. The stall is the time in begin and in waiting.
    at once             begin, wait until the weights may change, wait until the state is durable, nothing in between:
                        an exit, or steps so short that nothing can hide behind them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from _table import Target, finish, options, print_table
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from nearpeak.train.durable import CHUNK_BYTES, size_text
from nearpeak.train.saver import Saver
from nearpeak.train.storage import CheckpointFolder, Position

VOCABULARY, WIDTH, LAYERS = 24_000, 768, 8
SAMPLES, TOKENS = 4, 64
STEPS_BESIDE = 3

warnings.filterwarnings("ignore", module=r"torch\.")  # of torch's checkpointing about running on one process


class Training:
    """The model, its optimizer, and one window of data."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, batch_first=True)
        self.model = nn.ModuleDict(
            {
                "embedding": nn.Embedding(VOCABULARY, WIDTH),
                "layers": nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False),
            }
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        self.tokens = torch.randint(VOCABULARY, (SAMPLES, TOKENS))
        self.compute()
        self.update()

    def compute(self) -> None:
        """Forward and backward."""
        self.model["layers"](self.model["embedding"](self.tokens)).square().mean().backward()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    @property
    def bytes(self) -> int:
        moments = [value for state in self.optimizer.state.values() for value in state.values()]
        return sum(tensor.nbytes for tensor in [*self.model.state_dict().values(), *moments])


# -- ways of saving ----------------------------------------------------------------------------------------------------


class TorchSave:
    """One file, in place, with an fsync for the time until durable."""

    def begin(self, training: Training, folder: Path) -> None:
        self._file = folder / "state.pt"
        torch.save(training.state(), self._file)

    def wait_staged(self) -> None: ...

    def wait_durable(self) -> None:
        with open(self._file, "rb") as file:
            os.fsync(file.fileno())

    def close(self) -> None: ...


class DcpSave(TorchSave):
    """torch.distributed.checkpoint, which syncs its files."""

    def begin(self, training: Training, folder: Path) -> None:
        dcp.save(training.state(), checkpoint_id=folder / "dcp", no_dist=True)

    def wait_durable(self) -> None: ...


class DcpAsync(TorchSave):
    """Its asynchronous save as it is by default: the copy is made before it returns."""

    def begin(self, training: Training, folder: Path) -> None:
        self._saving: Any = dcp.async_save(training.state(), checkpoint_id=folder / "dcp", no_dist=True)

    def wait_durable(self) -> None:
        self._saving.result()


class DcpStager(TorchSave):
    """Its asynchronous save at its best: memory kept from save to save, the copy awaited before the update."""

    def __init__(self) -> None:
        self._stager = DefaultStager(StagingOptions(False, False, True, False))

    def begin(self, training: Training, folder: Path) -> None:
        self._saving: Any = dcp.async_save(
            training.state(), checkpoint_id=folder / "dcp", no_dist=True, async_stager=self._stager
        )

    def wait_staged(self) -> None:
        self._saving.staging_completion.result()

    def wait_durable(self) -> None:
        self._saving.upload_completion.result()

    def close(self) -> None:
        self._stager.close()


class Nearpeak(TorchSave):
    """This library, as `Run` uses it."""

    def __init__(self) -> None:
        self._saver = Saver(CheckpointFolder("."), keep=2)

    def begin(self, training: Training, folder: Path) -> None:
        self._saver.folder = CheckpointFolder(folder)
        parameters = dict(training.model.named_parameters())
        steady = {"parameters": parameters, "optimizer": training.optimizer.state_dict()}
        position = Position(step=1, cursor=SAMPLES, global_batch=SAMPLES)
        self._saver.begin(position, steady, {"buffers": dict(training.model.named_buffers())})

    def wait_staged(self) -> None:
        self._saver.wait_staged()

    def wait_durable(self) -> None:
        self._saver.wait_durable()

    def close(self) -> None:
        self._saver.close()


WAYS: dict[str, Callable[[], Any]] = {
    "torch.save": TorchSave,
    "dcp.save": DcpSave,
    "dcp.async_save": DcpAsync,
    "dcp.async_save, DefaultStager": DcpStager,
    "nearpeak": Nearpeak,
}
OTHERS = [name for name in WAYS if name != "nearpeak"]


# -- measuring ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def fresh_folder(root: Path) -> Iterator[Path]:
    """An empty folder and a disk that owes nothing, before and after."""
    os.sync()
    folder = Path(tempfile.mkdtemp(dir=root))
    yield folder
    shutil.rmtree(folder)
    os.sync()


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def beside_training(way: Any, training: Training, root: Path) -> dict[str, float]:
    """Stall, time until durable and time of some steps, with a save begun before the first of them."""
    with fresh_folder(root) as folder:
        training.compute()
        training.update()
        start = time.perf_counter()
        stall_s = seconds(lambda: way.begin(training, folder))
        training.compute()
        stall_s += seconds(way.wait_staged)
        training.update()
        _steps(training, STEPS_BESIDE - 1)
        loop_s = time.perf_counter() - start
        way.wait_durable()
    return {"stall_s": stall_s, "loop_s": loop_s}


def _steps(training: Training, count: int) -> None:
    for _ in range(count):
        training.compute()
        training.update()


def at_once(way: Any, training: Training, root: Path) -> dict[str, float]:
    """Stall and time until durable with nothing beside it."""
    with fresh_folder(root) as folder:
        start = time.perf_counter()
        way.begin(training, folder)
        way.wait_staged()
        stall_s = time.perf_counter() - start
        way.wait_durable()
        return {"stall_s": stall_s, "durable_s": time.perf_counter() - start}


def plain_write(content: memoryview, root: Path, flags: int = 0) -> float:
    """The same bytes to one file, and fsync: what durability costs at least."""
    with fresh_folder(root) as folder:
        start = time.perf_counter()
        descriptor = os.open(folder / "plain", os.O_WRONLY | os.O_CREAT | flags)
        written = 0
        while written < len(content):
            written += os.write(descriptor, content[written : written + CHUNK_BYTES])
        os.fsync(descriptor)
        os.close(descriptor)
        return time.perf_counter() - start


class PeakMemory:
    """The most anonymous memory the process had, sampled; the page cache does not count."""

    def __enter__(self) -> PeakMemory:
        self._before, self._stop = _anonymous_bytes(), threading.Event()
        self._peak = self._before
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            self._peak = max(self._peak, _anonymous_bytes())

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def more_bytes(self) -> int:
        return self._peak - self._before


def _anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon", "RssShmem")))


def warm_up(training: Training, root: Path) -> tuple[dict[str, Any], dict[str, int], dict[str, float]]:
    """The first save of each way: takes its memory, and is measured apart from the others."""
    ways, memory, first = {}, {}, {}
    for name, make in WAYS.items():
        with PeakMemory() as peak:
            ways[name] = make()
            first[name] = at_once(ways[name], training, root)["stall_s"]
        memory[name] = peak.more_bytes
    return ways, memory, first


def measure(training: Training, root: Path, quick: bool) -> dict[str, Any]:
    """All figures, turn by turn."""
    ways, memory, first = warm_up(training, root)
    content = _page_aligned(training.bytes)
    beside: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    alone: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    plain: dict[str, list[float]] = {"buffered": [], "direct": []}
    unsaved: list[float] = []
    for _ in range(1 if quick else 5):
        unsaved.append(seconds(lambda: _steps(training, STEPS_BESIDE)))
        for name, way in ways.items():
            beside[name].append(beside_training(way, training, root))
            print(f"   {name}: stall {beside[name][-1]['stall_s'] * 1e3:.0f} ms beside a training", flush=True)
    for _ in range(2 if quick else 7):
        for name, way in ways.items():
            alone[name].append(at_once(way, training, root))
        plain["buffered"].append(plain_write(content, root))
        with contextlib.suppress(OSError):  # a file system without direct writes
            plain["direct"].append(plain_write(content, root, getattr(os, "O_DIRECT", 0)))
    for way in ways.values():
        way.close()
    return {
        "state_bytes": training.bytes, "beside": beside, "at_once": alone, "plain_s": plain, "unsaved_s": unsaved,
        "more_memory_bytes": memory, "first_stall_s": first,
    }  # fmt: skip


def _page_aligned(size: int) -> memoryview:
    import mmap

    memory = mmap.mmap(-1, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
    memory.write(os.urandom(2**20) * (size // 2**20))
    return memoryview(memory)


# -- reporting ---------------------------------------------------------------------------------------------------------


def middle(figures: dict[str, Any], situation: str, name: str, figure: str) -> float:
    return median(turn[figure] for turn in figures[situation][name])


def report(figures: dict[str, Any]) -> list[Target]:
    unsaved_s = median(figures["unsaved_s"])
    rows = []
    for name in WAYS:
        slowed_s = middle(figures, "beside", name, "loop_s") - unsaved_s
        rows.append(
            [
                name,
                f"{middle(figures, 'beside', name, 'stall_s') * 1e3:.1f}",
                f"{slowed_s:+.2f}",
                f"{middle(figures, 'at_once', name, 'stall_s') * 1e3:.0f}",
                f"{figures['first_stall_s'][name] * 1e3:.0f}",
                f"{middle(figures, 'at_once', name, 'durable_s'):.2f}",
                f"{figures['more_memory_bytes'][name] / figures['state_bytes']:.2f}",
            ]
        )
    for kind, turns in figures["plain_s"].items():
        if turns:
            rows.append([f"plain write + fsync, {kind}", "", "", "", "", f"{median(turns):.2f}", ""])
    columns = ["", "stall ms", "3 steps s", "at once ms", "first ms", "durable s", "memory ×"]
    size, step_s = size_text(figures["state_bytes"]), unsaved_s / STEPS_BESIDE
    print_table(f"Saving {size} of state; a step without a save takes {step_s:.2f} s", columns, rows)
    print(
        "stall ms: what the loop waits for, beside a training.  3 steps s: how much longer three steps take with a\n"
        "save, stall included.  at once ms: stall with nothing to hide behind; first ms: the same of the very first\n"
        "save.  durable s: until the state is on the disk, nothing beside it.  memory ×: more memory, in states."
    )
    return targets(figures)


def targets(figures: dict[str, Any]) -> list[Target]:
    ours = middle(figures, "beside", "nearpeak", "stall_s")
    best = min(middle(figures, "beside", name, "stall_s") for name in OTHERS)
    whole = middle(figures, "beside", "torch.save", "stall_s")
    durable = median(
        turn["durable_s"] / plain
        for turn, plain in zip(figures["at_once"]["nearpeak"], figures["plain_s"]["buffered"], strict=True)
    )
    return [
        Target("stall as a share of torch.save's", ours / whole, 0.05, at_most=True),
        Target("stall against the best of the others", ours / best, 1.0, at_most=True),
        Target("time to durable against plain write + fsync", durable, 1.3, at_most=True),
    ]


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--folder", type=Path, help="where to write; a folder of temporary files if left out")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="nearpeak-checkpoint-") as root:
        figures = measure(Training(), Path(root), arguments.quick)
    finish(report(figures), figures, arguments.json)


if __name__ == "__main__":
    main()
