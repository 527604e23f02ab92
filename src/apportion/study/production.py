"""Production: the model of a stage, from its folder or made now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from apportion.data.task import Task
from apportion.data.tokenizer import Tokenizer
from apportion.elastic.checkpoint import Checkpoint, has_checkpoint, limit, load, save
from apportion.elastic.conversion import convert
from apportion.elastic.elastic import Elastic, check_elastic
from apportion.elastic.pairing import find_frontier, paired_at
from apportion.elastic.repairing import VERSION_1
from apportion.elastic.scoring import SOURCES
from apportion.files import discard
from apportion.method.units import UNITS, Allocation
from apportion.models.encoder import Encoder, EncoderConfig
from apportion.models.hub import check_digest, load_model, untrained_model
from apportion.models.sites import largest_block
from apportion.models.surgery import cut
from apportion.study.experiment import task_of
from apportion.study.records import provenance
from apportion.study.stages import (
    OLDER_SCORES,
    VERSIONS,
    ScoredStage,
    Stage,
    TrainedStage,
    checkpoint_folder,
)
from apportion.training.loop import Fitted, fit
from apportion.training.progress import Tick, telling
from apportion.training.tuning import shared_out, tuning


def produce(
    stage: Stage,
    runs: Path,
    *,
    progress: Callable[[Tick], None] | None = None,
    task: Task | None = None,
) -> Checkpoint:
    """The stage's model: from its folder, or made now (and first those that it comes from).

    All stages that it comes from have its task, so that is built once.
    """
    folder = checkpoint_folder(stage, runs)
    state = runs / f"{folder.name}.state"
    if has_checkpoint(folder):
        discard(state)  # of a kill right after the checkpoint was saved
        return _made_before(stage, folder, task)
    _check_versions(stage)
    task = task or stage.build_task()
    source = partial(produce, runs=runs, progress=progress, task=task)
    parent = source(stage.parent) if stage.parent else None
    teacher = source(stage.teacher).model if stage.teacher else None
    start = parent.model if parent else new_model(stage, task)
    kept: Allocation | None = None
    if isinstance(stage, TrainedStage):
        start, kept = _ready_to_train(stage, start, task)
        fitted = fit(
            start,
            task,
            recipe=stage.recipe,
            seed=stage.seed,
            teacher=teacher,
            state=state,
            answers=_answers_file(stage, runs),
            progress=progress,
        )
        model, facts = _paired(stage, fitted, task, progress)
    elif isinstance(stage, ScoredStage):
        model, facts = _score(stage, start, task, teacher, progress)
    else:
        model, facts = start, {}
    limit(model, stage.floor, stage.lowest)
    checkpoint = Checkpoint(model, _notes(stage, task, parent, facts), kept, task.words)
    save(checkpoint, folder)
    discard(state)
    return checkpoint


def _made_before(stage: Stage, folder: Path, task: Task | None) -> Checkpoint:
    """The stage's model from its folder, if it was made from the rows of the task."""
    loaded = load(folder)
    limit(loaded.model, stage.floor, stage.lowest)
    if task and loaded.notes["data"] != task.digest():
        raise ValueError(
            f"{folder} was trained on other rows than there are now: was the data changed? "
            "Choose another folder, or remove it to train again"
        )
    return loaded


def _check_versions(stage: Stage) -> None:
    """Refuses to make what an older version made; the first repair is a matter of settings."""
    for producer, newest in VERSIONS.items():
        older = (1,) if producer == "repair" else ()
        if stage.version(producer) not in (newest, *older):
            raise ValueError(
                f"{stage.label} was made by version {stage.version(producer)} of {producer}; "
                f"this is version {newest}, which can't make it again"
            )


def _ready_to_train(
    stage: TrainedStage, start: nn.Module, task: Task
) -> tuple[nn.Module, Allocation | None]:
    """The model that a stage trains, and what was kept of its parent's if it was cut."""
    if stage.has_gates == isinstance(start, Elastic):
        return start, None
    if not isinstance(start, Elastic):
        return Elastic(start, stage.kinds, length=task.length, block=largest_block(start)), None
    # A specialist: cut by its parent's gates at its own budget, then trained as it is.
    assert stage.parent and stage.only
    kept = start.made_for(start.form, stage.parent.floor).allocation(stage.only)
    return cut(start.plain(), kept), kept


def _paired(
    stage: TrainedStage,
    fitted: Fitted,
    task: Task,
    progress: Callable[[Tick], None] | None,
) -> tuple[nn.Module, dict[str, Any]]:
    """A trained model and what it took; where budgets drop tokens, with a frontier measured now."""
    facts = _facts_of(fitted)
    if stage.recipe.axis == "width":
        return fitted.model, facts
    model, took = find_frontier(
        check_elastic(fitted.model),
        task.train,
        **stage.recipe.tokens,
        budgets=paired_at(stage.recipe.lowest),
        progress=partial(telling(progress), "frontier"),
    )
    return model, {**facts, **took}


