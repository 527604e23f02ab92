"""A checkpoint's folder read safely: its manifest, then its model and words.

The manifest, apportion.json, has no hash of its own, so nothing in it is believed before it is
checked; each part is checked before the next is built.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from apportion.data.tokenizer import Tokenizer
from apportion.elastic.consistency import (
    check_finite,
    check_heads,
    check_kept,
    check_order,
    is_number,
    is_whole,
)
from apportion.elastic.elastic import TRAINED_FORMS, Elastic, Form
from apportion.files import read_json, sha256
from apportion.method.frontier import Frontier
from apportion.method.length import Schedule
from apportion.method.units import KINDS, Allocation, Units, check_budget
from apportion.models.configs import build
from apportion.models.encoder import EncoderConfig
from apportion.models.readout import reads_first_token
from apportion.models.reloading import RECORD
from apportion.models.sites import encoder_path, find_sites
from apportion.models.sizes import CONFIG, WEIGHTS, check_sizes, difference
from apportion.models.surgery import cut
from apportion.tensor_files import Shape, read_shapes, read_tensors

FORMAT = "apportion-checkpoint"
VERSION = 1
MANIFEST = "apportion.json"
GATES = "gates.safetensors"
WORDS = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
CARD = "README.md"
_MOST_UNITS = 1_000_000  # of one kind in one layer: what has to be listed before it is compared


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a checkpoint says of itself, checked; without its weights."""
    path = folder / MANIFEST
    if not os.path.lexists(path):
        raise ValueError(f"{folder} is not a checkpoint: it has no {MANIFEST}")
    manifest = read_json(path)
    if manifest.get("format") != FORMAT:
        raise ValueError(f"{path} is not the manifest of an apportion checkpoint")
    if manifest.get("version") != VERSION:
        raise ValueError(
            f"{folder} is a checkpoint of format version {manifest.get('version')!r}; "
            f"this apportion reads version {VERSION}"
        )
    missing = {"kind", "model", "units", "files", "notes"} - set(manifest)
    if missing:
        raise ValueError(f"{path} lacks {', '.join(sorted(missing))}")
    if manifest["kind"] not in ("dense", "elastic", "cut"):
        raise ValueError(f"{path} is of unknown kind {manifest['kind']!r}")
    problem = _problem(manifest)
    if problem:
        raise ValueError(f"{path} is damaged: {problem}")
    return manifest


def _problem(manifest: Mapping[str, Any]) -> str | None:
    """What is wrong with a manifest, if anything is."""
    kind, files, model = manifest["kind"], manifest["files"], manifest["model"]
    if not isinstance(manifest["notes"], dict):
        return "notes is not a table"
    if not isinstance(model, dict) or not isinstance(model.get("type"), str):
        return "model does not say its type"
    if not isinstance(files, dict) or not all(map(_is_file, files.items())):
        return "files does not hold the bytes and the sha256 of each file of the folder"
    needed = {WEIGHTS, *([GATES] if kind == "elastic" else [])} - set(files)
    if needed:
        return f"files lacks {', '.join(sorted(needed))}"
    for name, of_kind in (("elastic", "elastic"), ("kept", "cut")):
        if (name in manifest) != (kind == of_kind):
            has = "says" if name in manifest else "does not say"
            return f"a checkpoint of kind {kind} {has} what is {name}"
    if kind != "elastic" and GATES in files:
        return f"a checkpoint of kind {kind} has no {GATES}"
    return _problem_of_units(manifest["units"]) or (
        _problem_of_elastic(manifest["elastic"]) if kind == "elastic" else None
    )


def _is_file(named: tuple[str, Any]) -> bool:
    name, facts = named
    return (
        isinstance(facts, dict)
        and is_whole(facts.get("bytes"))
        and isinstance(facts.get("sha256"), str)
        and name == Path(name).name  # a path could lead out of the folder
    )


