"""The exporter's server: devices are read on one thread at their own pace, scrapes are answered from the last look.

However many scrapers come, and however often, drivers are asked once an interval and a text is made once a look.
"""

from __future__ import annotations

import hmac
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from nearpeak.errors import SettingError, UnsupportedError
from nearpeak.integrations.prometheus import SnapshotCollector, render

if TYPE_CHECKING:
    from nearpeak.hardware.live.sampler import DeviceSampler, Snapshot

__all__ = ["LatestSnapshot", "MetricServer"]

MOST_AT_ONCE = 8
"""Scrapes that are answered at a time; more are told to come again."""
REQUEST_S = 5.0
"""A client that sends nothing for so long is let go."""
STALE_INTERVALS = 10
STALE_S = 30.0
"""An answer that is older than both is none: better a failed scrape than figures of yesterday."""
HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


class LatestSnapshot:
    """Reads a sampler on a thread of its own and keeps the last look."""

    def __init__(self, make_sampler: Callable[[], DeviceSampler], interval_s: float) -> None:
        if interval_s <= 0:
            raise SettingError(f"interval_s={interval_s}: must be above 0.")
        self._make, self.interval_s = make_sampler, interval_s
        self._stop, self._first = threading.Event(), threading.Event()
        self._last: Snapshot | None = None
        self._looked_s = 0.0
        self._thread = threading.Thread(target=self._run, name="nearpeak exporter", daemon=True)

    def start(self) -> None:
        """Begin; waits for the first look."""
        self._thread.start()
        self._first.wait(timeout=STALE_S)

    def stop(self) -> None:
        """End the thread; the drivers are left by it."""
        self._stop.set()
        self._thread.join(timeout=STALE_S)

    @property
    def age_s(self) -> float | None:
        """Of the last look."""
        return None if self._last is None else time.monotonic() - self._looked_s

    @property
    def stale(self) -> bool:
        """Whether it is too old to be told."""
        age_s = self.age_s
        return age_s is None or age_s > max(STALE_S, STALE_INTERVALS * self.interval_s)

    def get(self) -> Snapshot:
        """The last look."""
        if self._last is None:
            raise UnsupportedError("No device was read yet: the driver does not answer.")
        return self._last

    def _run(self) -> None:
        with self._make() as sampler:
            self._keep(sampler.read_once(self._stop.wait))
            while not self._stop.wait(self.interval_s):
                self._keep(sampler.read())

    def _keep(self, snapshot: Snapshot) -> None:
        self._last, self._looked_s = snapshot, time.monotonic()
        self._first.set()


class MetricServer:
    """Answers `GET /metrics`; use it as a context manager around `wait`."""

    def __init__(
        self,
        address: tuple[str, int],
        latest: LatestSnapshot,
        collector: SnapshotCollector,
        *,
        token: str | None = None,
    ) -> None:
        self._latest, self._collector, self._token = latest, collector, token
        self._made: dict[str, tuple[int, bytes, str]] = {}
        self._making, self._slots = threading.Lock(), threading.BoundedSemaphore(MOST_AT_ONCE)
        server = self

        class Handler(_Handler):
            owner = server

        try:
            self._server = ThreadingHTTPServer(address, Handler)
        except OSError as error:
            host, port = address
            raise SettingError(f"--listen {host}:{port}: {error.strerror or error}. Choose another port.") from None
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.2,), name="nearpeak scrapes", daemon=True
        )

    @property
    def port(self) -> int:
        """The port that it has; useful where 0 was asked for."""
        return self._server.server_address[1]

    def __enter__(self) -> MetricServer:
        self._latest.start()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=STALE_S)
        self._latest.stop()

    def answer(self, path: str, headers: Any) -> tuple[int, bytes, str]:
        """Status, body and content type of a request."""
        plain = "text/plain; charset=utf-8"
        if self._token is not None and not self._may(headers.get("Authorization", "")):
            return 401, b"A bearer token is needed.\n", plain
        if path in ("/", "/-/healthy"):
            return 200, b"nearpeak exporter: metrics are at /metrics\n", plain
        if path != "/metrics":
            return 404, b"Not here; metrics are at /metrics\n", plain
        if self._latest.stale:
            return 503, b"Devices were not read lately: a driver does not answer.\n", plain
        if not self._slots.acquire(blocking=False):
            return 503, b"Too many scrapes at a time.\n", plain
        try:
            return 200, *self._text(headers.get("Accept", ""))
        finally:
            self._slots.release()

    def _may(self, authorization: str) -> bool:
        return hmac.compare_digest(authorization.encode(), f"Bearer {self._token}".encode())

    def _text(self, accept: str) -> tuple[bytes, str]:
        """Made once a look and format."""
        form = "openmetrics" if "application/openmetrics-text" in accept else "text"
        with self._making:
            at_ns = self._latest.get().at_ns
            known = self._made.get(form)
            if known is None or known[0] != at_ns:
                known = self._made[form] = (at_ns, *render(self._collector, accept))
        return known[1], known[2]


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    owner: MetricServer
    timeout = REQUEST_S
    server_version = "nearpeak"
    sys_version = ""

    def do_GET(self) -> None:
        self._reply(with_body=True)

    def do_HEAD(self) -> None:
        self._reply(with_body=False)

    def _reply(self, *, with_body: bool) -> None:
        status, body, content_type = self.owner.answer(self.path.partition("?")[0], self.headers)
        self.send_response(status)
        sent = {"Content-Type": content_type, "Content-Length": str(len(body)), **HEADERS}
        if status == 401:
            sent["WWW-Authenticate"] = "Bearer"
        for name, value in sent.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not worth a line each."""
