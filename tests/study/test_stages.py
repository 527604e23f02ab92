"""A stage is one of four values: what each is made of, what it answers, and what a file may ask."""

from __future__ import annotations

import pytest
from studies import STUDY

from apportion.data.marked import Marked
from apportion.study.experiment import parse_experiment
from apportion.study.protocols import Timing
from apportion.study.stages import BaselineStage, GivenStage, ScoredStage, TrainedStage
from apportion.training.recipes import BUDGETED, DENSE, NESTED

FILE = """
name = "kinds"
units = "all"
budgets = [0.25, 0.5]
[task]
kind = "text"
data = "somebody/texts"
digest = "0123456789ab"
length = 16
[model]
pretrained = "somebody/model"
[seeds]
data = [1]
optimisation = [7]
[[stage]]
method = "given"
given = true
[[stage]]
method = "words"
baseline = "tfidf-logistic"
[[stage]]
method = "scored"
from = "given"
score = "squared-gradient"
keep = 1
[[stage]]
method = "converted"
from = "given"
score = "squared-gradient"
nested = true
repair = true
latency = true
[[stage]]
method = "nested"
from = "converted"
teacher = "given"
recipe = "nested"
floor = 2
sweep = false
[[stage]]
method = "specialist"
from = "scored"
recipe = "recover"
each = [0.4]
"""
CELL = {"method": "a", "task": Marked(), "model": {}, "seed": 7, "budgets": (0.5,)}


def stages():
    return {stage.method: stage for stage in parse_experiment(FILE).stages}


def test_keys_are_those_that_stages_always_had():
    """Checkpoints and records lie under them: key, key as version 1 made it, what is measured."""
    assert {
        name: (stage.key, stage.as_made_by(1).key, stage.measures)
        for name, stage in stages().items()
    } == {
        "given": ("af96a5e2304e", "af96a5e2304e", "e199f8fee8b0"),
        "words": ("fc290155e8c0", "fc290155e8c0", "e199f8fee8b0"),
        "scored": ("bf28e1fe54d0", "bf28e1fe54d0", "e199f8fee8b0"),
        "converted": ("d3e7d7c90d93", "28712d1d92bb", "e199f8fee8b0"),
        "nested": ("9e6ddea52556", "1539b29bd591", "4e48e1733c87"),
        "specialist": ("fcb613c5944d", "fcb613c5944d", "8025cd3c7b52"),
    }


def test_a_stage_says_how_its_model_is_asked():
    """Its kind, form, floor, smallest budget, and the methods that it comes from."""
    answers = {
        name: (
            type(stage),
            stage.form,
            stage.floor,
            stage.lowest,
            [source.method for source in stage.sources],
        )
        for name, stage in stages().items()
    }
    assert answers == {
        "given": (GivenStage, None, 0, 0.25, []),
        "words": (BaselineStage, None, 0, 0.25, []),
        "scored": (ScoredStage, "hard", 1, 0.25, ["given"]),
        "converted": (ScoredStage, "nested", 0, 0.125, ["given"]),  # repaired at an eighth, too
        "nested": (TrainedStage, "nested", 2, 0.125, ["converted", "given"]),
        "specialist": (TrainedStage, None, 0, 0.4, ["scored"]),
    }
    soft = TrainedStage(**CELL, recipe=BUDGETED)
    assert (soft.form, soft.lowest, soft.has_gates) == ("soft", 0.1, True)  # of the sweep
    assert not TrainedStage(**CELL, recipe=DENSE).has_gates


@pytest.mark.parametrize(
    ("kind", "own", "foreign"),
    [
        (TrainedStage, {"recipe": DENSE}, {"score": "random", "nested": True, "keep": 1}),
        (ScoredStage, {"score": "random"}, {"recipe": DENSE, "only": 0.5, "baseline": "x"}),
        (BaselineStage, {"baseline": "tfidf-logistic"}, {"recipe": DENSE, "latency": True}),
        (GivenStage, {}, {"given": True, "parent": None, "repair": True}),
    ],
)
def test_a_kind_takes_what_is_its_own_and_nothing_else(kind, own, foreign):
    for name, value in foreign.items():
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
            kind(**CELL, **own, **{name: value})
    for name in own:
        with pytest.raises(TypeError, match=f"'{name}'"):
            kind(**CELL)


