"""Records of a comparison of runtimes: how fast, how right and how large each arm is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from apportion.study.records import ABSENT, Line


@dataclass(frozen=True, kw_only=True)
class ComparedRecord(Line):
    """What every record of a comparison says of where it belongs, with its provenance."""

    subject: Annotated[str, "what the checkpoint was trained on, as the comparison calls it"]
    weights: Annotated[str, "digest of the checkpoint's weights, as in its `stage` record"]
    time: Annotated[str, "when it was measured, UTC"]
    command: Annotated[str, "as it was typed; absolute paths without their folders"]
    python: Annotated[str, "version of Python"]
    versions: Annotated[dict[str, str], "apportion and the libraries under it"]
    machine: Annotated[dict[str, Any], "system, processor, cores, vector instructions"]


@dataclass(frozen=True, kw_only=True)
class PeerLatencyRecord(ComparedRecord):
    """How long one arm takes, timed in turns with all others."""

    kind: ClassVar[str] = "peer_latency"
    arm: Annotated[str, "way to run the checkpoint"]
    level: Annotated[float, "level of the arm; 1 where it knows no budget"]
    runtime: Annotated[str, "what ran it, with version and settings"]
    shape: Annotated[str, "rows x tokens of the one call, or `grouped`: real rows by length"]
    rows: Annotated[int, "rows in all calls of a repeat"]
    tokens: Annotated[float, "mean tokens per row, padding included"]
    threads: Annotated[int, "threads of each arm"]
    waiting: Annotated[str, "how torch's idle threads wait: `OMP_WAIT_POLICY`, or `default`"]
    repeats: Annotated[int, "repeats behind each median"]
    median_ms: Annotated[float, "milliseconds for all calls of a repeat, median"]
    over: Annotated[
        dict[str, Any],
        "speed-up over other arms: median of the paired ratios, and its 95 % interval",
    ]
    joules: Annotated[float, "per row, where the machine's counters can be read"] = ABSENT


@dataclass(frozen=True, kw_only=True)
class PeerAnswersRecord(ComparedRecord):
    """What one arm answers to the test rows."""

    kind: ClassVar[str] = "peer_answers"
    arm: Annotated[str, "way to run the checkpoint"]
    level: Annotated[float, "level of the arm; 1 where it knows no budget"]
    runtime: Annotated[str, "what ran it, with version and settings"]
    data: Annotated[str, "digest of the data's rows"]
    rows: Annotated[int, "test rows"]
    batch: Annotated[int, "rows per call"]
    accuracy: Annotated[float, "share of the rows that are classified right"]
    beside: Annotated[str, "arm that it has to answer like: at its level, or whole"]
    agreement: Annotated[float, "share of the rows that get the same label from that arm"]
    difference: Annotated[float, "largest difference of logits to that arm"]
    alone: Annotated[float, "int8: share of the rows with the same label alone as in a batch"] = (
        ABSENT
    )


@dataclass(frozen=True, kw_only=True)
class PeerMemoryRecord(ComparedRecord):
    """The memory of a fresh process that serves in one way, and its files."""

    kind: ClassVar[str] = "peer_memory"
    served: Annotated[str, "what the process has open"]
    sessions: Annotated[int, "sessions of ONNX Runtime"]
    levels: Annotated[int, "levels that it answers at"]
    file_bytes: Annotated[int, "bytes of the ONNX files"]
    resident_bytes: Annotated[int, "resident memory after calls at 8 x 128, every level"]


@dataclass(frozen=True, kw_only=True)
class PeerSwitchingRecord(ComparedRecord):
    """Calls that change the level each time, beside the same calls sorted by level."""

    kind: ClassVar[str] = "peer_switching"
    arm: Annotated[str, "way to run the checkpoint"]
    shape: Annotated[str, "rows x tokens of each call"]
    calls: Annotated[int, "calls in a repeat"]
    threads: Annotated[int, "threads of the arm"]
    repeats: Annotated[int, "repeats behind the median"]
    slower: Annotated[float, "time over that of sorted calls: median of the paired ratios"]
    low: Annotated[float, "lower end of its 95 % interval"]
    high: Annotated[float, "upper end of it"]


@dataclass(frozen=True, kw_only=True)
class PeerThroughputRecord(ComparedRecord):
    """Rows a second from one CSV file to another, beside the bare session."""

    kind: ClassVar[str] = "peer_throughput"
    arm: Annotated[str, "way to run the checkpoint"]
    level: Annotated[float, "level of the arm"]
    rows: Annotated[int, "rows that were predicted"]
    batch: Annotated[int, "rows per call"]
    bare: Annotated[float, "rows a second of the session, on batches encoded before"]
    predict: Annotated[float, "rows a second from one CSV file to another"]
    share: Annotated[float, "median of the paired ratios of the two"]
    low: Annotated[float, "lower end of the share's 95 % interval"]
    high: Annotated[float, "upper end of it"]
    repeats: Annotated[int, "repeats behind each median"]
    threads: Annotated[int, "threads of the arm; encoding has one more"]


@dataclass(frozen=True, kw_only=True)
class PeerLeftOutRecord(ComparedRecord):
    """An arm that could not be built."""

    kind: ClassVar[str] = "peer_left_out"
    arm: Annotated[str, "way to run the checkpoint"]
    reason: Annotated[str, "why"]
