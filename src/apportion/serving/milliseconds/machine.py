"""The machine: what its processor is, and how it does at the moment, as Linux tells it."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from apportion.extras import require

# Instructions that decide how fast a model runs, in the words of /proc/cpuinfo.
FLAGS = (
    *("avx", "avx2", "fma", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16"),
    *("amx_bf16", "amx_int8", "asimd", "asimddp", "i8mm", "bf16", "sve", "sve2"),
)
_NUMBERS = ("cpu family", "model", "stepping", "CPU implementer", "CPU part")


def processor(proc: Path = Path("/proc")) -> tuple[str, str]:
    """What the processor calls itself, and those of its instructions that matter for speed."""
    try:
        text = (proc / "cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine(), ""
    lines: dict[str, str] = dict(re.findall(r"^([^:\n\t]+?)\s*: *(.*)$", text, flags=re.MULTILINE))
    # Virtual machines hide the product behind one name: the numbers beside it tell more.
    named = [f"{name} {lines[name]}" for name in _NUMBERS if name in lines]
    flags = set(lines.get("flags", lines.get("Features", "")).split())
    name = lines.get("model name") or platform.machine()
    return ", ".join([name, *named]), " ".join(flag for flag in FLAGS if flag in flags)


def int8_target(proc: Path = Path("/proc")) -> str:
    """What int8 weights this machine computes with: products of 8 bits saturate without VNNI."""
    if platform.machine().lower() in ("aarch64", "arm64"):
        return "vnni"  # its dot products do not saturate
    _, flags = processor(proc)
    return "vnni" if "vnni" in flags else "any"


# What a governor may go by, and in which unit.
SIGNALS = {
    "pressure": "% of the time in which some task waited for a processor",
    "queue": "tasks per core that run or wait for a processor",
    "load": "load average of the last minute, per core",
    "busy": "% of the processors' time that was used",
    "battery": "% left; 100 while it is plugged in",
    "headroom": "°C to the nearest temperature limit",
}


class Machine:
    """Reads the state of this machine: `machine()` has a number for each signal that it tells.

    Pressure and busy are of the time since the reading before. What a machine does not tell is
    missing: a battery that it has not, pressure where the kernel keeps none.
    """

    def __init__(self, proc: Path = Path("/proc"), psutil: ModuleType | None = None) -> None:
        self._proc = proc
        self._psutil = psutil or require("psutil")
        self._cores = os.cpu_count() or 1
        self._waited: tuple[float, float] | None = None  # when it was read, seconds until then
        self._psutil.cpu_percent(None)  # the first answer means nothing

    def __call__(self) -> dict[str, float]:
        """The readings, by signal."""
        found = {
            "pressure": self._pressure(),
            "queue": self._queue(),
            "load": self._load(),
            "busy": float(self._psutil.cpu_percent(None)),
            "battery": self._battery(),
            "headroom": self._headroom(),
        }
        return {signal: value for signal, value in found.items() if value is not None}

    def _pressure(self) -> float | None:
        """By the counter, since the kernel's own averages lag by 10 s; the first time by those."""
        try:
            text = (self._proc / "pressure" / "cpu").read_text(encoding="utf-8")
        except OSError:
            return None
        line = re.search(r"^some avg10=([\d.]+) .*total=(\d+)$", text, flags=re.MULTILINE)
        if line is None:
            return None
        before, now = self._waited, (time.monotonic(), int(line[2]) / 1e6)
        self._waited = now
        if before is None or now[0] <= before[0]:
            return float(line[1])
        return min(100.0, max(0.0, 100.0 * (now[1] - before[1]) / (now[0] - before[0])))

    def _queue(self) -> float | None:
        try:
            text = (self._proc / "stat").read_text(encoding="utf-8")
        except OSError:
            return None
        running = re.search(r"^procs_running (\d+)$", text, flags=re.MULTILINE)
        # Whoever reads this is running, and not counted.
        return None if running is None else max(0, int(running[1]) - 1) / self._cores

    def _load(self) -> float | None:
        try:
            return float(self._psutil.getloadavg()[0]) / self._cores
        except (AttributeError, OSError):
            return None

    def _battery(self) -> float | None:
        sensor = getattr(self._psutil, "sensors_battery", lambda: None)()
        if sensor is None:
            return None
        return 100.0 if sensor.power_plugged else float(sensor.percent)

    def _headroom(self) -> float | None:
        """By the limit at which a sensor calls its temperature high, or else critical."""
        sensors: Mapping[str, Any] = getattr(self._psutil, "sensors_temperatures", dict)()
        left = [
            (one.high or one.critical) - one.current
            for group in sensors.values()
            for one in group
            if one.high or one.critical
        ]
        return float(min(left)) if left else None
