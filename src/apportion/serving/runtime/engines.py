"""Engines: what computes logits at a level, by ONNX Runtime or by torch.

Both are made from a folder and say the same of it. Torch is imported for checkpoints alone.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from apportion.data.tokenizer import Tokenizer
from apportion.extras import require
from apportion.files import first_line, read_json
from apportion.serving.milliseconds.machine import int8_target
from apportion.serving.runtime.exported import (
    GRAPH,
    SETTINGS,
    TOKENIZER,
    check_files,
    read_export,
)

LEVELS = (0.125, 0.25, 0.375, 0.5, 0.75, 1.0)  # those that are inside a model's range


class Engine(Protocol):
    """A model at its levels, whatever computes it."""

    facts: dict[str, Any]  # levels, costs, kept units, classes, precision, …
    identity: dict[str, str]
    tokenizer: Tokenizer

    def answer(
        self, ids: NDArray[Any], mask: NDArray[Any], types: NDArray[Any] | None, level: float
    ) -> NDArray[np.float32]:
        """The logits [rows, classes] of a level."""


class FileEngine:
    """An exported folder, run by ONNX Runtime."""

    def __init__(self, folder: Path, threads: int) -> None:
        onnxruntime = require("onnxruntime")
        self.facts = read_export(folder)
        check_files(self.facts, folder)
        self._session = open_session(folder / GRAPH, threads)
        self._inputs = {given.name for given in self._session.get_inputs()}
        missing = {"input_ids", "attention_mask", "budget"} - self._inputs
        if missing:
            raise ValueError(
                f"{folder / GRAPH} is no graph that export wrote: it has no input {min(missing)}"
            )
        answers, classes = self._session.get_outputs()[0].shape[-1], self.facts["classes"]
        if answers != len(classes):
            raise ValueError(f"{folder} names {len(classes)} classes, and its graph has {answers}")
        saturates = self.facts.get("target") == "vnni" and int8_target() != "vnni"
        if saturates:
            warnings.warn(
                f"{folder} has int8 weights for processors with VNNI, which this one has not: its "
                "products saturate, so answers are wrong; export with --target any",
                stacklevel=3,
            )
        text = (folder / TOKENIZER).read_text(encoding="utf-8")
        self.tokenizer = Tokenizer.from_json(text, read_json(folder / SETTINGS))
        self.identity = {
            "weights": self.facts["files"][GRAPH]["sha256"],
            "levels": _digest(self.facts),
            "tokenizer": self.tokenizer.digest,
            "runtime": f"onnxruntime {onnxruntime.__version__}",
            "precision": self.facts["precision"] + (", saturating" if saturates else ""),
        }

    def answer(
        self, ids: NDArray[Any], mask: NDArray[Any], types: NDArray[Any] | None, level: float
    ) -> NDArray[np.float32]:
        """The logits [rows, classes] of a level."""
        given = {
            "input_ids": np.asarray(ids, np.int64),
            "attention_mask": np.asarray(mask, np.int64),
            "budget": np.array(level, np.float32),
        }
        if "token_type_ids" in self._inputs:
            given["token_type_ids"] = np.asarray(
                np.zeros_like(ids) if types is None else types, np.int64
            )
        logits: NDArray[np.float32] = self._session.run(None, given)[0]
        return logits


class ViewEngine:
    """A checkpoint, run by torch: views of one set of weights. Torch's threads are the process's.

    A model without budgets has one level, 1.
    """

    def __init__(self, folder: Path, threads: int, levels: Sequence[float] | None) -> None:
        torch = require("torch")

        from apportion.elastic.checkpoint import load, weights_sha256
        from apportion.models.configs import config_of
        from apportion.serving.runtime.arrays import on_arrays
        from apportion.serving.runtime.skipping import Skipping

        loaded = load(folder)
        if loaded.words is None or not loaded.classes:
            raise ValueError(f"{folder} was not trained on texts, so it can't read them")
        model = loaded.elastic
        if model is None:
            levels, kept, costs = check_levels(levels or (1.0,)), None, [1.0]
            if levels != (1.0,):
                raise ValueError(
                    f"a {loaded.kind} checkpoint has no budgets, so its one level is 1"
                )
            self._at = {1.0: on_arrays(loaded.plain.eval())}
        else:
            levels = model.within(LEVELS) if levels is None else check_levels(levels)
            bought = [model.allocation(level) for level in levels]
            kept, costs = [one.to_dict() for one in bought], [one.cost for one in bought]
            views = Skipping(model)
            self._at = {level: on_arrays(views.at(level)) for level in levels}
        torch.set_num_threads(threads)
        self.tokenizer = loaded.words
        self.facts = {
            "format": "apportion-checkpoint",
            "levels": list(levels),
            "costs": [round(cost, 6) for cost in costs],
            "kept": kept,
            "classes": list(loaded.classes),
            "length": loaded.words.length,
            "precision": "float32",
            "task": loaded.notes.get("task"),
        }
        self.identity = {
            "weights": weights_sha256(loaded.model),
            # Weights do not say which units and tokens a level buys, nor what is computed of them.
            "levels": _digest(
                self.facts, repr(model and model.frontier), _shape(config_of(loaded.plain))
            ),
            "tokenizer": self.tokenizer.digest,
            "runtime": f"torch {torch.__version__.split('+')[0]}",
            "precision": "float32",
        }

    def answer(
        self, ids: NDArray[Any], mask: NDArray[Any], types: NDArray[Any] | None, level: float
    ) -> NDArray[np.float32]:
        """The logits [rows, classes] of a level."""
        given = {"input_ids": ids, "attention_mask": mask}
        if types is not None:
            given["token_type_ids"] = types
        return self._at[level](**given)


def _digest(facts: Mapping[str, Any], *others: Any) -> str:
    """A hash of what levels buy, and of what else decides what they compute."""
    names = ("levels", "costs", "kept", "shares")
    values = [{name: facts.get(name) for name in names}, *others]
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def _shape(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config without what it says of where it lay and who wrote it."""
    written = ("transformers_version",)
    return {n: v for n, v in config.items() if not n.startswith("_") and n not in written}


def open_session(path: Path, threads: int) -> Any:
    """A session of ONNX Runtime on the processor; its idle threads do not spin."""
    onnxruntime = require("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # Threads that wait would spin, and take the processor from whoever has work.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4  # what goes wrong is raised, and said once
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the library's own, of many kinds
        raise ValueError(f"{path} can't be run: {first_line(error)}") from None


def check_levels(levels: Sequence[float]) -> tuple[float, ...]:
    """Levels from the smallest up; none, or one that is named twice, is an error."""
    if not levels or len(set(levels)) < len(levels):
        raise ValueError(f"levels are different budgets, one at least, not {list(levels)}")
    return tuple(sorted(float(level) for level in levels))
