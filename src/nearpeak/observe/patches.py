"""Putting our functions in the place of others', and taking them out again."""

from __future__ import annotations

import functools
from typing import Any

__all__ = ["Patches"]

_ABSENT = object()


class Patches:
    """What was replaced, in order."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def put(self, owner: Any, name: str, replacement: Any) -> None:
        """Replace an attribute of a module or class; ours takes the other's name, also for pickle."""
        before = vars(owner).get(name, _ABSENT)
        if before is not _ABSENT:
            replacement = functools.wraps(getattr(owner, name))(replacement)
        setattr(owner, name, replacement)
        self._replaced.append((owner, name, before, replacement))

    def undo(self) -> None:
        """Restore all that nobody has replaced after us."""
        while self._replaced:
            owner, name, before, ours = self._replaced.pop()
            if vars(owner).get(name) is not ours:
                continue
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
