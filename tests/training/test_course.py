"""`apportion.train`: what the command trains, from Python, to the same weights."""

from __future__ import annotations

import pytest
import torch
from texts import folder

import apportion
from apportion.elastic.checkpoint import weights_digest
from apportion.study.presets import training_preset
from apportion.study.production import new_model, produce
from apportion.training.course import steps


@pytest.mark.parametrize("kind", ["marked", "text"])
def test_the_function_ends_with_the_weights_of_the_command(tmp_path, kind):
    preset = training_preset(
        str(folder(tmp_path / "texts")) if kind == "text" else None,
        None,
        rows=64,
        length=12,
        shape={"layers": 2, "heads": 4, "hidden": 16, "feedforward": 64},
        epochs=1,
        budgeted_epochs=1,
        units="all",
        seed=5,
    )
    stage = preset.experiment().stages[-1]
    theirs = produce(stage, tmp_path / "stages").model
    task = stage.build_task()
    model = new_model(stage, task)
    before = weights_digest(model)
    first, last = steps(kind, len(task.train), epochs=1, nested_epochs=1)
    ticks = []
    trained = apportion.train(
        model,
        task,
        seed=5,
        dense=apportion.recipe(**first),
        nested=apportion.recipe(**last),
        progress=ticks.append,
    )
    assert weights_digest(trained.model) == weights_digest(theirs)
    assert weights_digest(model) == before, "the given model is left alone"
    assert {tick.recipe for tick in ticks} == {"dense", "scoring", "search", "repair", "nested"}


def test_a_fine_tuned_model_is_its_own_teacher():
    task = apportion.Marked(length=12, distractors=2, train=64, validation=32, test=32).build()
    torch.manual_seed(3)
    config = apportion.EncoderConfig(task.vocabulary, 12, layers=2, heads=4, hidden=16)
    model = apportion.Encoder(config)
    short = apportion.recipe("nested", epochs=1)
    trained = apportion.train(model, task, fine_tuned=True, units="heads", nested=short)
    assert trained.dense is None and trained.model.kinds == ("heads",)
    converted = apportion.convert(model, task, units="heads")
    assert weights_digest(trained.converted.model) == weights_digest(converted.model)
    taught = apportion.fit(converted.model, task, recipe=short, seed=7, teacher=model)
    assert weights_digest(trained.model) == weights_digest(taught.model)


@pytest.mark.parametrize(
    ("kind", "rows", "epochs"),
    [("marked", 64, (12, 6)), ("text", 100, (40, 20)), ("text", 16_000, (5, 3))],
)
def test_few_texts_are_gone_through_more_often(kind, rows, epochs):
    assert tuple(step["epochs"] for step in steps(kind, rows)) == epochs
