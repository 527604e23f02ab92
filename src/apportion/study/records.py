"""Records: one measured point, one JSON line, with where it came from."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import datetime, timezone
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_type_hints

import torch

from apportion.files import check

KINDS: dict[str, type[Line]] = {}  # by the word that a line has for its kind
ABSENT: Any = object()  # of a field that a record does not have; null would say something else


@dataclass(frozen=True, kw_only=True)
class Line:
    """A value of some kind that is written as one line."""

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "kind" in vars(cls):
            KINDS[cls.kind] = cls

    def to_dict(self) -> dict[str, Any]:
        """The record as its line has it, without what it does not have."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"kind": self.kind, **{k: v for k, v in values.items() if v is not ABSENT}}


@dataclass(frozen=True, kw_only=True)
class Record(Line):
    """What every record of a stage says of where it belongs."""

    stage: Annotated[str, "key of the stage; leads to the provenance in its `stage` record"]
    method: Annotated[str, "as the experiment file calls it"]
    data_seed: Annotated[int, "seed of the rows"]
    seed: Annotated[int, "seed of the model and its training"]
    only: Annotated[float | None, "the one budget of a specialist"]


@dataclass(frozen=True, kw_only=True)
class TracedRecord(Record):
    """A record with its provenance: when, with what and on what it was measured."""

    time: Annotated[str, "when it was measured, UTC"]
    command: Annotated[str, "as it was typed; absolute paths without their folders"]
    python: Annotated[str, "version of Python"]
    versions: Annotated[dict[str, str], "apportion and the libraries under it"]
    machine: Annotated[dict[str, Any], "system, processor, cores, vector instructions"]


@dataclass(frozen=True, kw_only=True)
class StageRecord(TracedRecord):
    """The last record of a stage: without it, the others do not count as done."""

    kind: ClassVar[str] = "stage"
    measures: Annotated[str, "hash of what is measured on the stage"]
    parent: Annotated[str | None, "key of the stage that it started from"]
    teacher: Annotated[str | None, "key of the stage that taught it"]
    recipe: Annotated[dict[str, Any] | None, "the numbers it was trained by"]
    score: Annotated[str | None, "name of the source of its scores"]
    data: Annotated[str, "digest of the rows"]
    facts: Annotated[
        dict[str, Any], "about the rows: splits, duplicates, vocabulary, unlabelled texts"
    ] = ABSENT
    weights: Annotated[str, "digest of the weights; a baseline has none"] = ABSENT
    parameters: Annotated[int, "of the plain model, without gates"] = ABSENT
    training: Annotated[dict[str, Any] | None, "epochs, the best one, seconds, processes, frontier"]
    threads: Annotated[int, "torch threads"]
    seconds: Annotated[float, "the whole stage took, measuring included"] = ABSENT


@dataclass(frozen=True, kw_only=True)
class PointRecord(Record):
    """How a method does at a budget, in one form."""

    kind: ClassVar[str] = "point"
    form: Annotated[str, "`soft`, `hard`, `cut`, `dense` or `baseline`"]
    budget: Annotated[float, "the budget asked for"]
    split: Annotated[str, "always `test`"]
    rows: Annotated[int, "rows in the split"]
    accuracy: Annotated[float, "share of the rows that are classified right"]
    loss: Annotated[float, "mean cross-entropy"]
    cost: Annotated[float, "share of the units' compute that stays on"]
    ece: Annotated[float, "expected calibration error, 15 bins of equal width"] = ABSENT
    agreement: Annotated[float, "share of the rows that get the dense model's class"] = ABSENT
    chosen: Annotated[dict[str, Any], "a baseline's numbers, chosen on validation rows"] = ABSENT


