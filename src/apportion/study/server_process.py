"""A server in a process of its own, for those who measure it: started, asked, signalled, ended."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_START = 300.0  # seconds that a server may take to start: it may have to calibrate itself


class ServerProcess:
    """A process that serves a folder on loopback, its address, and what it says on stderr."""

    def __init__(
        self,
        folder: Path,
        config: Path,
        *,
        command: Sequence[str] = (),
        quiet: bool = True,
        own_group: bool = False,
    ) -> None:
        words = list(command) or [sys.executable, "-m", "apportion.cli", "serve"]
        words += [str(folder), "--config", str(config), "--port", "0"]
        self.process = subprocess.Popen(
            words + ["--quiet"] * quiet,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=own_group,
        )
        self.said: list[str] = []
        assert self.process.stderr is not None
        self._reader = threading.Thread(
            target=self.said.extend, args=(self.process.stderr,), daemon=True
        )
        self._reader.start()
        try:
            self.url = self._address()
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _address(self) -> str:
        found = self.wait_for(r"serving .* at (http://\S+:\d+)/")
        if found is None:
            last = self.said[-1].strip() if self.said else "it said nothing"
            raise ValueError(f"the server did not start: {last}")
        return str(found[1])

    def wait_for(
        self, pattern: str, *, since: int = 0, seconds: float = _START
    ) -> re.Match[str] | None:
        """The first line after so many that matches; None if the process ends before."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            over = self.process.poll() is not None
            for line in self.said[since:]:
                if found := re.search(pattern, line):
                    return found
            if over:
                return None
            time.sleep(0.02)
        return None

    def ask(self, body: dict[str, Any] | None = None, *, path: str = "/v1/classify") -> Any:
        """What it answers; an error is a ValueError with its sentence."""
        data = None if body is None else json.dumps(body).encode()
        head = {"Content-Type": "application/json"}
        try:
            request = urllib.request.Request(self.url + path, data, head)
            with urllib.request.urlopen(request, timeout=120) as reply:
                found = reply.read()
        except urllib.error.HTTPError as error:
            raise ValueError(error.read().decode(errors="replace")) from None
        return found.decode() if path == "/metrics" else json.loads(found)

    def counted(self) -> dict[str, float]:
        """Rows by outcome, from its metrics."""
        found: dict[str, float] = {}
        for outcome, value in re.findall(
            r'^apportion_rows_total\{outcome="(\w+)",tier="[^"]*"\} (\S+)$',
            self.ask(path="/metrics"),
            flags=re.MULTILINE,
        ):
            found[outcome] = found.get(outcome, 0.0) + float(value)
        return found

    def send(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        self.process.send_signal(number)

    def end(self, seconds: float = 60.0, *, asked: bool = False) -> int:
        """Asks it to end, unless that was done before, and waits; the code that it ended with."""
        if self.process.poll() is None and not asked:  # a second signal would end it at once
            self.process.terminate()
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._reader.join(5)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code
