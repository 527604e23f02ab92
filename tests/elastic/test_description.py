"""What a checkpoint says of itself in plain values, and the smaller one that a budget buys."""

from __future__ import annotations

import pytest

from apportion import Checkpoint, Elastic, load, save
from apportion.elastic.description import describe
from apportion.study.production import task_of_checkpoint


def test_a_checkpoint_without_gates_has_no_budgets(encoder):
    dense = Checkpoint(encoder)
    assert describe(dense)["budgets"] == [] and "form" not in describe(dense)
    for asked in (lambda: describe(dense, [0.5]), lambda: dense.cut(0.5), dense.require_elastic):
        with pytest.raises(ValueError, match="a dense checkpoint has no gates"):
            asked()


def test_a_description_has_the_units_of_the_budgets_that_are_asked_for(encoder):
    model = Elastic(encoder, length=12)
    (half,) = describe(Checkpoint(model), [0.5], floor=1)["budgets"]
    assert half["kept"] == model.allocation(0.5, floor=1).to_dict()
    assert [at["budget"] for at in describe(Checkpoint(model))["budgets"]] == [0.25, 0.5, 0.75, 1.0]


def test_a_cut_keeps_the_notes_that_are_true_of_it(encoder, tmp_path):
    measured = {"cost": 0.5, "accuracy": 0.9, "rows": 64}
    points = [{"budget": b, "form": f, **measured} for b in (0.5, 1.0) for f in ("soft", "hard")]
    whole = Checkpoint(Elastic(encoder, length=12), {"seed": 7, "measured": points})
    half = whole.cut(0.5)
    assert half.kept == whole.elastic.allocation(0.5)
    assert half.notes["measured"] == [points[1]]
    assert (half.notes["seed"], half.notes["cut"]["budget"]) == (7, 0.5)
    assert whole.cut(0.5, floor=1).notes["measured"] == []  # it was measured with other units
    assert whole.notes["measured"] == points
    save(half, tmp_path / "half")
    assert load(tmp_path / "half").kind == "cut"


def test_a_checkpoint_leads_to_its_task_and_to_no_other(encoder, task):
    notes = {"task": dict(task.spec), "data": task.digest()}
    assert task_of_checkpoint(Checkpoint(encoder, notes)).digest() == task.digest()
    for wrong, complaint in (
        ({}, "does not say which task"),
        ({**notes, "data": "another"}, "trained on other rows"),
        ({**notes, "task": {"kind": "none"}}, "can't be built: .task. kind must be"),
    ):
        with pytest.raises(ValueError, match=complaint):
            task_of_checkpoint(Checkpoint(encoder, wrong))
