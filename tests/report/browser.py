"""A real browser for tests: headless Chromium over its DevTools protocol, on a pair of pipes."""

from __future__ import annotations

import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HOW_TO_INSTALL = "no chromium here; on Debian: apt-get install chromium"
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_COMPLAINTS = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
_SECONDS = 30


def find_browser() -> str | None:
    """Its command, or None where none is installed."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


class Browser:
    """One tab. `complaints` are all messages of its console, and all exceptions, since it was opened."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write, self._session = read, write, ""
        self._ids, self._rest = itertools.count(1), b""
        self._events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    @property
    def complaints(self) -> list[dict[str, Any]]:
        return [event["params"] for event in self._events if event["method"] in _COMPLAINTS]

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """A command of the protocol, and what it answers."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != number:
            self._events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, page: Path, width: int, height: int = 900, scheme: str = "light", media: str = "screen") -> None:
        """Load a page of a folder in a window, or on paper (`print`), of a width, and wait for it."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        loaded = len(self._events)
        self.call("Page.navigate", url=page.absolute().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events[loaded:]):
            self._events.append(self._next())

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def mouse(self, selector: str, click: bool = False) -> None:
        """Move the pointer to the middle of an element, and click there if asked to."""
        box = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(f"{box}.scrollIntoView({{block: 'center', inline: 'center'}})")
        x, y = self.evaluate(
            f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])({box}.getBoundingClientRect())"
        )
        for kind in ("mouseMoved", *(("mousePressed", "mouseReleased") if click else ())):
            button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def press(self, key: str) -> None:
        """A key, as it comes from a keyboard: to whatever has the focus."""
        code = {"Enter": 13, "Tab": 9}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + _SECONDS
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            more = os.read(self._read, 1 << 20)
            assert more, "the browser has ended"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


@contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own in a folder; it reads from descriptor 3 and answers on 4."""
    to_browser, from_browser = os.pipe(), os.pipe()
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    options += ["--remote-debugging-pipe", f"--user-data-dir={folder}"]
    shell = 'exec "$@" 3<&"$0" 4>&"$ANSWERS"'
    process = subprocess.Popen(
        ["bash", "-c", shell, str(to_browser[0]), str(find_browser()), *options],
        env={**os.environ, "ANSWERS": str(from_browser[1])},
        pass_fds=(to_browser[0], from_browser[1]),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_browser[0])
    os.close(from_browser[1])
    try:
        yield Browser(from_browser[0], to_browser[1])
    finally:
        process.terminate()
        process.wait(_SECONDS)
        os.close(to_browser[1])
        os.close(from_browser[0])
