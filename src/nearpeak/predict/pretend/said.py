"""What the running step says of itself: where it is, for messages, and what it had to assume."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from torch import nn

__all__ = ["Place", "assume", "assumed", "begin", "failed_at", "place"]


class Place:
    """Where the step is."""

    def __init__(self) -> None:
        self.paths: dict[int, str] = {}
        """id of a module → its path in the model"""
        self.module = ""
        """Whose operator came last."""
        self.operator: Any = None
        self.function: Any = None
        """Of torch, called after the last operator, if any."""
        self.assumed: dict[str, None] = {}
        self._note: Any = None
        self._noted: dict[tuple[Any, str], bytes] = {}

    def at(self, operator: Any, module: str) -> None:
        """An operator is called. Where that ends the process, the process that started it reads the note."""
        if operator.namespace == "prim":  # asks for a device
            return
        self.operator, self.function, self.module = operator, None, module
        if self._note is None:
            return
        text = self._noted.get((operator, module))
        if text is None:
            text = _named(self).encode()[: len(self._note)]
            text = self._noted[operator, module] = text.ljust(len(self._note), b"\0")
        self._note[:] = text

    def failed(self, error: Exception) -> None:
        """The operator raised an error: inside of backward, that may end the process."""
        if self._note is not None:
            text = f"{_named(self)}: {type(error).__name__}: {_first_line(error)}".encode()[: len(self._note)]
            self._note[:] = text.ljust(len(self._note), b"\0")

    def noting(self, note: Any) -> Place:
        """Write into this memory where the step is."""
        self._note = note
        return self


_NOW: dict[str, Place] = {"place": Place()}


def begin(note: Any = None) -> Place:
    """Another step starts; `note` is memory that is shared with who waits for it."""
    _NOW["place"] = Place().noting(note)
    return _NOW["place"]


def place() -> Place:
    """Of the step that runs."""
    return _NOW["place"]


def assume(what: str) -> None:
    """Note what was taken to be so, for want of data."""
    _NOW["place"].assumed[what] = None


def assumed() -> tuple[str, ...]:
    """All that was, in its order."""
    return tuple(_NOW["place"].assumed)


def failed_at(error: BaseException) -> str:
    """The error, the module it came from, and its operator, or the function of torch that refused to call one."""
    now = place()
    where = _named(now, _module_of(error.__traceback__, now.paths))
    return f"{where}: {type(error).__name__}: {_first_line(error)}"


def _named(now: Place, module: str = "") -> str:
    return f"operator {_name(now)} in module {module or now.module or '(the model itself)'}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]


def _name(now: Place) -> str:
    function = getattr(now.function, "__name__", "__get__")
    if function != "__get__":  # what reads a tensor's shape or device does not fail
        return f"torch.{function}"
    return "(none)" if now.operator is None else now.operator.name()


def _module_of(traceback: TracebackType | None, paths: dict[int, str]) -> str:
    """The innermost module whose method the error went through."""
    found = ""
    while traceback is not None:
        owner = traceback.tb_frame.f_locals.get("self")
        if isinstance(owner, nn.Module):
            found = paths.get(id(owner), found)
        traceback = traceback.tb_next
    return found