def _problem_of_units(units: Any) -> str | None:
    runs = units.get("runs") if isinstance(units, dict) else None
    if not isinstance(runs, list) or not runs:
        return "units does not hold runs"
    before = (-1, 0)
    for run in runs:
        if not (isinstance(run, list) and len(run) == 4 and run[1] in KINDS):
            return f"units has a run that is not layer, {' or '.join(KINDS)}, count and cost"
        layer, kind, count, cost = run
        if not (is_whole(layer) and is_whole(count, 1, _MOST_UNITS) and is_number(cost, above=0.0)):
            return f"units has a run of {count!r} {kind} in layer {layer!r} at a cost of {cost!r}"
        if (layer, KINDS.index(kind)) <= before:
            return "units has runs that are not in the order of layers and kinds"
        before = (layer, KINDS.index(kind))
    return None


def _problem_of_elastic(facts: Any) -> str | None:
    checks: dict[str, Callable[[Any], bool]] = {
        "kinds": lambda kinds: (
            isinstance(kinds, list)
            and bool(kinds)
            and all(kinds.count(kind) == 1 for kind in kinds)
            and all(kind in KINDS for kind in kinds)
        ),
        "length": lambda length: is_whole(length, 1, 2**24),
        "tau": lambda tau: is_number(tau, above=0.0),
        "block": lambda block: is_whole(block, 1, 2**24),
        "first_token": lambda first: first is False or first is True,
    }
    if not isinstance(facts, dict):
        return "elastic is not a table"
    facts = {"first_token": False, **facts}  # a word that older folders do not have
    for name, is_good in checks.items():
        if not is_good(facts.get(name)):
            return f"elastic has {name} = {facts.get(name)!r:.80}"
    return None


def restore(
    manifest: Mapping[str, Any], folder: Path
) -> tuple[nn.Module, Allocation | None, Tokenizer | None]:
    """The model, the allocation that a cut kept, and the tokenizer, of a folder by its manifest."""
    kind = manifest["kind"]
    for name, facts in sorted(manifest["files"].items()):
        path = folder / name
        if not path.exists():
            raise ValueError(f"checkpoint {folder} has no {name}; it is not complete")
        if path.stat().st_size != facts["bytes"] or sha256(path) != facts["sha256"]:
            raise ValueError(
                f"{path} is truncated or was changed: it is not the file that was saved"
            )
    config = read_config(manifest, folder)
    kept = None
    if kind == "cut":
        kept = Allocation.from_dict(Units.from_dict(manifest["units"]), manifest["kept"])
    model = _load_model(config, kept, folder)
    if kept is not None:
        check_kept(kept, model)
        kept = _shortened_as(kept, model, manifest)
    if kind == "dense":
        check_heads(Units.from_dict(manifest["units"]), model)
    if kind == "elastic":
        model = _restore_elastic(model, manifest, folder)
    words = None
    if WORDS in manifest["files"]:
        settings = read_json(folder / SETTINGS) if SETTINGS in manifest["files"] else None
        words = Tokenizer.from_json((folder / WORDS).read_text(encoding="utf-8"), settings)
    return model.eval(), kept, words


def _restore_elastic(plain: nn.Module, manifest: Mapping[str, Any], folder: Path) -> Elastic:
    """The elastic model around a plain one, with its gates, its order, and what it was made for."""
    facts = manifest["elastic"]
    sizes = {name: facts[name] for name in ("length", "tau", "block")}
    first_token = facts.get("first_token", False)
    if first_token and not reads_first_token(plain):
        raise ValueError(
            f"checkpoint {folder} computes its last layer for token 0 alone, and its model reads "
            "other tokens"
        )
    model = Elastic(plain, facts["kinds"], first_token=first_token, **sizes)
    if model.units.to_dict() != manifest["units"]:
        raise ValueError(f"checkpoint {folder} lists other units than its model has")
    gates = read_tensors(folder / GATES)
    if "order" in gates:
        model.gates.fix_order(gates["order"])
        check_order(gates["order"], model.units)
    _check_weights(model.gates.state_dict(), read_shapes(folder / GATES), folder)
    _load_weights(model.gates, gates)
    with torch.no_grad():
        opened = {"z": model.gates(torch.tensor((0.01, 0.25, 0.5, 0.75, 1.0)))}
    check_finite(opened, folder / GATES)
    try:
        if "frontier" in facts:
            model.shortened(Frontier.from_dict(facts["frontier"]))
        return _made_as(model, facts, manifest["notes"])
    except ValueError as error:
        raise ValueError(f"{folder / MANIFEST} can't be right: {error}") from None