def test_a_nested_model_is_not_timed_with_soft_gates():
    timing = Timing(forms=("soft", "cut"))
    with pytest.raises(ValueError, match="forms has soft, and stage 'a' is nested"):
        TrainedStage(**CELL, recipe=NESTED, latency=True, timing=timing)
    assert not TrainedStage(**CELL, recipe=NESTED, timing=timing).latency  # not timed at all
    assert TrainedStage(**CELL, recipe=BUDGETED, latency=True, timing=timing).latency


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("given = true", "given = true\nkeep = 1", "'given' is a model as given: it needs nothing"),
        ("given = true", "given = true\nepochs = 2", "'given' is a model as given: it needs noth"),
        ("given = true", "given = false", "'given' needs one of a recipe, a score, a baseline"),
        ("given = true", 'given = true\nrecipe = "dense"', "'given' needs one of a recipe"),
        ('pretrained = "somebody/model"', "layers = 2", r"as given: \[model\] pretrained"),
        ('"tfidf-logistic"', '"tfidf-logistic"\nkeep = 1', "'words' is a baseline: it needs nothi"),
        ('"tfidf-logistic"', '"tfidf-logistic"\nfrom = "given"', "'words' is a baseline: it needs"),
        ("keep = 1", "each = [0.5]", "'scored' has a score: it needs 'from', and no more"),
        ("keep = 1", "warmup = 0.0", "'scored' has a score: it needs 'from', and no more"),
        ("keep = 1", "budgets = [0.5, 1.0]", "'scored' has a score: it needs 'from', and no more"),
        (
            "keep = 1",
            "repair = true",
            "'scored' has search, repair or tune: these need nested = true, no keep",
        ),
        ("keep = 1", "nested = true\ntune = 9", "'scored' has tune: a number of views of texts"),
        ('"squared-gradient"', '"learned"', "'learned', and no other, needs a teacher with gates"),
        ("keep = 1", 'teacher = "words"', "'scored' refers to 'words', a baseline without a model"),
        ("floor = 2", "nested = true", "'nested' has a recipe.* nested and repair are of scores"),
        ("floor = 2", "keep = 2", "'nested' has a recipe, and a floor with it; keep"),
        ("each = [0.4]", "", "'specialist' trains a plain model: from one with gates, it is cut"),
        ('from = "scored"', 'from = "given"', "and from any other there are no budgets"),
        ('from = "scored"', 'from = "specialist"', "refers to 'specialist', which is not one earl"),
    ],
)
def test_what_a_kind_can_not_be_is_named(before, after, says):
    assert before in FILE
    with pytest.raises(ValueError, match=says):
        parse_experiment(FILE.replace(before, after, 1))


def test_what_is_switched_off_may_be_said_of_every_kind():
    """Files that write `latency = false` everywhere give the same stages."""
    said = FILE.replace("[[stage]]", "[[stage]]\nlatency = false\nnested = false", 1)
    assert [stage.key for stage in parse_experiment(said).stages] == [
        stage.key for stage in stages().values()
    ]


def test_a_stage_may_be_of_the_first_seeds_alone_and_so_may_a_run():
    text = STUDY.replace("optimisation = [7]", "optimisation = [7, 8, 9]")
    nested = 'method = "nested"\n'
    plan = parse_experiment(text.replace(nested, f"{nested}seeds = 2\n", 1))
    seeds = [[stage.seed for stage in plan.stages_of(method)] for method in ("order", "nested")]
    assert seeds == [[7, 8, 9], [7, 8]]
    assert {stage.seed for stage in plan.of_seeds(1).stages} == {7}
    assert plan.of_seeds(None) == plan
    with pytest.raises(ValueError, match="'nested' is of the first 4 seeds; there are 3"):
        parse_experiment(text.replace(nested, f"{nested}seeds = 4\n", 1))
