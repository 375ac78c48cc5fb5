"""One call to NVML, and what its refusals mean. Every function of the library is asked for by name: drivers and
bindings of any age may lack some, and then the answer is that it is not supported.
"""

from __future__ import annotations

from typing import Any

from nearpeak.hardware.reading import Why

__all__ = ["ALL_LINKS", "Asker", "Driver", "Refused", "field_value"]

# NVML's return codes by number, so that no version of the binding has to know their names.
UNSUPPORTED_CODES = frozenset({2, 3, 13, 22, 25, 26})
"""Invalid argument (an older driver does not know the sensor), not supported, function not found, no ECC inside a
virtual machine, another version of the argument, deprecated: asking again brings nothing."""
NO_PERMISSION, TIMEOUT, LOST, NOT_FOUND, GPU_NOT_FOUND = 4, 10, 15, 6, 28
NOT_YET_CODES = frozenset({6, 21, 27})
"""Not found, no data, not ready."""
ALL_LINKS = 0xFFFFFFFF
"""Scope of a field value that is summed over all links."""
_NO_VALUE = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
"""What drivers give as a number where there is none."""
_UNION = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of a field value's union, by its type's number."""


def _why(code: int) -> Why:
    """As a reading says it."""
    if code in UNSUPPORTED_CODES:
        return "unsupported"
    if code in NOT_YET_CODES:
        return "not_yet"
    named: dict[int, Why] = {NO_PERMISSION: "no_permission", TIMEOUT: "timeout", LOST: "lost", GPU_NOT_FOUND: "lost"}
    return named.get(code, "error")


class Refused(Exception):
    """A question that got no answer. Control flow of this room alone: it never leaves it. One that is to be kept, or
    stands for a figure's value, is kept as its `record`."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.why: Why = _why(code)

    def record(self) -> Refused:
        """The same refusal without the path it took. That path holds every frame that was open, with the readings in
        them, and would grow each time the refusal is raised again."""
        return Refused(self.code, str(self))

    @property
    def final(self) -> bool:
        """The same question will be refused again."""
        return self.code in UNSUPPORTED_CODES or self.code == NO_PERMISSION

    @property
    def lost(self) -> bool:
        """The device is off the bus."""
        return self.code in (LOST, GPU_NOT_FOUND)


class Driver:
    """The binding; `nvml` stands in for the `pynvml` module in tests."""

    def __init__(self, nvml: Any = None) -> None:
        if nvml is None:
            import pynvml as nvml
        self.nvml = nvml

    def call(self, name: str, *arguments: Any) -> Any:
        """The answer; raises Refused for every way in which a driver refuses."""
        function = getattr(self.nvml, name, None)
        if function is None:
            raise Refused(13, f"this nvidia-ml-py has no {name}")
        try:
            answer = function(*arguments)
        except self.nvml.NVMLError as error:
            raise Refused(getattr(error, "value", 999), str(error)) from None
        except (ValueError, UnicodeDecodeError, AttributeError) as error:  # a text that is none, an old library
            raise Refused(999, f"{name}: {error}") from None
        if isinstance(answer, int) and answer in _NO_VALUE:
            raise Refused(3, f"{name}: the driver gave no value")
        return answer.decode(errors="replace") if isinstance(answer, bytes) else answer


class Asker:
    """Asks about one device and keeps what is being asked, so that a call that hangs has a name."""

    def __init__(self, driver: Driver, handle: Any) -> None:
        self.driver, self.handle = driver, handle
        self.refused: dict[str, Refused] = {}
        """Questions and figures that this device refuses for good: they are not asked again. Records, never raised."""
        self.asking: str | None = None

    def __call__(self, name: str, *arguments: Any) -> Any:
        """Of this device."""
        self.asking = name
        return self.driver.call(name, self.handle, *arguments)

    def first_of(self, *names: str) -> Any:
        """The first function that this library has."""
        for name in names[:-1]:
            try:
                return self(name)
            except Refused as refused:
                if refused.code != 13:
                    raise
        return self(names[-1])


def field_value(entry: Any) -> float | int | Refused:
    """One entry of nvmlDeviceGetFieldValues."""
    if entry.nvmlReturn != 0:
        return Refused(entry.nvmlReturn, f"field {entry.fieldId} was refused")
    if not 0 <= entry.valueType < len(_UNION):
        return Refused(3, f"field {entry.fieldId} has a value of unknown type {entry.valueType}")
    value = getattr(entry.value, _UNION[entry.valueType])
    if value in _NO_VALUE:
        return Refused(3, f"field {entry.fieldId} has no value")
    return value
