"""Footprint: the memory that a fresh process holds once its sessions have answered."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from apportion.files import first_line
from apportion.serving.runtime.engines import open_session

_STATUS = Path("/proc/self/status")
_CALLS = 3  # of each level: what a session keeps for the next call is there by then


def can_measure() -> bool:
    """Whether this system says how much memory a process holds."""
    return _STATUS.exists()


def measure_footprint(
    sessions: Sequence[tuple[Path, Sequence[float]]], *, rows: int = 8, tokens: int = 128
) -> int:
    """Resident bytes of a process that opened some ONNX files and ran each of their levels.

    A file that knows no budget has no levels, and is called as it is. The process imports what
    serving an exported folder imports, and no torch.
    """
    asked = {"sessions": [(str(path), list(levels)) for path, levels in sessions]}
    words = [sys.executable, "-m", __name__, json.dumps({**asked, "rows": rows, "tokens": tokens})]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"a process of its own failed: {first_line(Exception(done.stderr))}")
    return int(json.loads(done.stdout))


def resident_bytes(status: Path = _STATUS) -> int:
    """What this process holds now, as Linux tells it."""
    found = re.search(r"^VmRSS:\s+(\d+) kB$", status.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise ValueError(f"{status} has no VmRSS")
    return int(found[1]) * 1024


def _serve(sessions: Sequence[tuple[str, Sequence[float]]], rows: int, tokens: int) -> int:
    opened = [(open_session(Path(path), 1), levels) for path, levels in sessions]
    shape = rows, tokens
    for session, levels in opened:
        names = {one.name for one in session.get_inputs()}
        given = {
            "input_ids": np.ones(shape, np.int64),
            "attention_mask": np.ones(shape, np.int64),
            "token_type_ids": np.zeros(shape, np.int64),
        }
        given = {name: values for name, values in given.items() if name in names}
        budgets: Sequence[Mapping[str, object]] = [
            {"budget": np.array(level, np.float32)} for level in levels
        ]
        for budget in budgets or [{}]:
            for _ in range(_CALLS):
                session.run(None, {**given, **budget})
    return resident_bytes()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_serve(**json.loads(sys.argv[1]))))
