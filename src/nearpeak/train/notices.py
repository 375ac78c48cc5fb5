"""Who can say that this machine will vanish: the metadata servers of AWS, Google Cloud and Azure, and Ray.

Each source answers `look()`: what is announced now, and how many seconds to wait before looking again. Sources keep no
thread; `nearpeak.train.preempt.Notices` looks through them from its own. What a source cannot make sense of it raises.

Some announcements are no reason to stop: a machine "at elevated risk" or one that is rebooted in an hour goes on
working, and a run that stopped would be started again on the same machine, only to stop again. They are advice: save
soon. `Notice.stop` tells the two apart.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

from nearpeak.train.metadata import ANSWER_S, Answer, MetadataServer

__all__ = ["AwsSource", "AzureSource", "GcpSource", "Look", "Notice", "RaySource", "Source", "read_time"]

AWS_POLL_S = 4.5
"""AWS recommends every 5 s for its two minutes; a little less, so that the flag is up within them, request included."""
GCP_WAIT_S = 60
"""How long the server may hold a request open; a change is answered at once."""
AZURE_POLL_S = 0.5
"""Azure gives spot machines 30 seconds and answers at once; it refuses more than five requests a second."""
RAY_POLL_S = 0.5
"""Reads a variable of this process; Ray itself looks every few seconds."""
NEAR_S = 120.0
"""A planned reboot stops a run this long ahead: enough to save, and little enough to lose."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Somebody said that this process, or its machine, will end."""

    source: str
    """Who said so: aws, gcp, azure, ray, signals."""
    kind: str
    """In the source's own word: terminate, rebalance, Preempt, SIGTERM …"""
    message: str
    deadline: float | None = None
    """Moment of `time.monotonic()` after which it may happen; None where nobody said."""
    stop: bool = True
    """Whether to save and leave; else it is advice to save soon and go on."""

    @property
    def seconds_left(self) -> float | None:
        """How long there is to save, as far as anybody said; never negative."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def __str__(self) -> str:
        left = self.seconds_left
        return f"{self.source} {self.kind}: {self.message}" + ("" if left is None else f" ({left:.0f} s left)")


@dataclass(frozen=True, slots=True)
class Look:
    """What one look found."""

    notices: tuple[Notice, ...] = ()
    pause_s: float = 0.0
    """Before the next look; 0 where the source itself waits."""


class Source(Protocol):
    """Somebody to ask for notices."""

    name: str

    def look(self) -> Look: ...

    def acknowledge(self) -> None: ...

    def cut(self) -> None: ...


def read_time(text: str) -> float:
    """A date as the clouds write it (ISO 8601 or RFC 1123) as a moment of `time.monotonic()`."""
    text = text.strip()
    # Azure writes up to seven digits of a second, more than a datetime has.
    iso = re.fullmatch(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?)(?:\.\d+)?(Z|[+-]\d\d:?\d\d)?", text)
    if iso:
        moment = datetime.fromisoformat(iso[1] + (iso[2] or "Z"))
    else:
        moment = parsedate_to_datetime(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)  # RFC 1123 with an unknown zone: all of them mean UTC
    return time.monotonic() + (moment.timestamp() - time.time())


def _deadline(text: object) -> float | None:
    """A date that cannot be read must not hide the notice it belongs to."""
    try:
        return read_time(str(text))
    except (ValueError, OverflowError):
        return None


def _expected(answer: Answer, statuses: Iterable[int], what: str) -> Answer:
    if answer.status not in statuses:
        raise ValueError(f"{what}: the server answered {answer.status} ({answer.text[:80]!r})")
    return answer


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"expected a JSON object, got {text[:80]!r}")
    return found


class AwsSource:
    """EC2: interruption of a spot instance, and the recommendation to rebalance that may come before it (IMDSv2)."""

    name = "aws"
    TOKEN_S = 21600
    """The longest life of a session token that EC2 grants."""
    RENEW_S = 300
    """A token is renewed this long before it expires."""

    def __init__(self, endpoint: str, poll_s: float = AWS_POLL_S) -> None:
        self._server = MetadataServer(endpoint)
        self._poll_s = poll_s
        self._token, self._token_until = "", 0.0

    def look(self) -> Look:
        """The interruption if there is one, else the recommendation."""
        action = self._get("/latest/meta-data/spot/instance-action")
        if action is not None:
            return Look((self._interruption(_object(action)),), self._poll_s)
        recommended = self._get("/latest/meta-data/events/recommendations/rebalance")
        if recommended is None:
            return Look((), self._poll_s)
        since = _object(recommended).get("noticeTime", "an unknown time")
        message = f"this spot instance is at elevated risk of interruption since {since}"
        return Look((Notice(self.name, "rebalance", message, stop=False),), self._poll_s)

    def acknowledge(self) -> None:
        """EC2 takes no answer."""

    def cut(self) -> None:
        self._server.cut()

    def _interruption(self, found: Mapping[str, Any]) -> Notice:
        action, when = found.get("action"), found.get("time")
        if action not in ("hibernate", "stop", "terminate"):
            raise ValueError(f"spot/instance-action names no known action: {str(found)[:80]}")
        return Notice(self.name, action, f"EC2 will {action} this spot instance at {when}", _deadline(when))

    def _get(self, path: str) -> str | None:
        """The item, or None where there is none (404)."""
        answer = self._server.ask("GET", path, self._header())
        if answer.status == 401:  # the token ran out, or the server forgot it
            self._token_until = 0.0
            answer = self._server.ask("GET", path, self._header())
        return None if _expected(answer, (200, 404), path).status == 404 else answer.text

    def _header(self) -> dict[str, str]:
        if time.monotonic() >= self._token_until:
            ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(self.TOKEN_S)}
            answer = _expected(self._server.ask("PUT", "/latest/api/token", ttl), (200,), "session token")
            granted = int(answer.header("X-aws-ec2-metadata-token-ttl-seconds") or self.TOKEN_S)
            self._token, self._token_until = answer.text.strip(), time.monotonic() + max(1, granted - self.RENEW_S)
        return {"X-aws-ec2-metadata-token": self._token}


class GcpSource:
    """Compute Engine: preemption of a spot machine, told by a request that the server holds open until it changes.

    The maintenance event is read with each answer: reading it at all is what makes Compute Engine announce it.
    """

    name = "gcp"
    HEADER: Mapping[str, str] = {"Metadata-Flavor": "Google"}

    def __init__(self, endpoint: str, wait_s: int = GCP_WAIT_S) -> None:
        self._server = MetadataServer(endpoint)
        self._wait_s = wait_s
        self._etag = ""

    def look(self) -> Look:
        """The first look answers at once; later ones when something changes, or after `wait_s`."""
        query = f"?wait_for_change=true&timeout_sec={self._wait_s}&last_etag={self._etag}" if self._etag else ""
        answer = self._get(f"instance/preempted{query}", self._wait_s + 10.0)
        waits = bool(answer.header("ETag"))
        self._etag = answer.header("ETag")
        word = answer.text.strip().upper()
        if word not in ("TRUE", "FALSE"):
            raise ValueError(f"instance/preempted is neither TRUE nor FALSE: {answer.text[:80]!r}")
        if word == "TRUE":
            message = "Compute Engine preempts this machine: it stops within 30 seconds"
            return Look((Notice(self.name, "preempted", message, time.monotonic() + 30.0),), 1.0)
        # Without an ETag the server cannot hold a request open for us, so it is asked every second.
        return Look(self._maintenance(), 0.0 if waits else 1.0)

    def acknowledge(self) -> None:
        """Compute Engine takes no answer."""

    def cut(self) -> None:
        self._server.cut()

    def _maintenance(self) -> tuple[Notice, ...]:
        event = self._get("instance/maintenance-event", ANSWER_S).text.strip()
        if event.upper() != "TERMINATE_ON_HOST_MAINTENANCE":
            return ()  # NONE, or a live migration, which training survives
        # A minute ahead, with GPUs up to an hour: the stop itself comes as `preempted` or SIGTERM.
        return (Notice(self.name, event, "the host of this machine goes into maintenance", stop=False),)

    def _get(self, path: str, wait_s: float) -> Answer:
        answer = self._server.ask("GET", f"/computeMetadata/v1/{path}", dict(self.HEADER), wait_s=wait_s)
        _expected(answer, (200,), path)
        if answer.header("Metadata-Flavor") != "Google":
            raise ValueError("the answer lacks Metadata-Flavor: Google, so it is not Google's metadata server")
        return answer


class AzureSource:
    """Azure: Scheduled Events of this machine. `acknowledge()` lets an event begin once the checkpoint is safe."""

    name = "azure"
    HEADER: Mapping[str, str] = {"Metadata": "true"}
    EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
    NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
    SURVIVED = ("Freeze",)
    """Pauses of seconds that keep memory."""
    FIRST_WAIT_S = 130.0
    """The first request switches the service on, which takes up to two minutes."""

    def __init__(self, endpoint: str, poll_s: float = AZURE_POLL_S) -> None:
        self._server, self._answers = MetadataServer(endpoint), MetadataServer(endpoint)
        self._poll_s = poll_s
        self._wait_s = self.FIRST_WAIT_S
        self._machine: str | None = None

    def look(self) -> Look:
        """Events that touch this machine."""
        notices = tuple(self._notice(event) for event in self._events(self._server, self._wait_s))
        self._wait_s = ANSWER_S
        return Look(notices, self._poll_s)

    def acknowledge(self) -> None:
        """Tell Azure that the events which stop this run may begin; their ids are read anew, since they can change."""
        events = [event for event in self._events(self._answers, ANSWER_S) if self._notice(event).stop]
        if events:
            body = json.dumps({"StartRequests": [{"EventId": str(event["EventId"])} for event in events]})
            answer = self._answers.ask("POST", self.EVENTS, dict(self.HEADER), body=body)
            _expected(answer, (200, 202, 204), "acknowledgement")

    def cut(self) -> None:
        self._server.cut()
        self._answers.cut()

    def _events(self, server: MetadataServer, wait_s: float) -> list[Mapping[str, Any]]:
        answer = server.ask("GET", self.EVENTS, dict(self.HEADER), wait_s=wait_s)
        found = _object(_expected(answer, (200,), "Scheduled Events").text).get("Events", [])
        if not all(isinstance(event["EventType"], str) for event in found):
            raise ValueError(f"Scheduled Events without a type: {str(found)[:80]}")
        events = [event for event in found if event["EventType"] not in self.SURVIVED]
        return [event for event in events if self._is_mine(event, server)]

    def _is_mine(self, event: Mapping[str, Any], server: MetadataServer) -> bool:
        """All machines of a scale set hear of each other's events; without a name for this one, all count."""
        resources = [str(name).lower() for name in event.get("Resources") or ()]
        if self._machine is None:
            answer = server.ask("GET", self.NAME, dict(self.HEADER))
            self._machine = answer.text.strip().lower() if answer.status == 200 else ""
        return not resources or not self._machine or self._machine in resources

    def _notice(self, event: Mapping[str, Any]) -> Notice:
        kind, when = event["EventType"], event.get("NotBefore")
        deadline = _deadline(when)  # blank once the event started
        is_near = deadline is not None and deadline - time.monotonic() <= NEAR_S
        message = f"Azure has scheduled {kind} of this machine" + (f" not before {when}" if deadline else "")
        stop = kind == "Preempt" or event.get("EventStatus") == "Started" or is_near
        return Notice(self.name, kind, message, deadline, stop)


