"""Notices that this machine will vanish: from the cloud, the scheduler, or Ray.

    with Notices() as notices:
        for step in training():
            if agree_to_stop(notices.pending is not None, ranks):
                if everyone_is_here(ranks, timeout_s=20):
                    save()
                    notices.acknowledge()
                break

A notice only raises a flag; training looks at it between steps, where all ranks are at the same place.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, NoReturn, Self

from nearpeak.errors import SettingError
from nearpeak.reason import Reason
from nearpeak.train.notices import AwsSource, AzureSource, GcpSource, Notice, RaySource, Source
from nearpeak.train.rollcall import LostPeerError, agree_to_stop, everyone_is_here, is_stop, stop_flag
from nearpeak.train.stop_signals import StopSignals, ignore_stop_signals

__all__ = [
    "PREEMPTED_EXIT_CODE",
    "LostPeerError",
    "Notice",
    "Notices",
    "Preempted",
    "Signs",
    "agree_to_stop",
    "everyone_is_here",
    "exit_preempted",
    "ignore_stop_signals",
    "is_stop",
    "read_signs",
    "stop_flag",
    "told_by_peer",
]

PREEMPTED_EXIT_CODE = 75
"""How a run ends that saved its state because of a notice: EX_TEMPFAIL of sysexits.h, "try again later".

Not 0: Kubernetes (restartPolicy: OnFailure), torchrun and Ray would take the job for finished. Not 1 or 2: a script
must be able to tell "start me again" from a mistake, which would come back for ever. Not above 128: that would say that
a signal killed the process before it could save. Slurm requeues by itself what it preempted, and what ends with a code
that its administrator listed in RequeueExit; else the batch script calls `scontrol requeue`. torchrun restarts its
workers after any failure as long as it has restarts left, and itself exits with 1 whatever they said.
"""

ENDPOINTS = {
    "aws": "http://169.254.169.254",
    "gcp": "http://metadata.google.internal",
    "azure": "http://169.254.169.254",
}
SOURCES = (*ENDPOINTS, "ray", "signals")
FIRST_RETRY_S, LAST_RETRY_S = 1.0, 30.0
CLOSE_S = 2.0

logger = logging.getLogger("nearpeak")


class Preempted(SystemExit):
    """Leaves the process with `PREEMPTED_EXIT_CODE`; nothing but an `except SystemExit` holds it up."""

    def __init__(self, notice: Notice) -> None:
        super().__init__(PREEMPTED_EXIT_CODE)
        self.notice = notice


def exit_preempted(notice: Notice) -> NoReturn:
    """End this process so that whoever started it starts it again."""
    raise Preempted(notice)


def told_by_peer() -> Notice:
    """What stands for the notice on ranks that learn of it only by agreeing."""
    return Notice("ranks", "agreed", "another rank of this run got a notice")


@dataclass(frozen=True, slots=True)
class Signs:
    """What shows, at no cost, where this process runs."""

    cloud: str | None = None
    evidence: str = ""
    scheduler: str | None = None
    endpoints: Mapping[str, str] = field(default_factory=dict)
    """Metadata servers that the environment names, by cloud."""


def read_signs(environment: Mapping[str, str] | None = None, dmi: Path = Path("/sys/class/dmi/id")) -> Signs:
    """The machine's own labels and the environment, read here and nowhere else."""
    env = os.environ if environment is None else environment
    cloud, evidence = _cloud_of(dmi)
    known = {"slurm": "SLURM_JOB_ID", "kubernetes": "KUBERNETES_SERVICE_HOST"}
    scheduler = next((name for name, variable in known.items() if env.get(variable)), None)
    named = {name: env.get(f"NEARPEAK_METADATA_{name.upper()}", "") for name in ENDPOINTS}
    return Signs(cloud, evidence, scheduler, {name: endpoint for name, endpoint in named.items() if endpoint})


