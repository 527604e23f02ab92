from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.data.marked import MARKER, Marked


@settings(max_examples=30, deadline=None)
@given(
    length=st.integers(8, 40),
    values=st.integers(2, 9),
    distractors=st.integers(0, 8),
    seed=st.integers(0, 1000),
)
def test_the_label_says_whether_the_values_after_the_markers_match(
    length, values, distractors, seed
):
    spec = Marked(length, values, 5, distractors, train=20, validation=4, test=4, seed=seed)
    train = spec.build().train
    for row, label in zip(train.inputs["input_ids"], train.labels, strict=True):
        first, second = (row == MARKER).nonzero().flatten().tolist()
        one, other = int(row[first + 1]), int(row[second + 1])
        assert 1 <= one <= values
        assert 1 <= other <= values
        assert (one == other) == bool(label)


def test_labels_are_balanced_in_every_split():
    task = Marked(length=16, train=101, validation=50, test=30).build()
    for split in (task.train, task.validation, task.test):
        assert abs(int(split.labels.sum()) * 2 - len(split)) <= 1


def test_no_sequence_is_in_two_splits_or_twice_in_one():
    task = Marked(length=8, values=2, fillers=1, train=400, validation=100, test=100).build()
    rows = torch.cat([s.inputs["input_ids"] for s in (task.train, task.validation, task.test)])
    assert len({tuple(row.tolist()) for row in rows}) == 600


def test_the_same_seed_gives_the_same_rows_and_another_seed_others():
    small = {"train": 50, "validation": 10, "test": 10}
    assert Marked(seed=3, **small).build().digest() == Marked(seed=3, **small).build().digest()
    assert Marked(seed=3, **small).build().digest() != Marked(seed=4, **small).build().digest()


def test_markers_can_stand_anywhere():
    ids = Marked(length=10, train=2000).build().train.inputs["input_ids"]
    seen = (ids == MARKER).any(dim=0).tolist()
    assert seen == [True] * 9 + [False]  # a value must follow the last one


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ({"length": 3}, "need length 4"),
        ({"values": 1}, "2 or more"),
        ({"train": 0}, "at least 2 rows"),
        ({"distractors": 99}, "distractors"),
        ({"fillers": 0}, "filler"),
    ],
)
def test_impossible_numbers_are_refused(numbers, says):
    with pytest.raises(ValueError, match=says):
        Marked(**numbers)


def test_too_few_different_sequences_are_refused():
    with pytest.raises(ValueError, match="too few different sequences"):
        Marked(length=4, values=2, fillers=1, distractors=0, train=40).build()
