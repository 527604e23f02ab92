"""Labels texts while it obeys a governor: the busier, hotter or emptier the machine, the less.

    python examples/governed_prediction.py runs/mine/onnx texts.txt --rules rules.toml

Reads a text a line, and writes label, probability and level, with tabs between them. What changes
the budget is said on stderr. Needs `pip install 'apportion[onnx,device]'`.
"""

from __future__ import annotations

import argparse
import sys
from itertools import islice
from pathlib import Path

import apportion


def main() -> None:
    """Predicts a few texts at a time, each time at the level that the governor allows now."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a folder that `apportion export` wrote")
    parser.add_argument("texts", type=Path, help="a file with a text a line")
    parser.add_argument("--rules", type=Path, help="the governor's table; the usual one without")
    parser.add_argument("--batch", type=int, default=16, help="texts between two questions to it")
    given = parser.parse_args()
    runtime = apportion.Runtime(given.folder)
    governor = apportion.Governor(given.rules)
    before = None
    with given.texts.open(encoding="utf-8") as lines:
        while texts := [line.rstrip("\n") for line in islice(lines, given.batch)]:
            level = governor.level(runtime.levels)
            if level != before:
                why = "; ".join(governor.reasons) or "no rule holds"
                sys.stderr.write(f"level {level:g}: {why}\n")
                before = level
            for label, probability in runtime.predict(texts, budget=level):
                sys.stdout.write(f"{label}\t{probability:.4f}\t{level:g}\n")


if __name__ == "__main__":
    main()