class RaySource:
    """Ray Train's preemption info, read in this process.

    Not through `ray.train.get_preemption_info()`: that is a barrier of all workers in some versions, which a thread
    must never enter. The ranks agree among themselves anyway, so each reads what Ray told its own process.
    """

    name = "ray"

    def __init__(self, poll_s: float = RAY_POLL_S) -> None:
        self._poll_s = poll_s

    @staticmethod
    def obstacle() -> str | None:
        """Why Ray cannot be asked; None if it can."""
        ray = sys.modules.get("ray")
        if ray is None or not getattr(ray, "is_initialized", bool)():
            return "this process does not run under Ray"
        try:
            _ray_info()
        except (ImportError, AttributeError, RuntimeError, TypeError) as error:
            return f"this version of Ray shows no preemption info here ({type(error).__name__}: {error})"
        return None

    def look(self) -> Look:
        """Whether Ray told this worker that a node of the run is reclaimed."""
        info = _ray_info()
        if info is None:
            return Look((), self._poll_s)
        unix_ms = getattr(info, "deadline_ms", None)
        deadline = time.monotonic() + (float(unix_ms) / 1e3 - time.time()) if unix_ms else None
        return Look(
            (Notice(self.name, "preemption", f"Ray reclaims a node of this run: {info}", deadline),), self._poll_s
        )

    def acknowledge(self) -> None:
        """Ray takes no answer."""

    def cut(self) -> None:
        """Nothing is open."""


def _ray_info() -> Any:
    from importlib import import_module

    return (
        import_module("ray.train.v2._internal.execution.context").get_train_context().preemption_context.preemption_info
    )
