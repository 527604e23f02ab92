"""What an experiment file may ask for: complaints come before anything is run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

from apportion.data.task import TaskSpec
from apportion.data.text import Text
from apportion.elastic.scoring import SOURCES
from apportion.files import check
from apportion.models.encoder import EncoderConfig
from apportion.models.sites import ARCHITECTURES
from apportion.study.baselines import BASELINES
from apportion.study.claims import TIMED, Claim, check_claim
from apportion.study.stages import VERSIONS, Stage

_SIZES = ("layers", "heads", "hidden", "feedforward")
_SHAPE = {
    name: hint
    for name, hint in get_type_hints(EncoderConfig).items()
    if name not in ("vocabulary", "length", "classes", "model_type")  # those are not to choose
}


def check_model(model: Mapping[str, Any], task: TaskSpec, weights: Path | None) -> None:
    """Complains of a [model] that could not be built, before anything is."""
    if "pretrained" in model:
        check("[model]", model, {"pretrained": str, "digest": str})
        if not isinstance(task, Text):
            raise ValueError("[model] pretrained needs a [task] of kind 'text'")
        return
    if weights is not None:
        raise ValueError("[model] has no pretrained weights; their folder can't be given")
    if "architecture" in model:
        sizes = dict.fromkeys((*_SIZES, "vocabulary"), int)
        check("[model]", model, {"architecture": str, **sizes})
        missing = [name for name in _SIZES if name not in model]
        if missing:
            raise ValueError(f"[model] of an architecture needs {', '.join(missing)}")
        known = sorted(set(ARCHITECTURES) - {EncoderConfig.model_type, "vit"})  # those of texts
        if model["architecture"] not in known:
            raise ValueError(
                f"[model] architecture must be one of {', '.join(known)}, "
                f"not {model['architecture']!r}"
            )
        return
    check("[model]", model, _SHAPE)
    EncoderConfig(vocabulary=1, length=task.length, **model)


def check_stage(stage: Stage, numbers: Mapping[str, Any]) -> None:
    """Complains of a stage that could not run, before any other has."""
    ways = (stage.recipe, stage.score, stage.baseline, stage.given or None)
    if sum(made is not None for made in ways) != 1:
        raise ValueError(
            f"stage {stage.method!r} needs one of a recipe, a score, a baseline or given = true"
        )
    for producer, version in stage.made_by.items():
        if producer not in VERSIONS or version not in range(1, VERSIONS[producer] + 1):
            known = ", ".join(f"{name} to {latest}" for name, latest in VERSIONS.items())
            raise ValueError(
                f"stage {stage.method!r} is made_by versions from 1 of {known}; "
                f"not by {producer} {version!r}"
            )
    each = stage.only is not None
    if stage.given:
        asked = (stage.parent, stage.teacher, each, stage.latency, stage.keep, numbers)
        if any(asked) or stage.nested or stage.repair:
            raise ValueError(f"stage {stage.method!r} is a model as given: it needs nothing else")
        if "pretrained" not in stage.model:
            raise ValueError(f"stage {stage.method!r} is a model as given: [model] pretrained")
        return
    if stage.baseline is not None:
        if stage.baseline not in BASELINES:
            raise ValueError(f"unknown baseline {stage.baseline!r}; known: {', '.join(BASELINES)}")
        if stage.parent or stage.teacher or each or stage.latency or numbers:
            raise ValueError(f"stage {stage.method!r} is a baseline: it needs nothing else")
        if not isinstance(stage.task, Text):
            raise ValueError(f"stage {stage.method!r} is a baseline of texts; the task has none")
        return
    for source in (stage.parent, stage.teacher):
        if source is not None and source.baseline is not None:
            raise ValueError(
                f"stage {stage.method!r} refers to {source.method!r}, a baseline without a model"
            )
    if stage.recipe is None:
        if stage.score not in SOURCES:
            raise ValueError(f"unknown score {stage.score!r}; known: {', '.join(SOURCES)}")
        has_teacher = stage.teacher is not None and stage.teacher.has_gates
        if has_teacher != (stage.score == "learned"):
            raise ValueError("score 'learned', and no other, needs a teacher with gates")
        if stage.repair and (not stage.nested or stage.keep):
            raise ValueError(
                f"stage {stage.method!r} has repair, which needs nested = true and no keep"
            )
        startless = stage.parent is None and "architecture" not in stage.model
        if startless or each or numbers:
            raise ValueError(
                f"stage {stage.method!r} has a score: it needs 'from', and no more, or a [model] "
                "of an architecture with random weights"
            )
        return
    if stage.nested or stage.repair:
        raise ValueError(f"stage {stage.method!r} has a recipe; nested and repair are of scores")
    if stage.recipe.hidden and stage.teacher is None:
        raise ValueError(f"stage {stage.method!r} has hidden, and no teacher to learn that from")
    if stage.recipe.word_dropout and not isinstance(stage.task, Text):
        raise ValueError(f"stage {stage.method!r} has word_dropout; the task has no words")
    if stage.keep:
        raise ValueError(
            f"stage {stage.method!r} has a recipe, which has a floor; keep is of scores"
        )
    if stage.recipe.objective != "dense":
        return
    gates = stage.parent is not None and stage.parent.has_gates
    if each != gates:
        raise ValueError(
            f"stage {stage.method!r} trains a plain model: from one with gates, it is cut at each "
            "budget, and from any other there are no budgets"
        )
    if stage.latency and not each:
        raise ValueError(f"stage {stage.method!r} has no gates, so it has no budgets to time")


def check_timing(stages: Iterable[Stage]) -> None:
    """Complains of a form that a stage's model could not be timed in."""
    for stage in stages:
        nested = stage.nested or (stage.recipe is not None and stage.recipe.form == "nested")
        if nested and stage.latency and "soft" in (stage.timing.forms or ()):
            raise ValueError(f"[timing] forms has soft, and stage {stage.method!r} is nested")


def check_claims(claims: Iterable[Claim], stages: Iterable[Stage]) -> None:
    """Complains of a claim that no record could ever decide."""
    of_method = {stage.method: stage for stage in stages}
    for claim in claims:
        where = f"[[claim]] {claim.says!r}"
        check_claim(claim, "the experiment")
        methods = [method for method in (claim.method, claim.against) if method]
        for method in methods:
            if method not in of_method:
                raise ValueError(f"{where} is of {method!r}, which is no stage")
        if claim.measure in TIMED and not all(of_method[method].latency for method in methods):
            raise ValueError(f"{where} is of time, and its stage is not timed")
        if claim.measure == "training_seconds" and not all(
            of_method[method].recipe for method in methods
        ):
            raise ValueError(f"{where} is of training, and a stage of it has none")
        if claim.protocol != "padded" and not isinstance(of_method[claim.method].task, Text):
            raise ValueError(f"{where}: timing of texts, and no other, has a protocol")
