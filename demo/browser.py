"""A page in Chromium, controlled through its debugging pipe."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")

Part = tuple[int, int, int, int]  # Left, top, width and height, in pixels.

_PATIENCE_SECONDS = 120.0
_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--remote-debugging-pipe",
)


class Browser:
    """One page.

    Args:
        commands: the pipe to write to.
        answers: the pipe to read from.
    """

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = commands
        self._answers = answers
        self._read = b""
        self._number = 0
        self._session: dict[str, str] = {}
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}

    def open(self, url: str) -> None:
        self._call("Page.navigate", url=url)

    def text(self) -> str:
        """The text of the page."""
        return str(self.evaluate("document.body ? document.body.innerText : ''"))

    def wait_for(self, *words: str) -> None:
        """Waits until the page contains all of these texts."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while missing := [word for word in words if word not in self.text()]:
            assert time.monotonic() < deadline, f"no {missing} in: {self.text()}"
            time.sleep(0.3)

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def photograph(self, path: Path, part: Part) -> None:
        """Writes a part of the window as PNG."""
        clip = dict(zip(("x", "y", "width", "height"), part, strict=True)) | {"scale": 1}
        answer = self._call("Page.captureScreenshot", format="png", clip=clip)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _call(self, method: str, **params: object) -> Any:
        self._number += 1
        command = {"id": self._number, "method": method, "params": params, **self._session}
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._read:
            ready, _, _ = select.select([self._answers], [], [], _PATIENCE_SECONDS)
            assert ready, "Chromium does not answer"
            received = os.read(self._answers, 1 << 20)
            assert received, "Chromium ended"
            self._read += received
        message, _, self._read = self._read.partition(b"\0")
        return json.loads(message)


@contextmanager
def browsing(*, width: int, height: int) -> Iterator[Browser]:
    """Runs Chromium with one page while the block runs."""
    assert PROGRAM is not None
    with tempfile.TemporaryDirectory(
        prefix="pgque-browser-", ignore_cleanup_errors=True
    ) as profile:
        (its_commands, commands), (answers, its_answers) = os.pipe(), os.pipe()
        # Chromium reads commands from descriptor 3 and writes answers to 4.
        redirected = f'exec "$@" 3<&{its_commands} 4>&{its_answers}'
        size = f"--window-size={width},{height}"
        process = subprocess.Popen(
            [
                "bash",
                "-c",
                redirected,
                "bash",
                PROGRAM,
                *_OPTIONS,
                size,
                f"--user-data-dir={profile}",
            ],
            pass_fds=(its_commands, its_answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(its_commands)
        os.close(its_answers)
        try:
            yield Browser(commands, answers)
        finally:
            process.terminate()
            process.wait()
            os.close(commands)
            os.close(answers)