def _facts_of(fitted: Fitted) -> dict[str, Any]:
    """What a training took, and its best epoch."""
    return {
        "epochs": fitted.recipe.epochs,
        "best": asdict(fitted.best),
        "seconds": round(fitted.seconds, 1),
        "processes": fitted.processes,
    }


def _notes(
    stage: Stage, task: Task, parent: Checkpoint | None, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """The story of a stage's model, as its checkpoint tells it."""
    recipes = [*(parent.notes["recipes"] if parent else [])]
    if stage.recipe:
        recipes.append(stage.recipe.to_dict())
    return {
        "task": dict(task.spec),
        "classes": list(task.classes),
        "data": task.digest(),
        **({"unlabelled": task.facts["unlabelled"]} if task.unlabelled else {}),
        **({"pretrained": stage.model["pretrained"]} if "pretrained" in stage.model else {}),
        "method": stage.method,
        "seed": stage.seed,
        "recipes": recipes,
        "training": {**facts, **provenance(threads=torch.get_num_threads())},
    }


def _answers_file(stage: TrainedStage, runs: Path) -> Path | None:
    """Where a teacher's answers are kept: students that read the same views share them."""
    if stage.teacher is None or not stage.recipe.views:
        return None
    return runs / f"answers-{stage.teacher.key}-{stage.recipe.views}.safetensors"


def _score(
    stage: ScoredStage,
    model: nn.Module,
    task: Task,
    teacher: nn.Module | None,
    progress: Callable[[Tick], None] | None,
) -> tuple[nn.Module, dict[str, Any]]:
    """A model whose gates open its units in the order of the stage's scores, and those."""
    score, tell = SOURCES[stage.score], telling(progress)
    ordering, learning = shared_out(stage.seconds, tuned=stage.tune > 0)
    with_gates = teacher if isinstance(teacher, Elastic) else None
    converted = convert(
        model,
        task,
        units="heads" if stage.kinds == UNITS["heads"] else "all",
        score=lambda model: score(model, task, stage.seed, with_gates, partial(tell, "scoring")),
        nested=stage.nested,
        searched=stage.search,
        repaired=stage.repair,
        tuned=tuning(rows=stage.tune, seconds=learning, seed=stage.seed, progress=progress)
        if stage.tune
        else None,
        seconds=ordering,
        # Stages with the older scores were made before last layers could be short.
        first_token=False if stage.score in OLDER_SCORES else None,
        progress=tell,
        **(VERSION_1 if stage.repair and stage.version("repair") == 1 else {}),
    )
    return converted.model, dict(converted.facts)


def new_model(stage: Stage, task: Task) -> nn.Module:
    """The model that a stage without a parent starts from."""
    if "digest" in stage.model:
        check_digest(stage.model["pretrained"], stage.model["digest"], stage.weights)
    if "pretrained" in stage.model:
        name = stage.model["pretrained"]
        return load_model(name, task.classes, stage.seed, stage.weights, trained=stage.given)
    if "architecture" in stage.model:
        facts = {
            "vocabulary": task.vocabulary,
            "classes": len(task.classes),
            "length": task.length,
        }
        return untrained_model(stage.model, facts, stage.seed)
    return new_encoder(task, stage.model, stage.seed)


def task_of_checkpoint(checkpoint: Checkpoint, folder: Path | None = None) -> Task:
    """The task that a checkpoint was trained on, its rows drawn again or read, from a folder."""
    return task_of_notes(checkpoint.notes, checkpoint.words, folder)


def task_of_notes(
    notes: Mapping[str, Any], words: Tokenizer | None, folder: Path | None = None
) -> Task:
    """The task that the notes of a checkpoint, or of its export, name."""
    if not notes.get("task"):
        raise ValueError("the checkpoint does not say which task it was trained on")
    try:
        spec = task_of(notes["task"], folder)
    except ValueError as error:
        raise ValueError(f"the task that the checkpoint names can't be built: {error}") from None
    task = spec.build(words)
    if notes.get("data") not in (None, task.digest()):
        raise ValueError("the checkpoint was trained on other rows than there are now")
    return task


def new_encoder(task: Task, shape: Mapping[str, Any], seed: int) -> Encoder:
    """An untrained encoder for a task; the same seed gives the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Encoder(
            EncoderConfig(task.vocabulary, task.length, len(task.classes), **dict(shape))
        )
