"""Parts of a batch job: only those that count, each row once, in order, in one file."""

from __future__ import annotations

import csv
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.serving.batch.parts import Answer, Layout, Parts, form_of, write_answers

LAYOUT = Layout(("no", "yes"), ("a.csv", "b.csv"), id=True, budget=True)


def answer(row: int) -> Answer:
    share = (row % 10) / 10
    label = "yes" if share > 0.5 else "no"
    return Answer(row, row % 2, row + 2, f"id {row}", label, 0.5, (1 - share, share))


def write_part(folder, name: str, rows, *, counts: bool = True) -> None:
    """A part as Ray leaves it: a file of answers, and the numbers of its rows."""
    for kind in ("answers", "done"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    columns = [vars(answer(row)) for row in rows]
    pq.write_table(pa.Table.from_pylist(columns), folder / "answers" / f"{name}-0.parquet")
    done = f"{name}.parquet" if counts else f"{name}.pending.parquet"
    pq.write_table(pa.table({"row": list(rows)}), folder / "done" / done)


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 60), size=st.integers(1, 9))
def test_parts_in_any_order_become_all_rows_in_theirs(tmp_path_factory, seed, rows, size):
    folder = tmp_path_factory.mktemp("job")
    draw = random.Random(seed)
    numbers = list(range(rows))
    # Neighbours mostly stay together, as blocks do; some rows of a stopped job lie elsewhere.
    numbers.sort(key=lambda number: number + draw.randrange(3 * size))
    for start in range(0, rows, size):
        write_part(folder, f"u_{draw.randrange(10**9)}_{start}", numbers[start : start + size])
    parts = Parts(folder)
    assert parts.rows() == rows
    assert [one.row for one in parts.merged()] == list(range(rows))


def test_a_part_whose_answers_are_damaged_or_gone_is_due_again(tmp_path):
    for number, name in enumerate(("whole", "cut", "gone", "other")):
        write_part(tmp_path, f"{name}_0", [2 * number, 2 * number + 1])
    cut = tmp_path / "answers" / "cut_0-0.parquet"
    cut.write_bytes(cut.read_bytes()[:-20])
    (tmp_path / "answers" / "gone_0-0.parquet").unlink()
    other = pa.Table.from_pylist([vars(answer(6))])
    pq.write_table(other, tmp_path / "answers" / "other_0-0.parquet")  # a row is missing
    parts = Parts(tmp_path)
    parts.mend()
    assert parts.numbers().tolist() == [0, 1] and parts.rows() == 2
    assert [one.row for one in parts.merged()] == [0, 1]


def test_a_part_that_was_not_confirmed_is_no_answer(tmp_path):
    write_part(tmp_path, "x_000000", [0, 1])
    write_part(tmp_path, "x_000001", [2, 3], counts=False)
    (tmp_path / "done" / "x_000001.pending.parquet").unlink()  # the answers alone are left
    write_part(tmp_path, "y_000000", [4], counts=False)
    parts = Parts(tmp_path)
    assert parts.rows() == 2
    assert [one.row for one in parts.merged()] == [0, 1]


def test_a_row_that_two_parts_hold_comes_once(tmp_path):
    write_part(tmp_path, "x_000000", [0, 1, 2])
    write_part(tmp_path, "y_000000", [1, 2, 3])
    assert [one.row for one in Parts(tmp_path).merged()] == [0, 1, 2, 3]


def test_a_job_without_parts_has_no_rows(tmp_path):
    assert Parts(tmp_path / "nothing").rows() == 0


def test_a_file_says_the_same_in_each_format(tmp_path):
    answers = [answer(row) for row in range(7)]
    for form in ("csv", "jsonl", "parquet"):
        write_answers(answers, tmp_path / f"out.{form}", layout=LAYOUT)
    with (tmp_path / "out.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    columns = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert list(table[0]) == ["file", "line", "id", "label", "p(no)", "p(yes)", "budget"]
    assert list(columns[0]) == list(table[0])
    for one, row, line, column in zip(answers, table, lines, columns, strict=True):
        assert (row["file"], int(row["line"]), row["id"]) == (
            LAYOUT.shards[one.shard],
            one.line,
            one.id,
        )
        assert row["label"] == line["label"] == column["label"] == one.label
        assert line["probabilities"]["yes"] == pytest.approx(one.probabilities[1])
        assert column["p(yes)"] == pytest.approx(one.probabilities[1])
        assert float(row["p(yes)"]) == pytest.approx(one.probabilities[1])


def test_one_file_of_texts_needs_no_column_with_its_name():
    assert Layout(("no", "yes"), ("a.csv",)).names == ["line", "label", "p(no)", "p(yes)"]


def test_a_name_that_says_no_format_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"\.csv, \.jsonl or \.parquet, not as 'labels.txt'"):
        form_of(tmp_path / "labels.txt")


def test_an_error_while_answers_are_written_leaves_no_file(tmp_path):
    def broken():
        yield answer(0)
        raise OSError("3 of 4 rows have no answer")

    with pytest.raises(OSError, match="3 of 4"):
        write_answers(broken(), tmp_path / "out.csv", layout=LAYOUT)
    assert list(tmp_path.iterdir()) == []
