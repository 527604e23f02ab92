"""Records of batch jobs on Ray: how fast they are, and what they survive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from apportion.study.serving_records import ServedRecord


@dataclass(frozen=True, kw_only=True)
class RayThroughputRecord(ServedRecord):
    """One way to answer the texts of a file, in turns with the others."""

    kind: ClassVar[str] = "ray_throughput"
    arm: Annotated[str, "`one actor`, `two actors`, or `two commands` on half of the file each"]
    rows: Annotated[int, "rows of the file"]
    texts: Annotated[str, "digest of the file"]
    budget: Annotated[float, "the budget asked for"]
    rows_per_second: Annotated[float, "from the start of the job to its file, median"]
    two_actors_over_this: Annotated[float, "speed of two actors over this: median of the ratios"]
    low: Annotated[float, "lower end of that ratio's 95 % interval"]
    high: Annotated[float, "upper end of it"]
    repeats: Annotated[int, "turns"]
    same_labels: Annotated[bool, "whether all arms gave every row the same label"]


@dataclass(frozen=True, kw_only=True)
class RayKillRecord(ServedRecord):
    """A job of which a part was killed at a random moment, and that then went on to its end."""

    kind: ClassVar[str] = "ray_kill"
    round: Annotated[int, "number of the job"]
    seed: Annotated[int, "of the moments"]
    victim: Annotated[str, "`actor`, `driver` or `node`"]
    moment: Annotated[float, "seconds after the job's start"]
    undisturbed: Annotated[float, "seconds of a job that nobody disturbs"]
    killed: Annotated[bool, "whether there was something to kill at that moment"]
    rows: Annotated[int, "rows of the file in the end"]
    same: Annotated[bool, "whether it is the undisturbed job's: none twice, none lost, same labels"]
