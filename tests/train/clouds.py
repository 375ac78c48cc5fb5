"""Metadata servers as the clouds document them, and broken ones; strict, so that a client's mistakes show."""

from __future__ import annotations

import json
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit


class Cloud:
    """State that the test changes while a client looks."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.requests: list[tuple[str, str]] = []
        self.problems: list[str] = []
        """What a client must never do."""
        self.closing = False
        self.endpoint = ""

    def answer(self, request: Handler) -> None:
        raise NotImplementedError

    @contextmanager
    def serve(self) -> Iterator[str]:
        """The endpoint, as long as the block runs."""
        handler = type("Bound", (Handler,), {"cloud": self})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads, server.block_on_close = True, True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            with self.changed:
                self.closing = True
                self.changed.notify_all()
            server.shutdown()
            server.server_close()
            thread.join()


class Handler(BaseHTTPRequestHandler):
    cloud: ClassVar[Cloud]

    def handle_one(self) -> None:
        self.url = urlsplit(self.path)
        self.query = {name: values[0] for name, values in parse_qs(self.url.query).items()}
        self.cloud.requests.append((self.command, self.path))
        self.cloud.answer(self)

    do_GET = do_PUT = do_POST = handle_one

    def reply(self, status: int, text: str = "", **headers: str) -> None:
        body = text.encode()
        try:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:  # the client hung up
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Aws(Cloud):
    """IMDSv2: a session token by PUT, without which every item is 401; items that are not there are 404."""

    def __init__(self, token_s: float | None = None) -> None:
        super().__init__()
        self.tokens: dict[str, float] = {}
        self.token_s = token_s
        self.items: dict[str, str] = {}

    def answer(self, request: Handler) -> None:
        if request.headers["X-Forwarded-For"]:
            return request.reply(403)
        if request.url.path == "/latest/api/token":
            return self._grant(request)
        if request.command != "GET":
            return request.reply(405)
        if self.tokens.get(request.headers["X-aws-ec2-metadata-token"] or "", 0) < time.monotonic():
            return request.reply(401, "unauthorized")
        item = self.items.get(request.url.path.removeprefix("/latest/meta-data/"))
        return request.reply(404, "<html>404 - Not Found</html>") if item is None else request.reply(200, item)

    def _grant(self, request: Handler) -> None:
        ttl = request.headers["X-aws-ec2-metadata-token-ttl-seconds"] or ""
        if request.command != "PUT" or not ttl.isdigit() or not 1 <= int(ttl) <= 21600:
            self.problems.append(f"bad request for a token: {request.command} {ttl!r}")
            return request.reply(400)
        token = uuid.uuid4().hex
        self.tokens[token] = time.monotonic() + (int(ttl) if self.token_s is None else self.token_s)
        return request.reply(200, token, X_aws_ec2_metadata_token_ttl_seconds=ttl)


class Gcp(Cloud):
    """Metadata-Flavor both ways, ETags, and requests that wait for a change."""

    def __init__(self) -> None:
        super().__init__()
        self.items = {"preempted": "FALSE", "maintenance-event": "NONE"}
        self.etags = {"preempted": "etag0", "maintenance-event": "etag0"}

    def change(self, item: str, value: str) -> None:
        with self.changed:
            self.items[item], self.etags[item] = value, uuid.uuid4().hex
            self.changed.notify_all()

    def answer(self, request: Handler) -> None:
        if request.headers["Metadata-Flavor"] != "Google" or request.headers["X-Forwarded-For"]:
            self.problems.append("request without Metadata-Flavor: Google")
            return request.reply(403)
        item = request.url.path.removeprefix("/computeMetadata/v1/instance/")
        if item not in self.items:
            return request.reply(404)
        if request.query.get("wait_for_change") == "true":
            self._wait(item, request)
        return request.reply(200, self.items[item], Metadata_Flavor="Google", ETag=self.etags[item])

    def _wait(self, item: str, request: Handler) -> None:
        known, most_s = request.query.get("last_etag", self.etags[item]), float(request.query["timeout_sec"])
        with self.changed:
            self.changed.wait_for(lambda: self.closing or self.etags[item] != known, most_s)


class Azure(Cloud):
    """Scheduled Events: the header is required, the version too; POST starts events by their present id."""

    def __init__(self, name: str = "trainer_0", first_s: float = 0.0) -> None:
        super().__init__()
        self.name, self.first_s = name, first_s
        self.events: list[dict[str, Any]] = []
        self.started: list[str] = []

    def schedule(self, kind: str, not_before: str, *, status: str = "Scheduled", machine: str | None = None) -> str:
        event = {
            "EventId": str(uuid.uuid4()),
            "EventType": kind,
            "ResourceType": "VirtualMachine",
            "Resources": [machine or self.name, "another_7"][: 2 if machine is None else 1],
            "EventStatus": status,
            "NotBefore": not_before,
            "Description": "",
            "EventSource": "Platform",
            "DurationInSeconds": -1,
        }
        self.events.append(event)
        return event["EventId"]

    def answer(self, request: Handler) -> None:
        if request.headers["Metadata"] != "true" or request.headers["X-Forwarded-For"]:
            self.problems.append("request without Metadata: true")
            return request.reply(400, '{"error": "Bad request. Required metadata header not specified"}')
        if request.url.path == "/metadata/instance/compute/name" and "api-version" in request.query:
            return request.reply(200, self.name)
        if request.url.path != "/metadata/scheduledevents" or request.query.get("api-version") != "2020-07-01":
            self.problems.append(f"bad request: {request.path}")
            return request.reply(400)
        return self._start(request) if request.command == "POST" else self._list(request)

    def _list(self, request: Handler) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.closing, self.first_s)
        self.first_s = 0.0
        request.reply(200, json.dumps({"DocumentIncarnation": len(self.events), "Events": self.events}))

    def _start(self, request: Handler) -> None:
        body = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        asked = [start["EventId"] for start in body["StartRequests"]]
        if not set(asked) <= {event["EventId"] for event in self.events}:
            self.problems.append(f"unknown events: {asked}")
            return request.reply(400)
        self.started += asked
        return request.reply(200)


@contextmanager
def mute() -> Iterator[str]:
    """Takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def nobody() -> str:
    """An endpoint at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


class Babble(Cloud):
    """Answers everything with one text."""

    def __init__(self, text: str, status: int = 200, **headers: str) -> None:
        super().__init__()
        self.said = (status, text, headers)

    def answer(self, request: Handler) -> None:
        status, text, headers = self.said
        request.reply(status, text, **headers)
