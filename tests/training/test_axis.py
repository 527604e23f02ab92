"""Training with length on the axis: drawn with the width, taught by the whole text, resumable."""

from __future__ import annotations

import pytest
import torch
from pretrained import tokenizer, write_classifier
from texts import CLUES, folder
from transformers import AutoModelForSequenceClassification

from apportion.data.text import Text
from apportion.data.tokenizer import Tokenizer
from apportion.elastic.checkpoint import weights_digest
from apportion.elastic.elastic import Elastic
from apportion.models.shortening import watching_tokens
from apportion.study.presets import training_preset
from apportion.training.course import train
from apportion.training.loop import fit
from apportion.training.recipes import NESTED, NESTED_ENCODER, recipe
from apportion.training.schedule import draw_longer

SHORT = NESTED_ENCODER.with_changes(
    epochs=1, batch_size=16, lr=1e-3, budgets=(0.25, 1.0), select_at=(0.25, 1.0), views=1
)
BOTH = SHORT.with_changes(axis="both")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    home = folder(tmp_path_factory.mktemp("texts"), train=96, test=30)
    spec = Text(str(home), train=48, validation=16, test=16, length=20)
    return spec.build(Tokenizer.of(tokenizer(), 20))


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    home = write_classifier(tmp_path_factory.mktemp("model"), list(CLUES))
    return AutoModelForSequenceClassification.from_pretrained(home).eval()


@pytest.fixture(scope="module")
def student(teacher):
    made = Elastic(teacher, ("heads", "feedforward"), length=20, block=16, first_token=True)
    return made.nested()


def test_a_student_reads_fewer_tokens(task, student, teacher):
    with watching_tokens() as kept:
        fitted = fit(student, task, recipe=BOTH, seed=3, teacher=teacher)
    assert student.frontier is None
    frontier = fitted.model.frontier
    assert frontier.budgets[0] == 0.25 and not frontier.schedules[0].is_whole
    assert kept, "no token was dropped"
    assert weights_digest(fitted.model) != weights_digest(student)


def test_a_run_with_both_axes_goes_on_where_it_was_stopped(task, student, teacher, tmp_path):
    whole = fit(student, task, recipe=BOTH, seed=3, teacher=teacher)

    class StoppedError(Exception):
        pass

    def stop(tick):
        if tick.recipe == BOTH.name and tick.step == 2:
            raise StoppedError

    state = tmp_path / "state"
    how = {"recipe": BOTH, "seed": 3, "teacher": teacher, "state": state, "save_every": 0.0}
    with pytest.raises(StoppedError):
        fit(student, task, **how, progress=stop)
    rest = fit(student, task, **how)
    assert weights_digest(rest.model) == weights_digest(whole.model)
    assert rest.model.frontier == whole.model.frontier


def test_a_recipe_says_whether_and_how_tokens_are_dropped(task, student, teacher):
    without = BOTH.with_changes(crop=False, drop_by="position")
    made = fit(student, task, recipe=without, seed=3, teacher=teacher).model.frontier
    assert made.schedules[0].shares[0] == 1.0 > made.schedules[0].shares[-1]
    assert made.schedules[0].by_position


def test_with_length_alone_every_unit_stays(task, student, teacher):
    length = BOTH.with_changes(axis="length", budgets=(0.5, 1.0), select_at=(0.5, 1.0))
    made = fit(student, task, recipe=length, seed=3, teacher=teacher).model
    for budget in (0.5, 0.75, 1.0):
        assert made.allocation(budget).count == len(made.units)
        assert made.allocation(budget).cost <= budget + 0.005


@pytest.mark.slow
def test_a_course_ends_with_a_frontier_that_was_measured(task, teacher):
    ticks = []
    made = train(
        teacher,
        task,
        fine_tuned=True,
        nested=SHORT,
        axis="both",
        progress=lambda tick: ticks.append(tick.recipe),
    )
    assert "frontier" in ticks
    assert made.model.frontier.budgets[0] == 0.25
    assert made.nested.recipe.axis == "both"
    costs = [made.model.allocation(budget).cost for budget in (0.25, 0.375, 0.5, 1.0)]
    assert costs == sorted(costs) and costs[-1] == 1.0
    with torch.no_grad():
        made.model(**task.test.batch(torch.arange(4))[0], budget=0.25)


def test_half_of_the_steps_read_what_their_schedule_says():
    drawn = [draw_longer(5, step) for step in range(2000)]
    assert drawn == [draw_longer(5, step) for step in range(2000)]
    assert 0.45 < sum(one == 0.0 for one in drawn) / 2000 < 0.55
    assert 0.95 < max(drawn) <= 1.0


def test_a_recipe_of_width_has_the_identity_that_it_had():
    assert "axis" not in NESTED_ENCODER.identity()
    assert BOTH.identity()["axis"] == "both"
    assert not {"crop", "drop_by"} & set(BOTH.identity())


@pytest.mark.parametrize(
    "changes",
    [
        {"axis": "depth"},
        {"objective": "soft", "axis": "both"},
        {"axis": "length", "hidden": 0.1},
        {"crop": False},
        {"drop_by": "position"},
    ],
)
def test_a_recipe_that_can_not_drop_tokens_is_refused(changes):
    with pytest.raises(ValueError, match="axis"):
        NESTED.with_changes(**changes)


def test_a_rule_of_dropping_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="drop_by is attention or position, not 'chance'"):
        NESTED.with_changes(axis="both", drop_by="chance")


def test_a_preset_drops_tokens_of_pretrained_encoders_alone(tmp_path):
    with pytest.raises(ValueError, match="needs a pretrained encoder and all units"):
        training_preset(str(folder(tmp_path / "texts")), None, units="all", axis="both")
    with pytest.raises(ValueError, match="an axis is one of width, length, both"):
        training_preset(None, None, axis="depth")
    assert recipe("nested-encoder", axis="both").axis == "both"
