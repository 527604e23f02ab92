"""Exporting: a nested checkpoint → a folder that ONNX Runtime runs at any of its levels."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from apportion.elastic.checkpoint import Checkpoint, weights_digest
from apportion.elastic.elastic import Elastic, logits_of
from apportion.files import holding, json_text, part_of, remove, resolved
from apportion.serving.runtime.engines import LEVELS, check_levels
from apportion.serving.runtime.exported import (
    FORMAT,
    GRAPH,
    MANIFEST,
    SETTINGS,
    TOKENIZER,
    VERSION,
    facts_of_file,
)
from apportion.serving.runtime.graph import OPSET, build_graph
from apportion.serving.runtime.quantisation import calibrate_scales
from apportion.serving.runtime.session import Runtime
from apportion.serving.skipping import Skipping

TARGETS = {"vnni": 8, "any": 7}  # bits of int8 weights: products of 8 saturate without VNNI
_CALIBRATED = 256  # texts that scales are taken from
_CHECKED = 64  # texts that the written file answers beside the views
_DIFFERENCE = 1e-3  # of logits in single precision: more is not rounding


def export(
    checkpoint: Checkpoint,
    folder: str | Path,
    *,
    texts: Sequence[str] = (),
    levels: Sequence[float] | None = None,
    int8: bool = False,
    target: str | None = None,
) -> dict[str, Any]:
    """Writes a nested checkpoint as one ONNX file with a budget input; what its manifest says.

    `int8` takes its scales from `texts`, and its weights have as many bits as the target computes
    without saturating: "vnni" or "any"; this machine's, if none is named. The file is checked
    against the views of the checkpoint at every level before it takes its place.
    """
    model = checkpoint.elastic
    if model is None or model.form != "nested":
        raise ValueError("only a nested model has one set of weights for all levels; convert it")
    if checkpoint.words is None or checkpoint.words.settings is None or not checkpoint.classes:
        raise ValueError(
            "the checkpoint has no tokenizer or no classes, so its file could read no text"
        )
    levels = _levels(model, levels)
    target = this_target() if target is None else target
    if target not in TARGETS:
        raise ValueError(f"a target is one of {', '.join(TARGETS)}, not {target!r}")
    texts = list(texts)[:_CALIBRATED]
    if int8 and not texts:
        raise ValueError("int8 needs texts that its scales are taken from")
    words = checkpoint.words
    encoded = words.encode(texts or ["a text to check the file with"])
    batches = [words.pad(encoded[start : start + 32]) for start in range(0, len(encoded), 32)]
    scales = calibrate_scales(model, batches, levels, bits=TARGETS[target]) if int8 else None
    graph = build_graph(model, levels, scales=scales)
    kept = [model.allocation(level) for level in levels]
    facts: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "levels": list(levels),
        "costs": [round(one.cost, 6) for one in kept],
        "kept": [one.to_dict() for one in kept],
        "classes": list(checkpoint.classes),
        "length": words.length,
        "precision": "int8" if int8 else "float32",
        "target": target if int8 else None,
        "opset": OPSET,
        "weights": weights_digest(model),
        "task": checkpoint.notes.get("task"),
    }
    folder = resolved(Path(folder))
    with holding(folder) as alone:
        if folder.exists() and not (folder / MANIFEST).exists():
            raise ValueError(f"{folder} exists and is not an exported model; choose another folder")
        with part_of(folder, alone) as part:
            part.mkdir()
            (part / GRAPH).write_bytes(graph.SerializeToString())
            (part / TOKENIZER).write_text(words.to_json(), encoding="utf-8")
            settings = json_text(words.settings or {}, SETTINGS)
            (part / SETTINGS).write_text(settings, encoding="utf-8")
            names = (GRAPH, TOKENIZER, SETTINGS)
            facts["files"] = {name: facts_of_file(part / name) for name in names}
            (part / MANIFEST).write_text(json_text(facts, MANIFEST), encoding="utf-8")
            facts["checked"] = _check(part, model, levels, encoded[:_CHECKED], words, int8)
            (part / MANIFEST).write_text(json_text(facts, MANIFEST), encoding="utf-8")
            remove(folder)
            part.rename(folder)
    return facts


def this_target() -> str:
    """What int8 weights this machine computes with."""
    if platform.machine().lower() in ("aarch64", "arm64"):
        return "vnni"  # its dot products do not saturate
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return "any"
    return "vnni" if "avx512_vnni" in flags or "avx_vnni" in flags else "any"


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
    words: Any,
    int8: bool,
) -> dict[str, Any]:
    """How the written file answers beside the views, at each level."""
    runtime, views = Runtime(folder), Skipping(model)
    inputs = words.pad(encoded)
    arrays = {name: values.numpy() for name, values in inputs.items()}
    differences, agreements = [], []
    for level in levels:
        found = runtime(**arrays, budget=level)
        wanted = logits_of(views(**inputs, budget=level)).numpy()
        difference = float(np.abs(found - wanted).max())
        if not np.isfinite(difference) or (not int8 and difference > _DIFFERENCE):
            raise ValueError(
                f"the graph answers otherwise than the model at {level:g}, by {difference:.2g}: "
                "please report this architecture"
            )
        differences.append(float(f"{difference:.3g}"))
        agreements.append(float((found.argmax(-1) == wanted.argmax(-1)).mean()))
    return {"rows": len(encoded), "differences": differences, "agreements": agreements}
