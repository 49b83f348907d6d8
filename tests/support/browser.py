"""A real headless Chromium, spoken to over a pipe: pages as a person sees them.

The DevTools protocol over file descriptors 3 and 4 of the browser needs no port and no client
library.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.environments import Unavailable

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ANSWER_S = 60.0


def chromium() -> str:
    """The browser's program: ``$CHROMIUM``, or the first of the usual names on PATH.

    Raises:
        Unavailable: there is none.
    """
    given = os.environ.get("CHROMIUM")
    for name in (given,) if given else NAMES:
        found = shutil.which(name)
        if found:
            return found
    raise Unavailable(
        f"no Chromium for the page tests ({given or ', '.join(NAMES)} not found): install one, "
        "e.g. apt-get install -y --no-install-recommends chromium, or set CHROMIUM to its program"
    )


def set_up() -> None:
    """Installs Debian's Chromium where there is none and this may be done.

    Raises:
        Unavailable: there is none, and root and apt-get are not both here.
    """
    try:
        chromium()
    except Unavailable:
        if os.environ.get("CHROMIUM") or os.geteuid() or shutil.which("apt-get") is None:
            raise
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for words in (("update",), ("install", "-y", "--no-install-recommends", "chromium")):
            command = ["apt-get", "-q", *words]
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise Unavailable(f"{' '.join(command)}: {done.stderr.strip()[-500:]}") from None
        chromium()


class Page:
    """One open page.

    Attributes:
        requests: every address that it asked for, its own first.
        complaints: what the browser logged: errors, and what the page's policy forbade.
    """

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        self.requests: list[str] = []
        self.complaints: list[str] = []

    def ask(self, method: str, **parameters: Any) -> Any:
        return self._browser.ask(method, self._session, **parameters)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, by JSON; the page's own scripts stay off."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def screenshot(self, target: Path, *, whole: bool = True) -> None:
        """Writes the whole page, however long, as PNG; or only what is seen without scrolling."""
        found = self.ask("Page.captureScreenshot", captureBeyondViewport=whole)
        target.write_bytes(base64.b64decode(found["data"]))

    def press_enter(self) -> None:
        """Enter, on what has the focus."""
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
        self.ask("Input.dispatchKeyEvent", type="keyDown", text="\r", **key)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **key)


class Browser:
    """A running Chromium; see `browser`."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._buffer = b""
        self._number = 0
        self._pages: dict[str, Page] = {}
        self._loaded: set[str] = set()

    def ask(self, method: str, session: str | None = None, /, **parameters: Any) -> Any:
        self._number += 1
        number = self._number
        request: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            request["sessionId"] = session
        data = json.dumps(request).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        while True:
            message = self._message()
            if message.get("id") == number:
                if "error" in message:
                    raise AssertionError(f"{method}: {message['error']}")
                return message["result"]

    def _message(self) -> dict[str, Any]:
        deadline = time.monotonic() + ANSWER_S
        while b"\0" not in self._buffer:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._answers], [], [], left)[0]:
                raise RuntimeError(f"Chromium did not answer within {ANSWER_S:.0f} s")
            data = os.read(self._answers, 1 << 20)
            if not data:
                raise RuntimeError("Chromium has ended")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        page = self._pages.get(message.get("sessionId", ""))
        if page is None:
            return
        method, values = message.get("method"), message.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded.add(message["sessionId"])
        elif method == "Network.requestWillBeSent":
            page.requests.append(values["request"]["url"])
        elif method == "Log.entryAdded":
            page.complaints.append(values["entry"]["text"])

    def open(self, path: Path, *, dark: bool = False, width: int = 1280, height: int = 900) -> Page:
        """Opens a file of this machine, with scripts off.

        Args:
            dark: whether the reader's system asks for dark pages.
        """
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.ask("Emulation.setEmulatedMedia", features=[scheme])
        page.ask("Emulation.setScriptExecutionDisabled", value=True)
        page.ask("Emulation.setFocusEmulationEnabled", enabled=True)
        page.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        for domain in ("Page", "Network", "Log"):
            page.ask(f"{domain}.enable")
        page.ask("Page.navigate", url=path.resolve().as_uri())
        while session not in self._loaded:
            self._message()
        return page


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A headless Chromium, until left.

    Raises:
        Unavailable: no Chromium is installed.
    """
    program = chromium()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = [
            *("--headless=new", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
            # The sandbox refuses to run as root, and CI containers have nobody else.
            *("--no-sandbox", "--disable-dev-shm-usage", "--remote-debugging-pipe"),
            # A page that asks for anything must fail here as it would without a network.
            *("--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={profile}"),
        ]
        its_commands, commands = os.pipe()
        answers, its_answers = os.pipe()
        # Out of the way of 3 and 4, which the browser wants.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 100) for fd in (its_commands, its_answers)]

        def place() -> None:
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        with (Path(profile) / "log").open("wb") as log:
            process = subprocess.Popen(
                [program, *options, "about:blank"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(3, 4),
                preexec_fn=place,  # noqa: PLW1509 - dup2 only
            )
        for fd in (*high, its_commands, its_answers):
            os.close(fd)
        running = Browser(commands, answers)
        try:
            yield running
            running.ask("Browser.close")
        finally:
            os.close(commands)
            os.close(answers)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


if __name__ == "__main__":
    try:
        set_up()
    except Unavailable as error:
        sys.exit(str(error))
