"""Sessions: a checkpoint or an exported folder, answering each call at the budget asked for.

An exported folder needs ONNX Runtime, tokenizers and numpy; torch is not imported for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.data.tokenizer import Tokenizer
from apportion.files import present
from apportion.serving.milliseconds.forecast import Deadline, Forecast, fingerprint_of, forecast_of
from apportion.serving.runtime.engines import Engine, FileEngine, ViewEngine
from apportion.serving.runtime.exported import is_export
from apportion.serving.runtime.prediction import batches_of, softmax

_SLACK = 1e-6  # as in the graph: a budget of 0.1 + 0.2 pays for 0.3


class Runtime:
    """One model, every level: `runtime.predict(texts, budget=0.25)`.

    Of a folder that `export` wrote, run by ONNX Runtime, or of a checkpoint, run by torch; both
    answer alike. A checkpoint has the usual levels of its range, or those that are given. Threads
    may share a runtime: a call changes nothing. It takes one thread of the machine unless it is
    given more, and its idle threads do not spin.
    """

    def __init__(
        self, folder: str | Path, *, threads: int = 1, levels: Sequence[float] | None = None
    ) -> None:
        folder = present(Path(folder))
        if type(threads) is not int or threads < 1:
            raise ValueError(f"threads must be a whole number of at least 1, not {threads!r}")
        if not folder.is_dir():
            raise ValueError(f"there is no folder {folder}")
        if is_export(folder):
            if levels is not None:
                raise ValueError("the levels of an exported folder were chosen when it was written")
            engine: Engine = FileEngine(folder, threads)
        else:
            engine = ViewEngine(folder, threads, levels)
        self._engine = engine
        self.folder = folder
        self.threads = threads
        self.facts: dict[str, Any] = engine.facts
        self.identity: dict[str, str] = engine.identity
        self.levels: tuple[float, ...] = tuple(self.facts["levels"])
        self.costs: tuple[float, ...] = tuple(self.facts["costs"])
        self.classes: tuple[str, ...] = tuple(self.facts["classes"])
        self.tokenizer: Tokenizer = engine.tokenizer

    def __call__(
        self,
        input_ids: NDArray[Any],
        attention_mask: NDArray[Any] | None = None,
        *,
        budget: float = 1.0,
        token_type_ids: NDArray[Any] | None = None,
    ) -> NDArray[np.float32]:
        """The logits [rows, classes] of the highest level that a budget pays for."""
        level, ids = self.level_of(budget), np.asarray(input_ids)
        mask = np.ones_like(ids) if attention_mask is None else np.asarray(attention_mask)
        types = None if token_type_ids is None else np.asarray(token_type_ids)
        if ids.ndim != 2 or mask.shape != ids.shape or not ids.size:
            raise ValueError(
                f"input_ids and attention_mask are [rows, tokens], not {ids.shape} and {mask.shape}"
            )
        if types is not None and types.shape != ids.shape:
            raise ValueError(f"token_type_ids are {ids.shape} as input_ids, not {types.shape}")
        if ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() > self._highest:
            raise ValueError(f"input_ids are whole numbers from 0 to {self._highest}")
        return self._engine.answer(ids, mask, types, level)

    @cached_property
    def _highest(self) -> int:
        return self.tokenizer.highest

    def level_of(self, budget: float) -> float:
        """The highest level that a budget pays for; below the lowest is an error."""
        if isinstance(budget, bool | str) or not 0.0 < budget <= 1.0:
            raise ValueError(f"a budget is a number in (0, 1], not {budget!r}")
        paid = [level for level in self.levels if level <= budget + _SLACK]
        if not paid:
            raise ValueError(
                f"budget {budget:g} is below the lowest level of this file, {self.levels[0]:g}"
            )
        return paid[-1]

    @cached_property
    def forecast(self) -> Forecast:
        """How long calls take here, as `apportion calibrate` measured them on this machine."""
        here = fingerprint_of(self.identity, self.threads)
        return forecast_of(self.folder, fingerprint=here, levels=self.levels)

    def within(
        self,
        ms: float,
        *,
        budget: float = 1.0,
        strict: bool = False,
        tell: Callable[[str], None] | None = None,
    ) -> Callable[..., NDArray[np.float32]]:
        """The runtime as a function of arrays that takes so many milliseconds at most.

        Each call runs the highest level, up to a budget, whose forecast fits. If not even the
        lowest fits, it is run and `tell` is told so; or, if `strict`, that is an error.
        """
        Deadline(self.forecast, ms)  # complains now
        highest = self.level_of(budget)

        def answer(
            input_ids: NDArray[Any], attention_mask: NDArray[Any] | None = None
        ) -> NDArray[np.float32]:
            deadline = Deadline(self.forecast, ms, strict=strict, tell=tell)
            level = deadline.level([input_ids.shape], budget=highest)
            return self(input_ids, attention_mask, budget=level)

        return answer

    def predict(
        self,
        texts: Sequence[str],
        *,
        budget: float = 1.0,
        within_ms: float | None = None,
        strict: bool = False,
        batch: int = 32,
    ) -> list[tuple[str, float]]:
        """The likeliest class of each text, and its probability.

        With `within_ms`, at the highest level, up to the budget, at which all texts are answered
        in so many milliseconds by the forecast, what encoding them took included. If not even the
        lowest fits, it is run, with a warning; or, if `strict`, that is an error.
        """
        if isinstance(texts, str):
            raise ValueError("texts are a list; a single one is [text]")
        if type(batch) is not int or batch < 1:
            raise ValueError(f"a batch has 1 row at least, not {batch!r}")
        deadline = None
        if strict and within_ms is None:
            raise ValueError("strict is about milliseconds: it needs within_ms")
        if within_ms is not None:
            deadline = Deadline(self.forecast, within_ms, strict=strict)
        encoded = self.tokenizer.encode(texts)
        found: list[tuple[str, float]] = [("", 0.0)] * len(encoded)
        batches = list(batches_of(self.tokenizer, encoded, batch))
        if deadline is not None:
            calls = [rows["input_ids"].shape for _, rows in batches]
            budget = deadline.level(calls, budget=self.level_of(budget))
        for places, rows in batches:
            likely = softmax(self(**rows, budget=budget))
            if not np.isfinite(likely).all():
                raise ValueError(f"the model answers with numbers that are none at {budget:g}")
            for place, row in zip(places, likely, strict=True):
                found[place] = (self.classes[int(row.argmax())], float(row.max()))
        return found