def _shortened_as(kept: Allocation, model: nn.Module, manifest: Mapping[str, Any]) -> Allocation:
    """What was kept, on the tokens that the layers of the model read."""
    shares = {site.layer: site.share for site in find_sites(model, block=1)}
    by_position = getattr(model.get_submodule(encoder_path(model)), "by_position", False)
    schedule = Schedule(tuple(shares.values()), by_position)
    if "short_units" not in manifest:
        if not schedule.is_whole:
            raise ValueError("the model drops tokens, and its manifest does not say at what cost")
        return kept
    short = Units.from_dict(manifest["short_units"])
    if schedule.is_whole or short.members != kept.units.members:
        raise ValueError("the manifest has the costs of fewer tokens, and the model reads all")
    return kept.shortened(schedule, short.costs)


def _load_model(config: Mapping[str, Any], kept: Allocation | None, folder: Path) -> nn.Module:
    """The plain model, once its config is known to ask for the weights that are there."""
    shapes = read_shapes(folder / WEIGHTS)
    check_sizes(config, shapes, folder)
    with torch.device("meta"):
        _check_weights(cut_as(config, build(config), kept).state_dict(), shapes, folder)
    model = cut_as(config, build(config), kept)
    _load_weights(model, read_tensors(folder / WEIGHTS))
    return model


def cut_as(config: Mapping[str, Any], model: nn.Module, kept: Allocation | None) -> nn.Module:
    """A model without the units that were not kept, unless it was built in its sizes."""
    return model if kept is None or RECORD in config else cut(model, kept)


def read_config(manifest: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What a checkpoint's model is built from: its own values, or those in config.json."""
    model = manifest["model"]
    if CONFIG in manifest["files"]:
        config = read_json(folder / CONFIG)
        if config.get("model_type") != model["type"]:
            raise ValueError(
                f"{folder} holds a model of type {model['type']!r}, and its {CONFIG} is of "
                f"{config.get('model_type')!r}"
            )
        return config
    if model["type"] != EncoderConfig.model_type:
        raise ValueError(f"{folder} holds a model of unknown type {model['type']!r}")
    return {"model_type": model["type"], **model["config"]}


def _load_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    floats = {value.dtype for value in weights.values() if value.is_floating_point()}
    if len(floats) == 1:
        module.to(floats.pop())  # as it was saved; gates are always of one precision
    module.load_state_dict(dict(weights))


def _check_weights(
    expected: Mapping[str, Tensor], found: Mapping[str, Shape], folder: Path
) -> None:
    odd = difference(expected, found)
    if odd:
        raise ValueError(
            f"the weights in {folder} are of another model than its {MANIFEST} says: {odd}"
        )


def _made_as(model: Elastic, facts: Mapping[str, Any], notes: Mapping[str, Any]) -> Elastic:
    """The model, made for the form, floor and budgets that its manifest says.

    Old manifests do not say them. Then they are the last recipe's, down to the smallest budget of
    training and measuring; hard masks where gates were set from scores; and neither floor nor
    limit where the notes say nothing.
    """
    if any(name in facts for name in model.made_as):
        return model.made_for(facts["form"], facts["floor"], lowest=facts["lowest"])
    measured_at = _measured_at(notes)
    try:
        recipe = notes["recipes"][-1]
        trained, floor = TRAINED_FORMS.get(recipe["objective"], "hard"), int(recipe["floor"])
        trained_at = [check_budget(b) for b in (recipe["budgets"][0], *recipe["select_at"])]
    except (IndexError, KeyError, TypeError, ValueError):  # notes may be anybody's
        return model.made_for(model.form, 0, lowest=min(measured_at, default=None))
    if trained is None:
        trained_at = []  # a plain model has no budgets
    form: Form = "soft" if trained == "soft" else "hard"
    form = "nested" if model.form == "nested" else form
    return model.made_for(form, floor, lowest=min([*trained_at, *measured_at], default=None))


def _measured_at(notes: Mapping[str, Any]) -> list[float]:
    try:
        return [check_budget(point["budget"]) for point in notes["measured"]]
    except (KeyError, TypeError, ValueError):
        return []
