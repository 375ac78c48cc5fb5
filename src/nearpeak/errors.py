"""What nearpeak raises. One tree, so that a caller can catch what it can handle:

NearpeakError
├── SettingError          a setting or argument breaks a rule (the message names value, rule and way out)
├── DataError             the user's data cannot be used as it is (names file, row or sample)
├── MissingExtraError     an optional dependency is not installed (names the extra to install)
├── NotEquivalentError    two executions that must learn the same do not (names the deviation)
├── LossNotFiniteError    the loss of a window is NaN or infinite (names the window and its samples)
├── OutOfMemoryError      a single sample does not fit on the device under any micro-batching
├── StorageError          a checkpoint cannot be written or read (names the folder, why, and what is still whole)
├── ResumeError           a saved state does not fit this job (names what differs and what would make it fit)
└── UnsupportedError      this model, version or machine cannot do what was asked (names what can)
"""

from __future__ import annotations

__all__ = [
    "DataError",
    "LossNotFiniteError",
    "MissingExtraError",
    "NearpeakError",
    "NotEquivalentError",
    "OutOfMemoryError",
    "ResumeError",
    "SettingError",
    "StorageError",
    "UnsupportedError",
]


class NearpeakError(Exception):
    """Base of everything nearpeak raises on purpose; the command line prints it without a traceback."""

    exit_code = 1


class SettingError(NearpeakError, ValueError):
    """A setting breaks a rule."""

    exit_code = 2


class DataError(NearpeakError, ValueError):
    """The user's data cannot be used as it is."""


class MissingExtraError(NearpeakError, ImportError):
    """An optional dependency is missing."""


class NotEquivalentError(NearpeakError, AssertionError):
    """Two executions that must learn the same thing do not."""


class LossNotFiniteError(NearpeakError, ArithmeticError):
    """The loss of a window is NaN or infinite."""

    def __init__(self, message: str, *, step: int | None = None, samples: tuple[int, ...] = ()):
        """`step` counts from 0; `samples` are the dataset indices among which the cause is."""
        super().__init__(message)
        self.step = step
        self.samples = samples


class OutOfMemoryError(NearpeakError, MemoryError):
    """Not even one sample fits."""


class StorageError(NearpeakError):
    """A checkpoint cannot be written or read."""


class ResumeError(NearpeakError):
    """A saved state does not fit the job that would go on from it."""


class UnsupportedError(NearpeakError, NotImplementedError):
    """Something that this model, version or machine cannot do."""
