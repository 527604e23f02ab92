"""Texts for Ray Data: shards as a datasource, every row with a number that never changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from ray.data import DataContext, Datasource, ReadTask
from ray.data.block import BlockMetadata
from ray.data.checkpoint.checkpoint_filter import CheckpointManager

from apportion.data.rows import Row
from apportion.data.shards import Columns, Shard, read_shard

SHARD_BITS = 40  # a row's number is its shard's, and its place in that shard
_ROWS = 256  # put into a table at a time
SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("shard", pa.int64()),
        ("line", pa.int64()),
        ("id", pa.string()),
        ("tag", pa.string()),
        ("text", pa.string()),
        ("problem", pa.string()),  # in place of a text: why the row could not be read
    ]
)


class Texts(Datasource):
    """The rows of shards in order, without those that are done; small files share a task."""

    def __init__(
        self, shards: Sequence[Shard], columns: Columns, *, group: int, done: NDArray[np.int64]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.columns, self.done = columns, np.sort(done)
        self.groups: list[list[tuple[int, Shard]]] = []
        size = 0
        for number, shard in enumerate(shards):
            if not self.groups or size >= group:
                self.groups.append([])
                size = 0
            self.groups[-1].append((number, shard))
            size += shard.path.stat().st_size

    def estimate_inmemory_data_size(self) -> int:
        """The bytes of all files."""
        return sum(shard.path.stat().st_size for group in self.groups for _, shard in group)

    def get_read_tasks(
        self,
        parallelism: int,
        per_task_row_limit: int | None = None,
        data_context: DataContext | None = None,
    ) -> list[ReadTask]:
        """A task per group of files, whatever parallelism is asked for: reading is little work."""
        return [
            ReadTask(
                partial(_tables, group, self.columns, self._done_of(group)),
                BlockMetadata(
                    num_rows=sum(shard.rows for _, shard in group),
                    size_bytes=None,
                    input_files=tuple(str(shard.path) for _, shard in group),
                    exec_stats=None,
                ),
                schema=SCHEMA,
                per_task_row_limit=per_task_row_limit,
            )
            for group in self.groups
        ]

    def _done_of(self, group: Sequence[tuple[int, Shard]]) -> NDArray[np.int64]:
        first, last = group[0][0] << SHARD_BITS, (group[-1][0] + 1) << SHARD_BITS
        low, high = np.searchsorted(self.done, [first, last])
        return self.done[low:high]


def _tables(
    group: Sequence[tuple[int, Shard]], columns: Columns, done: NDArray[np.int64]
) -> Iterator[pa.Table]:
    skipped = set(done.tolist())
    for number, shard in group:
        rows = enumerate(_values(number, shard, columns), start=number << SHARD_BITS)
        left = ({"row": place, **row} for place, row in rows if place not in skipped)
        while some := list(islice(left, _ROWS)):
            yield pa.Table.from_pylist(some, schema=SCHEMA)


class Noted(CheckpointManager):
    """Leaves it to `Texts` to skip what is done: Ray would take an actor and a CPU to filter it."""

    def load_checkpoint(self, *where: Any, **more: Any) -> tuple[None, int]:
        """Nothing that Ray would have to filter."""
        return None, 0


def _values(number: int, shard: Shard, columns: Columns) -> Iterator[dict[str, Any]]:
    for row in read_shard(shard, columns):
        values: dict[str, Any] = {"shard": number, "line": row.line}
        if isinstance(row, Row):
            yield values | {"text": row.text, "id": row.id, "tag": row.tag}
        else:
            yield values | {"problem": row.problem}
