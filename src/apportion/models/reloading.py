"""Cut models of Transformers that reload: their config records the cut, their class rebuilds it."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import nn

from apportion.files import read_json, write_text
from apportion.method.length import Schedule
from apportion.method.units import Allocation
from apportion.models.autoclasses import class_of, register_when_imported
from apportion.models.configs import is_of_transformers
from apportion.models.hub import check_fit, read_pretrained
from apportion.models.shrinking import CUT_CLASS, CUT_TYPE
from apportion.models.sites import (
    ARCHITECTURES,
    find_sites,
    in_units,
    layers_path,
    on_fewer_tokens,
    units_of,
)
from apportion.models.sizes import check_folder, check_weights

RECORD = "apportion"  # the field of a config that records what was kept
# Copied into folders that load without apportion, by their rooms.
CODE = {
    "cut_models": "models",
    "shrinking": "models",
    "shortening": "models",
    "length": "method",
}
_LENGTH = 128  # where units cost what they do, if a folder does not say


def remember_cut(model: nn.Module, allocation: Allocation) -> None:
    """Makes a cut model of Transformers one that saves what was kept, and reloads by it."""
    if not is_of_transformers(model):
        return
    name = type(model).__name__.removeprefix(CUT_CLASS)
    if not hasattr(sys.modules["transformers"], name):
        return  # a custom class, which could not be found again by its name
    config: Any = model.config
    record = _record(model, allocation, getattr(config, RECORD, None))
    model.__class__ = class_of(CUT_CLASS + name)
    config.__class__ = model.config_class
    setattr(config, RECORD, record)
    config.architectures = [CUT_CLASS + name]
    # Names that Transformers changed while loading, it would change back for a class it knows.
    vars(model).pop("_weight_conversions", None)
    register_when_imported()


def _record(
    model: nn.Module, allocation: Allocation, before: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What was kept, of how many, and where, in the whole model's numbering."""
    above = layers_path(model)
    base = getattr(model, "base_model_prefix", "")
    layers = above.removeprefix(f"{base}.")  # a model with another head has another prefix
    record: dict[str, Any] = {"kept": {}, "of": {}, "where": {"layers": layers}}
    if before is not None:
        record = json.loads(json.dumps(before))
    for site in find_sites(model, allocation.units.kinds, block=1):
        within = f"{above}.{site.layer}."
        parts: dict[str, Any] = {
            "inputs": [name.removeprefix(within) for name in site.inputs],
            "output": site.output.removeprefix(within),
        }
        if site.kind == "heads":
            parts["attention"] = site.attention.removeprefix(within)
        record["where"][site.kind] = parts
        span = allocation.units.spans.get((site.layer, site.kind), slice(0, 0))
        count, kept = span.stop - span.start, allocation.indices(site.layer, site.kind)
        layer = f"layer {site.layer}"
        of = record["of"].setdefault(layer, {})
        stays = record["kept"].setdefault(layer, {})
        if site.kind in stays:
            kept, count = _compose(stays[site.kind], of[site.kind], kept, count)
        stays[site.kind], of[site.kind] = kept, count
    if allocation.schedule is not None:
        record["shares"] = list(allocation.schedule.shares)
        if allocation.schedule.by_position:
            record["by_position"] = True
    return record


def _compose(
    first: Sequence[int], of: int, then: Sequence[int], count: int
) -> tuple[list[int], int]:
    """A cut of a cut as one cut: units of different sizes are split until they are alike."""
    if not first:
        return [], of
    pieces = math.lcm(len(first), count)
    here, there = pieces // len(first), pieces // count
    all_pieces = [unit * here + piece for unit in first for piece in range(here)]
    kept = [all_pieces[unit * there + piece] for unit in then for piece in range(there)]
    return kept, of * here


