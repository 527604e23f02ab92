"""Exporting: a nested checkpoint → a folder that ONNX Runtime runs at any of its levels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from apportion.data.tokenizer import Tokenizer
from apportion.elastic.checkpoint import Checkpoint, weights_digest
from apportion.elastic.elastic import Elastic
from apportion.extras import require
from apportion.files import holding, json_text, part_of, put, resolved
from apportion.method.units import Allocation
from apportion.serving.milliseconds.machine import int8_target
from apportion.serving.runtime.arrays import on_arrays
from apportion.serving.runtime.engines import LEVELS, check_levels
from apportion.serving.runtime.exported import (
    FORMAT,
    GRAPH,
    MANIFEST,
    SETTINGS,
    TOKENIZER,
    VERSION,
    facts_of_file,
    is_export,
)
from apportion.serving.runtime.prediction import Answering
from apportion.serving.runtime.session import Runtime
from apportion.serving.runtime.skeletons import activation_of, skeleton_of
from apportion.serving.runtime.skipping import Skipping

TARGETS = {"vnni": 8, "any": 7}  # bits of int8 weights: products of 8 saturate without VNNI
SCALES = ("static", "dynamic")
_LARGEST = 2**31 - 1  # bytes of a message of protobuf
_CALIBRATED = 256  # texts that scales are taken from
_CHECKED = 64  # texts that the written file answers beside the views; all, of dynamic scales
_TOGETHER = 32  # texts that are answered in one batch, and alone
_DIFFERENCE = 1e-3  # of logits in single precision: more is not rounding
_TIES = 0.05  # of the rows: two tokens may be wanted so alike that rounding decides between them


def export(
    checkpoint: Checkpoint,
    folder: str | Path,
    *,
    texts: Sequence[str] = (),
    levels: Sequence[float] | None = None,
    int8: bool = False,
    target: str | None = None,
    scales: str = "static",
) -> dict[str, Any]:
    """Writes a nested checkpoint as one ONNX file with a budget input; what its manifest says.

    `int8` takes its scales from `texts`, and its weights have as many bits as the target computes
    without saturating: "vnni" or "any"; this machine's, if none is named. With "dynamic" `scales`
    each call takes its own, and answers depend on what else is in a batch. The file is checked
    against the views of the checkpoint at every level before it takes its place.
    """
    _check_installed()
    from apportion.serving.runtime.graph import OPSET, build_graph
    from apportion.serving.runtime.quantisation import calibrate_scales

    model, folder = checkpoint.elastic, resolved(Path(folder))
    if model is None:
        raise ValueError(f"a {checkpoint.kind} checkpoint has no budgets to export; convert it")
    for complains in (skeleton_of, activation_of):  # of what no graph says, before any work
        complains(model.plain())
    _check_free(folder)
    if checkpoint.words is None or checkpoint.words.settings is None or not checkpoint.classes:
        raise ValueError(
            "the checkpoint has no tokenizer or no classes, so its file could read no text"
        )
    levels = _levels(model, levels)
    model = nested_at(model, levels)
    target = int8_target() if target is None else target
    if target not in TARGETS:
        raise ValueError(f"a target is one of {', '.join(TARGETS)}, not {target!r}")
    if scales not in SCALES:
        raise ValueError(f"scales are {' or '.join(SCALES)}, not {scales!r}")
    texts = list(texts)[:_CALIBRATED]
    if int8 and not texts:
        raise ValueError("int8 needs texts that its scales are taken from")
    words = checkpoint.words
    encoded = words.encode(texts or ["a text to check the file with"])
    batches = [words.pad(encoded[start : start + 32]) for start in range(0, len(encoded), 32)]
    found = calibrate_scales(model, batches, levels, bits=TARGETS[target]) if int8 else None
    graph = build_graph(model, levels, scales=found, dynamic=scales == "dynamic")
    if graph.ByteSize() > _LARGEST:
        raise ValueError("an ONNX file holds 2 GiB at most, and this model has more weights")
    kept = [model.allocation(level) for level in levels]
    facts: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "levels": list(levels),
        "costs": [round(one.cost, 6) for one in kept],
        "kept": [one.to_dict() for one in kept],
        **({"shares": _shares(kept)} if any(one.schedule for one in kept) else {}),
        "classes": list(checkpoint.classes),
        "length": words.length,
        "precision": "int8" if int8 else "float32",
        "target": target if int8 else None,
        "scales": scales if int8 else None,
        "ranges": found and {path: scale.choice for path, scale in found.items()},
        "opset": OPSET,
        "weights": weights_digest(model),
        "task": checkpoint.notes.get("task"),
        "data": checkpoint.notes.get("data"),
    }
    checked = len(encoded) if scales == "dynamic" else _CHECKED
    with holding(folder) as alone:
        _check_free(folder)
        with part_of(folder, alone) as part:
            part.mkdir()
            (part / GRAPH).write_bytes(graph.SerializeToString())
            (part / TOKENIZER).write_text(words.to_json(), encoding="utf-8")
            settings = json_text(words.settings or {}, SETTINGS)
            (part / SETTINGS).write_text(settings, encoding="utf-8")
            names = (GRAPH, TOKENIZER, SETTINGS)
            facts["files"] = {name: facts_of_file(part / name) for name in names}
            (part / MANIFEST).write_text(json_text(facts, MANIFEST), encoding="utf-8")
            facts["checked"] = _check(part, model, levels, encoded[:checked], words, int8)
            (part / MANIFEST).write_text(json_text(facts, MANIFEST), encoding="utf-8")
            put(part, folder)
    return facts


def _check_free(folder: Path) -> None:
    if folder.exists() and not is_export(folder):
        raise ValueError(f"{folder} exists and is not an exported model; choose another folder")


def _shares(kept: Sequence[Allocation]) -> list[list[float] | None]:
    """The share of a text's tokens that each layer reads, at each level that drops any."""
    return [list(one.schedule.shares) if one.schedule else None for one in kept]