def _cloud_of(dmi: Path) -> tuple[str | None, str]:
    # Azure's asset tag, since Hyper-V elsewhere has the same vendor.
    labels = (
        ("aws", "sys_vendor", "Amazon EC2"),
        ("aws", "bios_vendor", "Amazon EC2"),
        ("gcp", "product_name", "Google Compute Engine"),
        ("gcp", "board_vendor", "Google"),
        ("azure", "chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77"),
    )
    for cloud, name, expected in labels:
        if _label(dmi / name) == expected:
            return cloud, f"{dmi / name} says {expected!r}"
    return None, f"no label in {dmi} names a cloud"


def _label(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:  # not Linux, a container that hides it, or only root may read it: no sign
        return ""


class Notices:
    """Listens while it is open, once; `pending` is the flag. A source that fails is told of once and raises nothing."""

    def __init__(
        self,
        detect: Literal["auto", "machine"] | Sequence[str] = "auto",
        *,
        endpoints: Mapping[str, str] | None = None,
        local_rank: int = 0,
        poll_s: float | None = None,
        signs: Signs | None = None,
    ) -> None:
        """`detect`: "auto", or any of aws, gcp, azure, ray, signals; "machine" is auto without signals, for programs
        that handle those themselves. `endpoints`: metadata servers by cloud.

        One rank per machine asks the cloud (`local_rank` 0); the ranks agree anyway. `poll_s` replaces each source's
        own interval.
        """
        _check(detect, endpoints or {})
        self.reasons: list[Reason] = []
        """Which sources were chosen, and why; failures are added as they come."""
        self._pending: Notice | None = None
        self._advice: list[Notice] = []
        self._advised: set[tuple[str, str]] = set()
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []
        self._failed: set[str] = set()
        self._signals: StopSignals | None = None
        self._choose(detect, endpoints or {}, local_rank, poll_s, signs or read_signs())

    @property
    def pending(self) -> Notice | None:
        """The first notice that asks this run to stop; it stays."""
        return self._pending

    def take_advice(self) -> Notice | None:
        """News that recommend a checkpoint soon, but no stop; each is given once."""
        return self._advice.pop(0) if self._advice else None

    def acknowledge(self) -> None:
        """The state is saved: tell the source, so that it need not wait (Azure). Failing to is no harm."""
        for source in self._sources:
            self._guarded(source, source.acknowledge)

    def __enter__(self) -> Self:
        if self._signals is not None:
            self.reasons += self._signals.install()
        for source in self._sources:
            thread = threading.Thread(target=self._watch, args=(source,), name=f"nearpeak-{source.name}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the threads and put signal handlers back; what is pending stays."""
        self._closed.set()
        for source in self._sources:
            source.cut()
        for thread in self._threads:
            thread.join(CLOSE_S)
        if self._signals is not None:
            self._signals.restore()

    def _note(self, notice: Notice) -> None:
        """Called by threads and by signal handlers, so by plain assignments only."""
        if notice.stop:
            self._pending = self._pending or notice
        elif (notice.source, notice.kind) not in self._advised:
            self._advised.add((notice.source, notice.kind))
            self._advice.append(notice)

    def _watch(self, source: Source) -> None:
        retry_s = FIRST_RETRY_S
        while not self._closed.is_set():
            pause_s = self._guarded(source, lambda: self._look(source))
            if pause_s is None:
                pause_s, retry_s = retry_s, min(2 * retry_s, LAST_RETRY_S)
            else:
                retry_s = FIRST_RETRY_S
            self._closed.wait(pause_s)

    def _look(self, source: Source) -> float:
        found = source.look()
        for notice in found.notices:
            self._note(notice)
        return found.pause_s

    def _guarded(self, source: Source, action: Callable[[], float | None]) -> float | None:
        try:
            return action()
        except Exception as error:  # noqa: BLE001 - the one boundary: a cloud's answer must never end a training
            if not self._closed.is_set() and source.name not in self._failed:
                self._failed.add(source.name)
                self._tell_failure(source, error)
            return None

    def _tell_failure(self, source: Source, error: Exception) -> None:
        hint = HINTS.get(source.name, "")
        because = f"{type(error).__name__}: {error}. It is asked again, without further words.{hint}"
        self.reasons.append(Reason(f"notices.{source.name}=failing", because))
        # No `warnings.warn`: a script may turn warnings into errors.
        logger.warning("notices of preemption from %s: %s", source.name, because)

    def _choose(
        self,
        detect: str | Sequence[str],
        endpoints: Mapping[str, str],
        local_rank: int,
        poll_s: float | None,
        signs: Signs,
    ) -> None:
        chosen = _choices(detect, endpoints, local_rank, signs)
        self.reasons += chosen.values()
        on = [name for name, reason in chosen.items() if reason.choice.endswith("=on")]
        where = {**ENDPOINTS, **signs.endpoints, **endpoints}
        self._sources: list[Source] = [_source(name, where, poll_s) for name in on if name != "signals"]
        if "signals" in on:
            self._signals = StopSignals(self._note)


HINTS = {"aws": " In a container, the instance's metadata hop limit must be 2 (HttpPutResponseHopLimit)."}


def _source(name: str, where: Mapping[str, str], poll_s: float | None) -> Source:
    interval = {} if poll_s is None else {"poll_s": poll_s}
    if name == "ray":
        return RaySource(**interval)
    if name == "gcp":
        return GcpSource(where[name])
    return {"aws": AwsSource, "azure": AzureSource}[name](where[name], **interval)


def _check(detect: str | Sequence[str], endpoints: Mapping[str, str]) -> None:
    names = [] if detect in ("auto", "machine") else [detect] if isinstance(detect, str) else list(detect)
    for name in names:
        if name not in SOURCES:
            raise SettingError(f"detect names {name!r}: expected 'auto', 'machine' or a list of {', '.join(SOURCES)}.")
    for name in endpoints:
        if name not in ENDPOINTS:
            raise SettingError(f"endpoints names {name!r}: expected any of {', '.join(ENDPOINTS)}.")


def _choices(
    detect: str | Sequence[str], endpoints: Mapping[str, str], local_rank: int, signs: Signs
) -> dict[str, Reason]:
    """For each source, whether it is used and why."""
    if detect in ("auto", "machine"):
        found = {name: _cloud_choice(name, endpoints, signs) for name in ENDPOINTS}
        obstacle = RaySource.obstacle()
        found["ray"] = _choice("ray", obstacle is None, obstacle or "this worker runs under Ray Train")
        because = f"{signs.scheduler} sends them" if signs.scheduler else "whoever ends a process sends SIGTERM first"
        own = detect == "machine"
        found["signals"] = _choice("signals", not own, "the program handles them itself" if own else because)
    else:
        named = [detect] if isinstance(detect, str) else detect
        found = {name: _explicit_choice(name) for name in named}
    for name in ENDPOINTS:
        if local_rank and name in found and found[name].choice.endswith("=on"):
            found[name] = _choice(name, False, "the first rank on this machine asks for all of them")
    return found


def _cloud_choice(name: str, endpoints: Mapping[str, str], signs: Signs) -> Reason:
    if name in endpoints:
        return _choice(name, True, f"its endpoint was given: {endpoints[name]}")
    if name in signs.endpoints:
        return _choice(name, True, f"NEARPEAK_METADATA_{name.upper()} is {signs.endpoints[name]}")
    return _choice(name, signs.cloud == name, signs.evidence or "no sign of it")


def _explicit_choice(name: str) -> Reason:
    obstacle = RaySource.obstacle() if name == "ray" else None
    return _choice(name, obstacle is None, obstacle or "asked for")


def _choice(name: str, on: bool, because: str) -> Reason:
    return Reason(f"notices.{name}={'on' if on else 'off'}", because)
