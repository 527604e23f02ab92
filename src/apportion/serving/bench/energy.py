"""Energy: joules per call, by the processor's own counters (Linux powercap, RAPL).

Machines that are virtual, or whose counters only root may read, have none: then there is no number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")
_PACKAGES = "intel-rapl:[0-9]*"  # AMD's counters have this name, too


def read_counters(root: Path = POWERCAP) -> dict[Path, int]:
    """Microjoules by processor; empty where they can't be read.

    Parts of a processor (`intel-rapl:0:0`) are counted in the whole, and left out.
    """
    found = {}
    for zone in sorted(root.glob(_PACKAGES)):
        if zone.name.count(":") != 1:
            continue
        try:
            found[zone] = int((zone / "energy_uj").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return {}  # a sum without one of the processors would be wrong
    return found


def joules_between(before: Mapping[Path, int], after: Mapping[Path, int]) -> float:
    """What was used between two readings; a counter that is full starts at zero again."""
    total = 0
    for zone, end in after.items():
        used = end - before[zone]
        if used < 0:
            used += int((zone / "max_energy_range_uj").read_text(encoding="ascii"))
        total += used
    return total / 1e6


def joules_per_call(
    call: Callable[[], object], *, seconds: float = 2.0, root: Path = POWERCAP
) -> float | None:
    """Joules of one call, everything else on the machine included; None without counters.

    The call is repeated for some seconds, since counters move a thousand times a second at most.
    """
    before = read_counters(root)
    if not before:
        return None
    calls, end = 0, time.perf_counter() + seconds
    while not calls or time.perf_counter() < end:
        call()
        calls += 1
    return joules_between(before, read_counters(root)) / calls