def nested_at(model: Elastic, levels: Sequence[float]) -> Elastic:
    """The model, or a nested one that keeps the same units at these levels.

    Gates have an order for each budget. Where a level keeps all units of the levels below it, one
    order gives the same; else one set of weights can't serve them all.
    """
    if model.form == "nested":
        return model
    bought = [torch.tensor(model.allocation(level).kept) for level in levels]
    for (low, less), (high, more) in pairwise(zip(levels, bought, strict=True)):
        swapped = int((less & ~more).sum())
        if swapped:
            raise ValueError(
                f"budget {high:g} switches off {swapped} units that {low:g} keeps, so one set of "
                "weights can't serve both: only nested models are exported; convert it"
            )
    often = torch.stack(bought).sum(0).double() * model.units.shares
    made = model.nested(often).made_for("nested", model.floor, lowest=levels[0])
    for level in levels:
        if _counts(made.allocation(level)) != _counts(model.allocation(level)):
            raise ValueError(
                f"no order of units keeps at {level:g} what the gates keep: only nested models are "
                "exported; convert it"
            )
    return made


def _counts(kept: Allocation) -> dict[str, dict[str, int]]:
    """How many units of each site are kept."""
    return {
        layer: {kind: len(indices) for kind, indices in of_kind.items()}
        for layer, of_kind in kept.to_dict().items()
    }


def _check_installed() -> None:
    require("onnx")
    require("onnxruntime")


def _levels(model: Elastic, asked: Sequence[float] | None) -> tuple[float, ...]:
    """The levels of a file: those that were asked for, or the usual ones of the model's range."""
    if asked is None:
        return model.within(LEVELS)
    levels = check_levels(asked)
    for level in levels:
        model.allocation(level)  # complains of one that is below the model's range
    return levels


@torch.no_grad()
def _check(
    folder: Path,
    model: Elastic,
    levels: Sequence[float],
    encoded: Sequence[Sequence[int]],
    words: Tokenizer,
    int8: bool,
) -> dict[str, Any]:
    """How the written file answers beside the views at each level, and alone beside a batch."""
    import onnx

    onnx.checker.check_model(str(folder / GRAPH))
    runtime, views = Runtime(folder), Skipping(model)
    differences, agreements, changed = [], [], []
    for level in levels:
        wanted = _in_batches(on_arrays(views.at(level)), words, encoded, len(encoded))
        answer = partial(runtime, budget=level)
        found = _in_batches(answer, words, encoded, _TOGETHER)
        of_rows = np.abs(found - wanted).max(axis=-1)
        difference = float(of_rows.max())
        spared = _spared(len(encoded)) if model.allocation(level).schedule else 0
        far = int((of_rows > _DIFFERENCE).sum())
        if not np.isfinite(difference) or (not int8 and far > spared):
            raise ValueError(
                f"the graph answers otherwise than the model at {level:g}, by {difference:.2g}: "
                "please report this architecture"
            )
        alone = _in_batches(answer, words, encoded, 1)
        differences.append(float(f"{difference:.3g}"))
        agreements.append(float((found.argmax(-1) == wanted.argmax(-1)).mean()))
        changed.append(float((found.argmax(-1) != alone.argmax(-1)).mean()))
    return {
        "rows": len(encoded),
        "differences": differences,
        "agreements": agreements,
        "changed": changed,  # share of labels that are others alone than in a batch of 32
    }


def _spared(rows: int) -> int:
    """How many rows may have such a tie: one at least, but never all of them."""
    return min(rows - 1, max(1, int(_TIES * rows)))


def _in_batches(
    model: Answering, words: Tokenizer, encoded: Sequence[Sequence[int]], batch: int
) -> NDArray[Any]:
    """Logits of rows in batches, in the order in which they came."""
    parts = [encoded[start : start + batch] for start in range(0, len(encoded), batch)]
    return np.concatenate([model(**words.pad_arrays(part)) for part in parts])
