"""Whether samples may be fetched in worker processes, in how many, and how those are started."""

from __future__ import annotations

import io
import multiprocessing
import pickle
import sys
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing  # teaches pickle to hand tensors over

from nearpeak.errors import SettingError
from nearpeak.reason import Reason
from nearpeak.train.seeding import attributes_where
from nearpeak.train.sources import WindowSource

__all__ = ["WorkerLimits", "shared_handles"]

HANDLE_MODULES = frozenset({"h5py", "lmdb", "netCDF4", "socket", "sqlite3", "tarfile", "zipfile"})
"""Libraries whose objects hold a file position or connection that a forked process would share."""


def shared_handles(data: Any) -> dict[str, Any]:
    """The open files, connections and GPU tensors among an object's attributes, which no fork may share."""
    return attributes_where(data, _is_shared_handle)


def _is_shared_handle(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.device.type != "cpu"
    if isinstance(value, io.IOBase):
        return not isinstance(value, io.StringIO | io.BytesIO) and not value.closed
    return type(value).__module__.partition(".")[0] in HANDLE_MODULES


class WorkerLimits:
    """How many workers a source may have, and the method that starts them.

    Fork is the rule where the system has it: it takes 0.01 s a worker (spawn: 0.5 s), needs nothing to be picklable,
    and does not import the user's script again, which without an `if __name__ == "__main__"` would train again in
    every worker. It stays the rule when CUDA is initialised: a forked worker cannot use the GPU, and says so if a
    sample tries, but may read and collate as it likes.
    """

    def __init__(self, source: WindowSource, preparer: Any, start_method: str | None = None) -> None:
        self._source = source
        self._preparer = preparer
        self.method = start_method or _default_method()
        self._obstacle: Reason | None = None
        self._checked = False
        if self.method not in multiprocessing.get_all_start_methods():
            known = ", ".join(multiprocessing.get_all_start_methods())
            raise SettingError(f"start_method={start_method!r}: this system has {known}.")

    def most(self) -> int | None:
        """The most workers there can be; None means any number."""
        return self._source.most_workers if self._find_obstacle() is None else 0

    def allowed(self, workers: int) -> tuple[int, list[Reason]]:
        """As many of the workers as can be had, and why."""
        if workers == 0:
            return 0, []
        obstacle = self._find_obstacle()
        if obstacle is not None:
            return 0, [obstacle]
        most = self._source.most_workers
        if most is not None and workers > most:
            return most, [self._order_reason(workers, most)]
        return workers, [self._method_reason()]

    def _order_reason(self, workers: int, most: int) -> Reason:
        because = "a stream can only be read in order by one process" if most else "an iterator cannot be read twice"
        return Reason(f"loader.workers={most}", because, {"workers_asked": workers})

    def _method_reason(self) -> Reason:
        evidence: dict[str, float | int | str | bool] = {"cuda_initialised": torch.cuda.is_initialized()}
        if self.method != "fork":
            return Reason(f"loader.start_method={self.method}", "as set, or because this system has no fork", evidence)
        because = "it starts fastest and does not import the script again"
        if evidence["cuda_initialised"]:
            because += "; samples must be made on the CPU, since a forked worker cannot use the GPU"
        return Reason("loader.start_method=fork", because, evidence)

    def _find_obstacle(self) -> Reason | None:
        if not self._checked:
            self._checked = True
            self._obstacle = self._daemon() or (self._handles() if self.method == "fork" else self._not_picklable())
        return self._obstacle

    def _daemon(self) -> Reason | None:
        if not multiprocessing.current_process().daemon:
            return None
        return Reason("loader.workers=0", "the training process is a daemon, which may start no processes")

    def _handles(self) -> Reason | None:
        handles = shared_handles(self._source.data)
        if not handles:
            return None
        names = ", ".join(f"{name} ({type(value).__name__})" for name, value in handles.items())
        because = (
            f"the dataset holds {names}, which forked workers would share and read past each other; open it at the "
            "first use in __getitem__ instead, once per process, to allow workers"
        )
        return Reason("loader.workers=0", because, {"attributes": ", ".join(handles)})

    def _not_picklable(self) -> Reason | None:
        try:
            ForkingPickler.dumps(self._preparer)
        except (pickle.PicklingError, TypeError, AttributeError, NotImplementedError) as error:
            because = f"workers started by {self.method} need picklable data and functions: {error}"
            return Reason("loader.workers=0", because)
        return None


def _default_method() -> str:
    return "fork" if sys.platform == "linux" else multiprocessing.get_start_method(allow_none=False)
