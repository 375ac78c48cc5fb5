"""Requests to a cloud's metadata server that another thread can cut short.

`http.client`, because it knows no proxies: these addresses mean this machine, and a proxy would ask for another.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from nearpeak.errors import SettingError

__all__ = ["ANSWER_S", "Answer", "CutShort", "MetadataServer"]

CONNECT_S = 1.5
"""The server is on the same host: who is not there by then is not there."""
ANSWER_S = 5.0
MOST_BYTES = 2**20


class CutShort(OSError):
    """The request was ended by this process, on purpose."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said."""

    status: int
    headers: Mapping[str, str]
    text: str

    def header(self, name: str) -> str:
        """A header whatever its case; empty where there is none."""
        return self.headers.get(name.lower(), "")


class MetadataServer:
    """Asks one question at a time; `cut()` from another thread ends the one under way and refuses further ones."""

    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint)
        if parts.scheme != "http" or not parts.hostname:
            raise SettingError(f"metadata endpoint {endpoint!r}: expected http://HOST or http://HOST:PORT.")
        self._host, self._port, self._root = parts.hostname, parts.port or 80, parts.path.rstrip("/")
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._is_cut = False

    def ask(
        self, method: str, path: str, headers: Mapping[str, str], *, body: str | None = None, wait_s: float = ANSWER_S
    ) -> Answer:
        """One request on a connection of its own; whatever goes wrong is an OSError or an HTTPException."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_S)
        try:
            connection.connect()
            self._keep(connection.sock, wait_s)
            connection.request(method, self._root + path, body=body, headers=dict(headers))
            response = connection.getresponse()
            text = response.read(MOST_BYTES).decode("utf-8", "replace")
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, text)
        finally:
            with self._lock:
                self._socket = None
            connection.close()

    def cut(self) -> None:
        """End what is under way, at once."""
        with self._lock:
            self._is_cut = True
            if self._socket is not None:
                with contextlib.suppress(OSError):  # the other side may have hung up by itself
                    self._socket.shutdown(socket.SHUT_RDWR)

    def _keep(self, opened: socket.socket, wait_s: float) -> None:
        opened.settimeout(wait_s)
        with self._lock:
            if self._is_cut:
                raise CutShort("closed")
            self._socket = opened
