"""Serves an exported folder, and asks it for answers within some milliseconds.

    python examples/serve_with_a_deadline.py runs/mine/onnx "They won the final." --within-ms 20 5

The server runs in a process of its own and is ended again. Writes the deadline, the label, the
budget that it allowed, and whether the answer was late, with tabs between them. A folder without
a forecast of this machine is calibrated first. Needs `pip install 'apportion[cli,onnx,serve]'`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server of this folder, which ends with the block."""
    command = [sys.executable, "-m", "apportion.cli", "serve", str(folder), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"serving .*(http://\S+:\d+)", line):
                yield found[1]
                return
        raise SystemExit(f"the server ended with code {process.wait()}")
    finally:
        process.terminate()  # it answers what waits, then ends
        process.communicate()


def classify(address: str, text: str, *, target_ms: float) -> dict[str, Any]:
    """The server's answer to one text that is due in so many milliseconds."""
    # The dearest of the usual tiers: it may have the whole budget, if the deadline allows.
    asked = {"input": text, "tier": "high-quality", "target_ms": target_ms}
    body = json.dumps(asked).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/v1/classify", body, headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        answer: dict[str, Any] = json.load(reply)
    return answer


def main() -> None:
    """Asks for the same text with each deadline."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a folder that `apportion export` wrote")
    parser.add_argument("text")
    parser.add_argument("--within-ms", type=float, nargs="+", default=[100.0, 10.0, 1.0])
    given = parser.parse_args()
    with served(given.folder) as address:
        for target in given.within_ms:
            answer = classify(address, given.text, target_ms=target)
            label, done = answer["data"][0]["label"], answer["apportion"]
            late = "late" if done["late"] else "in time"
            sys.stdout.write(f"{target:g} ms\t{label}\tbudget {done['budget']:g}\t{late}\n")


if __name__ == "__main__":
    main()
