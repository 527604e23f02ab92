"""Switching: what it takes to change the budget of a model, in time and in memory."""

from __future__ import annotations

import statistics
import time
import tracemalloc
from collections.abc import Sequence
from typing import Any

from torch import nn

from apportion.elastic.elastic import Elastic
from apportion.serving.runtime.skipping import Skipping

SWITCHES = 1000


def time_switching(model: Elastic, budgets: Sequence[float]) -> dict[str, Any]:
    """What it takes to change the budget, in time and in memory, as a record.

    `first_ms` is of a budget that was never asked for; `switch_us` of one that was, as a median.
    `extra_bytes` are those of tensors that the whole model does not hold, `object_bytes` those of
    the modules that hold the views.
    """
    skipping, other = Skipping(model), Skipping(model)
    whole = _storages(skipping.whole)
    started = time.perf_counter()
    skipping.prepare(*budgets)
    first = (time.perf_counter() - started) / len(budgets)
    taken = []
    for turn in range(SWITCHES):
        budget = budgets[turn % len(budgets)]
        started = time.perf_counter_ns()
        skipping.at(budget)
        taken.append((time.perf_counter_ns() - started) / 1000.0)
    every = {k: v for budget in budgets for k, v in _storages(skipping.at(budget)).items()}
    extra = sum(size for place, size in every.items() if place not in whole)
    tracemalloc.start()
    other.prepare(*budgets)
    objects, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {
        "kind": "switching",
        "budgets": list(budgets),
        "switch_us": round(statistics.median(taken), 3),
        "slowest_us": round(max(taken), 3),
        "first_ms": round(1000.0 * first, 3),
        "extra_bytes": extra,
        "object_bytes": objects,
        "whole_bytes": sum(whole.values()),
    }


def _storages(model: nn.Module) -> dict[int, int]:
    """The memory that a model's tensors lie in: where, and how many bytes; views share it."""
    tensors = (*model.parameters(), *model.buffers())
    places = (tensor.untyped_storage() for tensor in tensors)
    return {place.data_ptr(): place.nbytes() for place in places if place.nbytes()}
