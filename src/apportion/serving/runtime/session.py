"""Sessions: an exported folder, answering each call at the budget that is asked for.

Needs ONNX Runtime, tokenizers and numpy; torch is not imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.data.tokenizer import Tokenizer
from apportion.files import read_json
from apportion.serving.runtime.exported import (
    GRAPH,
    SETTINGS,
    TOKENIZER,
    check_files,
    read_export,
)

_SLACK = 1e-6  # as in the graph: a budget of 0.1 + 0.2 pays for 0.3


class Runtime:
    """One file, every level: `runtime.predict(texts, budget=0.25)`.

    Threads may share it: a call changes nothing. It takes one thread of the machine unless it is
    given more, and its idle threads do not spin.
    """

    def __init__(self, folder: str | Path, *, threads: int = 1) -> None:
        onnxruntime = _onnxruntime()
        folder = Path(folder)
        self.facts = read_export(folder)
        check_files(self.facts, folder)
        self.levels: tuple[float, ...] = tuple(self.facts["levels"])
        self.classes: tuple[str, ...] = tuple(self.facts["classes"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(
                str(folder / GRAPH), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # the library's own, of many kinds
            raise ValueError(f"{folder / GRAPH} can't be run: {_first_line(error)}") from None
        self._inputs = {given.name for given in self._session.get_inputs()}
        text = (folder / TOKENIZER).read_text(encoding="utf-8")
        self.tokenizer = Tokenizer.from_json(text, read_json(folder / SETTINGS))

    def __call__(
        self,
        input_ids: NDArray[Any],
        attention_mask: NDArray[Any] | None = None,
        *,
        budget: float = 1.0,
        token_type_ids: NDArray[Any] | None = None,
    ) -> NDArray[np.float32]:
        """The logits [rows, classes] of the highest level that a budget pays for."""
        self.level_of(budget)
        ids = np.asarray(input_ids, np.int64)
        given = {"input_ids": ids, "budget": np.array(budget, np.float32)}
        mask = np.ones_like(ids) if attention_mask is None else attention_mask
        given["attention_mask"] = np.asarray(mask, np.int64)
        if "token_type_ids" in self._inputs:
            types = np.zeros_like(ids) if token_type_ids is None else token_type_ids
            given["token_type_ids"] = np.asarray(types, np.int64)
        logits: NDArray[np.float32] = self._session.run(None, given)[0]
        return logits

    def level_of(self, budget: float) -> float:
        """The highest level that a budget pays for; below the lowest is an error."""
        if not 0.0 < budget <= 1.0:
            raise ValueError(f"a budget is a number in (0, 1], not {budget!r}")
        paid = [level for level in self.levels if level <= budget + _SLACK]
        if not paid:
            raise ValueError(
                f"budget {budget:g} is below the lowest level of this file, {self.levels[0]:g}"
            )
        return paid[-1]

    def predict(
        self, texts: Sequence[str], *, budget: float = 1.0, batch: int = 32
    ) -> list[tuple[str, float]]:
        """The likeliest class of each text, and its probability."""
        encoded = self.tokenizer.encode(texts)
        # Texts of like length go together: little is spent on padding.
        order = sorted(range(len(encoded)), key=lambda place: len(encoded[place]))
        found: list[tuple[str, float]] = [("", 0.0)] * len(encoded)
        for start in range(0, len(order), batch):
            places = order[start : start + batch]
            rows = self.tokenizer.pad_arrays([encoded[place] for place in places])
            likely = _softmax(self(**rows, budget=budget))
            for place, row in zip(places, likely, strict=True):
                found[place] = (self.classes[int(row.argmax())], float(row.max()))
        return found


def _softmax(logits: NDArray[Any]) -> NDArray[Any]:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares: NDArray[Any] = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise ValueError(
            "an exported folder is run by ONNX Runtime: pip install 'apportion[onnx]'"
        ) from None
    return onnxruntime


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