@dataclass(frozen=True, kw_only=True)
class ScoresRecord(Record):
    """The scores of a stage's units, and what it took to get them and to repair the model."""

    kind: ClassVar[str] = "scores"
    scores: Annotated[list[float], "one per unit"]
    passes: Annotated[int, "passes over the rows, each with one unit switched off"] = ABSENT
    rows: Annotated[int, "rows that a gradient was taken over"] = ABSENT
    seconds: Annotated[float, "scoring took"] = ABSENT
    share_of_passes: Annotated[float, "time, over that of whole passes in the same batches"] = (
        ABSENT
    )
    share_of_padded_passes: Annotated[float, "time, over that of whole passes with padded rows"] = (
        ABSENT
    )
    share_of_whole_passes: Annotated[float, "time, over that of whole passes, in older records"] = (
        ABSENT
    )
    search_rows: Annotated[int, "rows that the search measured divergences on"] = ABSENT
    search_passes: Annotated[int, "of a row through the whole model, or as much work"] = ABSENT
    search_kept: Annotated[dict[str, list[int]], "units of each site, by budget"] = ABSENT
    search_seconds: Annotated[float, "the search took"] = ABSENT
    repair_rows: Annotated[int, "rows that the repair was fitted to"] = ABSENT
    repair_held_out: Annotated[int, "rows that decided how far to trust the fit"] = ABSENT
    repair_weighting: Annotated[
        list[float] | None, "(ε, γ) chosen on them; null if the fit was not taken"
    ] = ABSENT
    repair_share: Annotated[float, "share of the fit that was taken"] = ABSENT
    repair_ridges: Annotated[list[float], "λ, one per site"] = ABSENT
    repair_seconds: Annotated[float, "the repair took"] = ABSENT
    tuned: Annotated[dict[str, float], "rows, seconds, share; Σ √KL before and after"] = ABSENT
    vouched: Annotated[
        dict[str, Any],
        "other texts: how many, the agreement asked for, from which budget on it holds, and by "
        "budget the share answered as the whole model with its 95 % lower bound",
    ] = ABSENT


@dataclass(frozen=True, kw_only=True)
class GatesRecord(Record):
    """The gates at a budget."""

    kind: ClassVar[str] = "gates"
    budget: Annotated[float, "the budget asked for"]
    z: Annotated[list[float], "z(B), one per unit"]
    kept: Annotated[dict[str, Any], "units in their top k, by kind and layer"]


@dataclass(frozen=True, kw_only=True)
class MonotoneRecord(Record):
    """The verdict on a sweep."""

    kind: ClassVar[str] = "monotone"
    monotone: Annotated[bool, "whether more budget never costs less, in any form"]


@dataclass(frozen=True, kw_only=True)
class LatencyRecord(TracedRecord):
    """How long a model takes at a budget, in one form, beside the dense one."""

    kind: ClassVar[str] = "latency"
    form: Annotated[str, "`dense`, `fused`, `soft`, `hard`, `skip` or `cut`"]
    budget: Annotated[float, "the budget asked for"]
    arm: Annotated[str, "form and budget"]
    protocol: Annotated[str, "how texts were batched: `padded`, `grouped`, `single` or `short`"] = (
        ABSENT
    )
    rows: Annotated[int, "rows in all calls of a repeat"] = ABSENT
    batch: Annotated[int, "rows in the largest call"]
    length: Annotated[int, "tokens in the longest row, padding included"]
    tokens: Annotated[float, "mean tokens per row, padding included"] = ABSENT
    runtime: Annotated[str, "what ran the model"]
    threads: Annotated[int, "torch threads"]
    repeats: Annotated[int, "repeats behind each median"]
    device: Annotated[str, "type of the device, if not the CPU"] = ABSENT
    device_name: Annotated[str, "what that device calls itself"] = ABSENT
    macs: Annotated[int, "multiply-accumulates per row"]
    bound: Annotated[float, "speed-up that multiply-accumulates let expect, an estimate"]
    removed: Annotated[dict[str, float], "shares of the compute that a cut model lacks"] = ABSENT
    median_ms: Annotated[float, "milliseconds for all calls of a repeat, median"]
    speedup: Annotated[float, "over the dense model: median of the paired ratios"]
    low: Annotated[float, "lower end of the speed-up's 95 % interval"]
    high: Annotated[float, "upper end of it"]
    of_medians: Annotated[float, "the dense model's median over this one's"] = ABSENT
    over_fused: Annotated[
        dict[str, float], "the four numbers above, over the dense model with fused sums"
    ] = ABSENT


@dataclass(frozen=True, kw_only=True)
class SwitchingRecord(TracedRecord):
    """What it takes to change the budget of a nested model, in time and in memory."""

    kind: ClassVar[str] = "switching"
    budgets: Annotated[list[float], "the budgets that it switched between"]
    switch_us: Annotated[float, "microseconds to a budget that was asked for before, median"]
    slowest_us: Annotated[float, "the slowest of those"]
    first_ms: Annotated[float, "milliseconds to a budget that was never asked for"]
    extra_bytes: Annotated[int, "bytes of tensors that the whole model does not hold"]
    object_bytes: Annotated[int, "bytes of the modules that hold the views"]
    whole_bytes: Annotated[int, "bytes of the whole model's tensors"]


