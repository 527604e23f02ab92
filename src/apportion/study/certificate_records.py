"""Records of certificates: what was promised, what was true, and how fast it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from apportion.study.records import ABSENT, TracedRecord


@dataclass(frozen=True, kw_only=True)
class CertifiedRecord(TracedRecord):
    """A certificate on one draw of a data set's rows. `stage` is the digest of the weights."""

    kind: ClassVar[str] = "certified"
    data: Annotated[str, "name of the data set"]
    runtime: Annotated[str, "what ran the model"]
    precision: Annotated[str, "`float32` or `int8`"]
    threads: Annotated[int, "threads of the runtime"]
    batch: Annotated[int, "rows per call"]
    disagree_at_most: Annotated[float, "share of the answers that may differ, as promised"]
    confidence: Annotated[float, "of the promise"]
    tuned_rows: Annotated[int, "rows that the path of thresholds was found on"]
    rows: Annotated[int, "rows that tested it"]
    disagreements: Annotated[int, "of them"]
    bound: Annotated[float, "exact upper bound for the kept thresholds taken alone"]
    levels: Annotated[list[float], "budgets of the cascade, the last of them whole"]
    thresholds: Annotated[list[float | None], "margin needed at each of them but the last"]
    ends: Annotated[list[float], "share of the testing rows that end at each"]
    cost: Annotated[float, "mean share of the units' compute, of all levels that a text took"]
    test_rows: Annotated[int, "other rows, which say how often answers really differ"]
    test_disagreements: Annotated[int, "of them"]
    timed_rows: Annotated[int, "rows behind the speed, from text to label"]
    speed: Annotated[float, "over the whole model of the same runtime: median of paired ratios"]
    low: Annotated[float, "lower end of the speed's 95 % interval"]
    high: Annotated[float, "upper end of it"]
    rows_per_second: Annotated[float, "of the cascade"]
    whole_rows_per_second: Annotated[float, "of the whole model"]
    over_eager: Annotated[float, "speed over the dense model in torch, eager"] = ABSENT
    repeats: Annotated[int, "repeats behind each median"]
    seconds: Annotated[float, "that tuning and testing rows took at all levels, by their share"]


@dataclass(frozen=True, kw_only=True)
class ValidityRecord(TracedRecord):
    """How often promises are broken where the answers to a population are known.

    `stage` is a digest of the runtime and the texts.
    """

    kind: ClassVar[str] = "validity"
    data: Annotated[str, "name of the data set"]
    run_by: Annotated[str, "`torch`, or `int8` for the exported file"]
    disagree_at_most: Annotated[float, "share of the answers that may differ, as promised"]
    population: Annotated[int, "rows whose answers are known at all levels"]
    draws: Annotated[int, "of rows that tune and test, and of files"]
    boldest: Annotated[float, "share that differs at the end of the path that was tested"]
    broken: Annotated[float, "share of the promises made with 95 % confidence that are not kept"]
    broken_at_half: Annotated[float, "likewise with 50 %: a check that can fail"]
    file_rows: Annotated[int, "of a file that is drawn from the population"]
    files_broken: Annotated[float, "share of the files that have more that differ than was said"]
    files_certified: Annotated[float, "share of the files that were not answered whole"]


@dataclass(frozen=True, kw_only=True)
class FilePromisesRecord(TracedRecord):
    """Promises about files, made by the command, beside the truth. `stage` is the weights'."""

    kind: ClassVar[str] = "file_promises"
    data: Annotated[str, "name of the data set"]
    run_by: Annotated[str, "precision of the model: `float32` or `int8`"]
    disagree_at_most: Annotated[float, "share of the answers that may differ, as promised"]
    files: Annotated[int, "that were drawn from the texts and answered"]
    file_rows: Annotated[int, "of each"]
    kept: Annotated[int, "files of which no more answers differ than was said"]
    certified: Annotated[int, "files that were not answered whole"]
    most: Annotated[float, "share that differs in the worst of them"]
    early: Annotated[float, "share of the rows that ended below the whole budget"]


@dataclass(frozen=True, kw_only=True)
class WindowsRecord(TracedRecord):
    """Documents read window by window until sure. `stage` is the digest of the weights."""

    kind: ClassVar[str] = "windows"
    data: Annotated[str, "name of the data set"]
    runtime: Annotated[str, "what ran the model"]
    precision: Annotated[str, "`float32` or `int8`"]
    budget: Annotated[float, "at which every window was read"]
    least: Annotated[int, "tokens that a document has at least"]
    window: Annotated[int, "tokens of a window"]
    overlap: Annotated[int, "tokens that a window shares with the one before"]
    longest: Annotated[int, "tokens of a document that are read at most"]
    disagree_at_most: Annotated[float, "share of the answers that may differ from all windows'"]
    confidence: Annotated[float, "of the promise"]
    tuned_rows: Annotated[int, "documents that thresholds were found on"]
    rows: Annotated[int, "documents that tested them"]
    disagreements: Annotated[int, "of them"]
    bound: Annotated[float, "exact upper bound for the kept threshold taken alone"]
    threshold: Annotated[float | None, "margin at which reading ends; null reads everything"]
    test_rows: Annotated[int, "other documents, which say how often answers really differ"]
    test_disagreements: Annotated[int, "of them"]
    windows: Annotated[float, "of another document, on average"]
    windows_read: Annotated[float, "of these, until sure"]


@dataclass(frozen=True, kw_only=True)
class DriftRecord(TracedRecord):
    """What the alarm does on simulated streams, before and after the risk changes."""

    kind: ClassVar[str] = "drift"
    disagree_at_most: Annotated[float, "the promised share"]
    delta: Annotated[float, "chance of a false alarm that is allowed, over the whole stream"]
    streams: Annotated[int, "streams that were simulated"]
    risk: Annotated[float, "share of the answers that differ before the drift"]
    audits: Annotated[int, "audited rows before the drift"]
    false_alarms: Annotated[float, "share of the streams that rang before it"]
    drifted: Annotated[float, "share of the answers that differ after it"] = ABSENT
    later: Annotated[int, "audited rows after it"] = ABSENT
    found: Annotated[float, "share of the other streams that rang after it"] = ABSENT
    median: Annotated[int, "audited rows from the drift to the alarm, median"] = ABSENT
    p90: Annotated[int, "audited rows by which 90 % of the streams have rung"] = ABSENT
