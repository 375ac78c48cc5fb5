"""A headless Chromium for tests, spoken to over a pipe in its own DevTools protocol: nothing to install but itself.

As a program it takes a picture: ``python browser.py PAGE.html PICTURE.png [WIDTH [HEIGHT [TOP [dark]]]]``.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE_S = 30.0
WATCHED = ("Page.enable", "Runtime.enable", "Log.enable", "Network.enable")


def find_browser() -> str | None:
    """The first one that is installed; NEARPEAK_TEST_BROWSER names another."""
    candidates = (os.environ.get("NEARPEAK_TEST_BROWSER"), *NAMES)
    return next((path for name in candidates if name and (path := shutil.which(name))), None)


class Browser:
    """One tab. What it logs and what it asks the network for is kept."""

    def __init__(self, executable: str, profile: Path) -> None:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        arguments = (
            "--headless",
            "--no-sandbox",  # tests run as root in containers; the pages are our own
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--hide-scrollbars",
            "--force-color-profile=srgb",
            f"--user-data-dir={profile}",
            "--remote-debugging-pipe",
            "about:blank",
        )
        # The protocol wants the descriptors 3 and 4, whatever numbers ours have.
        script = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", script, executable, *arguments],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer, self._number, self._session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        tab = next(each["targetId"] for each in targets if each["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        for method in WATCHED:
            self.call(method)

    def open(self, page: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a file as a screen of that width shows it, and wait until it is drawn."""
        self.events.clear()
        phone = width < 500
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="screen", features=[scheme])
        self.call("Page.navigate", url=page.resolve().as_uri())
        self._wait_for("Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def move(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    @property
    def complaints(self) -> list[str]:
        """Errors and warnings of the console and uncaught exceptions since the page was opened."""
        self.evaluate("1")  # what was on its way is here now
        found = []
        for event in self.events:
            method, said = event["method"], event["params"]
            if method == "Runtime.exceptionThrown":
                found.append(str(said["exceptionDetails"]))
            if method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
                found.append(str(said["args"]))
            if method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
                found.append(said["entry"]["text"])
        return found

    @property
    def requests(self) -> list[str]:
        """Addresses asked for since the page was opened."""
        self.evaluate("1")
        asked = (
            event["params"]["request"]["url"] for event in self.events if event["method"] == "Network.requestWillBeSent"
        )
        return list(asked)

    def picture(self, path: Path, *, whole: bool = False, top: int = 0, height: int | None = None) -> None:
        """A PNG of what is shown, of the whole page, or of `height` of it from `top` on."""
        clip: dict[str, Any] = {}
        if whole or height:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            area = {"x": 0, "y": top, "width": size["width"], "height": height or size["height"], "scale": 1}
            clip = {"clip": area, "captureBeyondViewport": True}
        data = self.call("Page.captureScreenshot", format="png", **clip)["data"]
        path.write_bytes(base64.b64decode(data))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol and its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]

    def close(self) -> None:
        for descriptor in (self._write, self._read):
            os.close(descriptor)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _wait_for(self, method: str) -> None:
        while not any(event["method"] == method for event in self.events):
            self._receive()

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(self._read, 1 << 20) if ready else b""
            if not part:
                raise AssertionError("the browser " + ("closed the pipe" if ready else "says nothing"))
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message


@contextlib.contextmanager
def a_browser(profile: Path) -> Iterator[Browser]:
    executable = find_browser()
    assert executable, "no browser is installed"
    with Browser(executable, profile) as browser:
        yield browser


def main() -> None:
    """Take one picture."""
    page, picture = map(Path, sys.argv[1:3])
    width = int(sys.argv[3]) if len(sys.argv) > 3 else 1280
    height, top = (int(sys.argv[i]) if len(sys.argv) > i else 0 for i in (4, 5))
    with a_browser(picture.with_suffix(".profile")) as browser:
        browser.open(page, width=width, dark="dark" in sys.argv)
        browser.picture(picture, whole=not height, top=top, height=height or None)
        print(browser.complaints, browser.requests)  # noqa: T201
    shutil.rmtree(picture.with_suffix(".profile"), ignore_errors=True)


if __name__ == "__main__":
    main()
