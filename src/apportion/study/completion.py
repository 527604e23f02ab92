"""Completion: whether a stage's records are there, made by today's arithmetic or an older one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from apportion.study.stages import VERSIONS, Stage


def is_done(stage: Stage, records: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a stage's records are all there."""
    return any(
        (r.get("kind"), r.get("stage"), r.get("measures")) == ("stage", stage.key, stage.measures)
        for r in records
    )


def was_done(stage: Stage, records: Iterable[Mapping[str, Any]]) -> bool:
    """Whether an earlier version made a stage that is now due again."""
    keys = {record["stage"] for record in records if record.get("kind") == "stage"}
    earlier = (stage.as_made_by(version).key for version in range(1, max(VERSIONS.values())))
    return stage.key not in keys and any(key in keys for key in earlier)