@dataclass(frozen=True, kw_only=True)
class ThroughputRecord(TracedRecord):
    """Rows a second from text to label, and of the bare model on the same batches."""

    kind: ClassVar[str] = "throughput"
    budget: Annotated[float, "the budget asked for"]
    rows: Annotated[int, "rows that were predicted"]
    batch: Annotated[int, "rows per call"]
    bare: Annotated[float, "rows a second of the model, on batches encoded before"]
    predict: Annotated[float, "rows a second from one CSV file to another"]
    share: Annotated[float, "median of the paired ratios of the two"]
    low: Annotated[float, "lower end of the share's 95 % interval"]
    high: Annotated[float, "upper end of it"]
    repeats: Annotated[int, "repeats behind each median"]
    threads: Annotated[int, "torch threads; encoding has one more"]
    encoding: Annotated[str, "how texts were encoded"] = ABSENT


@dataclass(frozen=True, kw_only=True)
class ForecastRecord(TracedRecord):
    """A forecast beside what calls took. Of a folder: `stage` is the digest of its weights."""

    kind: ClassVar[str] = "forecast"
    target_ms: Annotated[float, "milliseconds that a call was to end within"]
    rows: Annotated[int, "rows of a call"]
    length: Annotated[int, "tokens of a row"]
    level: Annotated[float, "the highest level that was forecast to fit"]
    forecast_ms: Annotated[float, "milliseconds that were forecast for it"]
    median_ms: Annotated[float, "milliseconds that calls took, median"]
    p95_ms: Annotated[float, "milliseconds that 95 % of them stayed below"]
    error: Annotated[float, "the forecast over that median, less 1"]
    within: Annotated[float, "share of the calls that ended within the target"]
    margin: Annotated[float, "share that a level needs above its forecast to count as fitting"]
    repeats: Annotated[int, "calls behind each number"]
    threads: Annotated[int, "threads of the runtime"]
    runtime: Annotated[str, "what ran the model"]
    precision: Annotated[str, "`float32` or `int8`"]


@dataclass(frozen=True, kw_only=True)
class TimingRecord(TracedRecord):
    """The last record of a stage's timing."""

    kind: ClassVar[str] = "timing"
    seconds: Annotated[float, "the timing took"]


def record_of(line: Mapping[str, Any]) -> Line:
    """The record that a line holds; an unknown kind or field is an error that names it."""
    kind = KINDS.get(line.get("kind", ""))
    if kind is None:
        raise ValueError(f"a record is of {', '.join(KINDS)}, not of {line.get('kind')!r}")
    values = {name: value for name, value in line.items() if name != "kind"}
    check(f"a record of {kind.kind}", values, get_type_hints(kind))
    missing = {field.name for field in fields(kind) if field.default is MISSING} - set(values)
    if missing:
        raise ValueError(f"a record of {kind.kind} needs {', '.join(sorted(missing))}")
    return kind(**values)


def append(path: Path, *records: Mapping[str, Any]) -> None:
    """Adds records as the last lines of a file, in one durable write."""
    line = "".join(json.dumps(r, sort_keys=True, allow_nan=False) + "\n" for r in records)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        # A kill in the middle of an append leaves half a line: close it, so that only it is lost.
        if file.tell() and not _ends_with_newline(file):
            line = "\n" + line
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a file, oldest first; half-written lines are left out."""
    if not path.exists():
        return []
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8, so it holds no records: {error}") from None
    records = []
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def provenance(**more: Any) -> dict[str, Any]:
    """When, with what and on what a number was measured."""
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(map(_without_folder, sys.argv)),
        **environment(),
        **more,
    }


_PACKAGES = ("apportion", "torch", "accelerate", "tokenizers", "transformers")


@lru_cache(maxsize=1)
def environment() -> dict[str, Any]:
    """The versions and the machine, without anything that names its owner."""
    return {
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "machine": {
            "system": platform.system(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "capability": torch.backends.cpu.get_cpu_capability(),
        },
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, flags=re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()


def _without_folder(word: str) -> str:
    """A word of the command; of an absolute path only the name, since it says who ran it."""
    option, equals, value = word.rpartition("=")
    return option + equals + Path(value).name if Path(value).is_absolute() else word


def _ends_with_newline(file: Any) -> bool:
    file.seek(-1, os.SEEK_END)
    return bool(file.read(1) == b"\n")