def load_folder(folder: Path) -> tuple[nn.Module, Allocation | None]:
    """The model in a folder that Transformers wrote, and what was kept if it was cut.

    It may have been cut by apportion, or by `prune_heads` of Transformers 4.
    """
    check_folder(folder)
    values = read_json(folder / "config.json")
    kind = str(values.get("model_type", "")).removeprefix(CUT_TYPE)
    if kind not in ARCHITECTURES:
        raise ValueError(
            f"{folder} holds a model of type {kind!r}; known: {', '.join(sorted(ARCHITECTURES))}"
        )
    try:
        name = str(values["architectures"][0]).removeprefix(CUT_CLASS)
        whole = class_of(name)
        plain = {k: v for k, v in values.items() if k not in ("model_type", "pruned_heads")}
        config = whole.config_class.from_dict(plain)
        empty = _empty(whole, config)
        check_weights(empty, folder)
        kept = None
        if values.get(RECORD):
            kept = _kept(empty, values[RECORD])
        elif values.get("pruned_heads"):
            kept = _without(empty, values["pruned_heads"])
    except ValueError:
        raise
    except Exception as error:  # a config may be wrong in any way
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"{folder / 'config.json'} is damaged: {reason}") from None
    if kept is not None:
        whole = class_of(CUT_CLASS + name)
        config.__class__ = whole.config_class
        setattr(config, RECORD, _record(empty, kept, None))
        register_when_imported()
    model, info = read_pretrained(whole, str(folder), config=config)
    check_fit(model, info, str(folder))
    return model.eval(), kept


def kept_of(model: nn.Module) -> Allocation | None:
    """What a cut model of Transformers says was kept of the whole one."""
    config: Any = getattr(model, "config", None)
    if not hasattr(config, RECORD):
        return None
    whole = class_of(type(model).__name__.removeprefix(CUT_CLASS))
    values = {k: v for k, v in config.to_dict().items() if k != "model_type"}
    return _kept(_empty(whole, whole.config_class.from_dict(values)), getattr(config, RECORD))


def _empty(whole: Any, config: Any) -> nn.Module:
    """The whole model on the meta device, without memory for its weights."""
    with torch.device("meta"):
        model: nn.Module = whole(config)
    return model


def _kept(model: nn.Module, record: Mapping[str, Any]) -> Allocation:
    """The allocation that a record describes, over the units of the whole model."""
    try:
        sites = find_sites(model, list(record["of"]["layer 0"]), block=1)
        counted = [
            in_units(site, int(record["of"][f"layer {site.layer}"][site.kind])) for site in sites
        ]
        kept = Allocation.from_dict(units_of(counted, _LENGTH), record["kept"])
        if "shares" not in record:
            return kept
        schedule = Schedule(tuple(record["shares"]), record.get("by_position", False))
        if len(schedule.shares) != kept.units.layers:
            raise ValueError(
                f"the config has {len(schedule.shares)} shares of tokens for "
                f"{kept.units.layers} layers"
            )
        short = units_of(on_fewer_tokens(counted, schedule), _LENGTH)
        return kept.shortened(schedule, short.costs)
    except (AttributeError, KeyError, TypeError, ZeroDivisionError) as error:
        raise ValueError(f"the config's record of a cut is damaged: {error!r}") from None


def _without(model: nn.Module, pruned: Mapping[str, Sequence[int]]) -> Allocation:
    """The allocation of a model whose heads were pruned by Transformers 4."""
    units = units_of(find_sites(model, ("heads",)), _LENGTH)
    gone = {(int(layer), head) for layer, heads in pruned.items() for head in heads}
    there = {(unit.layer, unit.index) for unit in units}
    if gone - there:
        layer, head = min(gone - there)
        raise ValueError(f"the config prunes head {head} of layer {layer}, which there is not")
    keeps = [n for n, unit in enumerate(units) if (unit.layer, unit.index) not in gone]
    return Allocation.of(units, keeps)


def carry_code(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Copies the code that a cut model needs into its folder; the config that points to it.

    Such a folder loads with `trust_remote_code=True` where apportion is not installed.
    """
    from apportion.models.cut_models import AUTO  # imports Transformers

    if RECORD not in config:
        raise ValueError("only a cut model of Transformers needs code to load without apportion")
    for module, room in CODE.items():
        source = resources.files(f"apportion.{room}") / f"{module}.py"
        code = source.read_text(encoding="utf-8")
        for other, place in CODE.items():
            code = code.replace(f"from apportion.{place}.{other} ", f"from .{other} ")
        write_text(folder / f"{module}.py", code)
    (name,) = config["architectures"]
    whole = class_of(name.removeprefix(CUT_CLASS))
    module = next(iter(CODE))
    made = {"AutoConfig": f"{module}.{CUT_CLASS}{whole.config_class.__name__}"}
    for auto in AUTO:
        models = getattr(sys.modules["transformers"], auto)._model_mapping
        if whole.config_class in models and models[whole.config_class] is whole:
            made[auto] = f"{module}.{name}"
    return {**config, "auto_map": made}
