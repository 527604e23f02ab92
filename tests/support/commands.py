"""Commands as people type them."""

from __future__ import annotations

import io
import sys

import pytest

from apportion import cli

TRAIN = "train --rows 64 --length 12 --epochs 1 --budgeted-epochs 1 --hidden 16 --heads 4"


def run(capsys, *words: str) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of a command."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["apportion", *words])
        # The console of the commands, whoever else has put his hand on stderr.
        rooms = [room for name, room in sys.modules.items() if name.startswith("apportion.cli")]
        for room in rooms:
            if hasattr(room, "err"):
                patch.setattr(room.err, "_file", said)
        with pytest.raises(SystemExit) as stop:
            cli.main()
    captured = capsys.readouterr()
    return int(stop.value.code or 0), captured.out, captured.err + said.getvalue()
