"""Measuring: latency of several arms side by side, beside what multiply-accumulates let expect."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from apportion.elastic.elastic import check_elastic
from apportion.method.units import Allocation
from apportion.models.compute import compare_compute, count_macs
from apportion.models.sites import find_sites
from apportion.models.surgery import cut, view
from apportion.serving.runtime.fusing import fuse
from apportion.serving.runtime.skipping import Skipping

Arm = Callable[[], object]
GATED_FORMS = ("fused", "soft", "hard", "skip", "cut")
NESTED_FORMS = ("fused", "skip", "cut")  # those of them that save time
TIMED_FORMS = ("given", *GATED_FORMS)  # all that can be asked for
FUSED = ("fused", 1.0)  # the dense model with the fused sums that skipping has
GIVEN = ("given", 1.0)  # the dense model that computes all of its last layer


@dataclass(frozen=True)
class Latency:
    """How long one arm took, and how it compares with the first arm, repeat by repeat."""

    arm: str
    median_ms: float
    speedup: float  # median of the paired ratios: above 1 is faster than the first arm
    low: float  # 95 % interval of that median
    high: float
    of_medians: float  # the first arm's median over this one's
    repeats: int
    threads: int


def measure(
    arms: Mapping[str, Arm | Sequence[Arm]],
    repeats: int = 30,
    *,
    warmup: int = 3,
    threads: int = 1,
    progress: Callable[[int, int], None] | None = None,
    wait: Callable[[], object] | None = None,
) -> list[Latency]:
    """The latency of each arm, the first being what the others are compared with.

    An arm is one call, or a list of calls whose times are summed. Arms take turns call by call
    and the order turns round from repeat to repeat, so that a machine that slows down slows all
    of them. Where calls return before their work is done, as on a GPU, `wait` returns when it is.
    Don't measure while something else is running.
    """
    times = take_times(arms, repeats, warmup, threads, progress, wait)
    return compare_times(times, next(iter(times)), threads)


def take_times(
    arms: Mapping[str, Arm | Sequence[Arm]],
    repeats: int,
    warmup: int,
    threads: int,
    progress: Callable[[int, int], None] | None,
    wait: Callable[[], object] | None,
) -> dict[str, list[float]]:
    """Milliseconds of each arm, repeat by repeat."""
    if not arms or repeats < 5:
        # The extremes of 6 are a 95 % interval of the median, those of the paper's 5 a 94 % one.
        raise ValueError(f"measuring needs an arm and at least 5 repeats, not {repeats}")
    names = list(arms)
    calls = {name: [arm] if callable(arm) else list(arm) for name, arm in arms.items()}
    count = len(calls[names[0]])
    if not count or any(len(parts) != count for parts in calls.values()):
        raise ValueError("every arm needs as many calls as the others, one at least")
    times: dict[str, list[float]] = {name: [0.0] * repeats for name in names}
    with using_threads(threads), torch.inference_mode():
        for turn in range(-warmup, repeats):
            for part in range(count):
                for name in _turned(names, turn + part):
                    if wait:
                        wait()  # or this call would pay for what is still under way
                    started = time.perf_counter()
                    calls[name][part]()
                    if wait:
                        wait()
                    elapsed = time.perf_counter() - started
                    if turn >= 0:
                        times[name][turn] += elapsed * 1000.0
            if progress:
                progress(turn + warmup + 1, warmup + repeats)
    return times


def compare_times(times: Mapping[str, list[float]], reference: str, threads: int) -> list[Latency]:
    """Each arm beside the reference."""
    results = []
    for name, own in times.items():
        ratios = [first / mine for first, mine in zip(times[reference], own, strict=True)]
        low, high = median_interval(ratios)
        median = statistics.median(own)
        results.append(
            Latency(
                arm=name,
                median_ms=median,
                speedup=statistics.median(ratios),
                low=low,
                high=high,
                of_medians=statistics.median(times[reference]) / median,
                repeats=len(own),
                threads=threads,
            )
        )
    return results


def _turned(names: list[str], turn: int) -> list[str]:
    """The names in another order each turn: who goes first moves on, and the direction changes."""
    first = turn // 2 % len(names)
    order = names[first:] + names[:first]
    return order[::-1] if turn % 2 else order


def median_interval(values: list[float]) -> tuple[float, float]:
    """A distribution-free 95 % interval of the median, from order statistics."""
    from scipy import stats  # half of the time that importing apportion would take

    ordered = sorted(values)
    count = len(ordered)
    below = int(stats.binom.ppf(0.025, count, 0.5))
    # The binomial's lower quantile is how many values may lie below the median by chance.
    rank = max(0, below - 1)
    return ordered[rank], ordered[count - 1 - rank]


@contextmanager
def using_threads(threads: int) -> Iterator[None]:
    """Torch works with this many threads inside, and with as many as before afterwards."""
    if threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    most = max(64, 4 * (os.cpu_count() or 1))  # with thousands, torch ends the process
    if threads > most:
        raise ValueError(f"threads must be at most {most} on this machine, not {threads}")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Timed:
    """A model as it is timed: what is called, and the plain model whose work a call does."""

    call: nn.Module
    computes: nn.Module
    options: Mapping[str, object] = field(default_factory=dict)  # of each call


Arms = Mapping[tuple[str, float], Timed]  # by form and budget; the first is the dense model


def elastic_arms(
    model: nn.Module,
    budgets: Iterable[float],
    floor: int | None = None,
    forms: Sequence[str] | None = None,
    reload: Callable[[nn.Module, Allocation], nn.Module] | None = None,
) -> Arms:
    """The arms of an elastic model.

    All units open, also with fused sums where the architecture has any, and, at each budget, soft
    gates, the hard mask, hard skipping and the cut model, which `reload` may save and load before.
    Soft gates and the hard mask compute every unit. Skipping fuses its sums: beside the fused model
    its speed is the budget's alone. Where views compute the last layer for token 0 alone, so do the
    dense and the fused model; cut models are plain ones, and compute all of it, as does the dense
    model that is "given".
    """
    model = check_elastic(model)
    forms = forms or (NESTED_FORMS if model.form == "nested" else GATED_FORMS)
    plain, served = model.plain(), model.served()
    skipping = Skipping(model, floor)
    arms = {("dense", 1.0): Timed(served, served)}
    if "given" in forms:
        arms[GIVEN] = Timed(plain, plain)
    if "soft" in forms:
        model.opening(1.0, "soft")  # complains now, and not when it is timed
    if "fused" in forms and any(site.norm for site in find_sites(plain, block=1)):
        everything = Allocation.of(model.units, range(len(model.units)))
        arms[FUSED] = Timed(fuse(view(served, everything).eval()), served)
    for budget in budgets:
        allocation = model.allocation(budget, floor)
        # Skipping shares memory between budgets; so do these, or caches would favour the one.
        smaller = view(plain, allocation)
        if reload is not None:
            smaller = reload(cut(plain, allocation), allocation)
        if "skip" in forms:
            skipping.prepare(budget)
        of_form = {
            "soft": Timed(model, plain, {"budget": budget, "form": "soft"}),
            "hard": Timed(model, plain, {"allocation": allocation}),
            "skip": Timed(skipping, view(served, allocation), {"budget": budget}),
            "cut": Timed(smaller, smaller),
        }
        arms |= {(form, budget): of_form[form] for form in forms if form in of_form}
    return arms


def time_arms(
    arms: Arms,
    batches: Sequence[Mapping[str, Tensor]],
    repeats: int,
    threads: int = 1,
    warmup: int = 3,
    progress: Callable[[int, int], None] | None = None,
    device: str = "cpu",
) -> list[dict[str, Any]]:
    """Latency records of some arms over some batches.

    `bound` is an estimate by multiply-accumulates, not a limit: attention can be dearer.
    """
    here = [{name: values.to(device) for name, values in inputs.items()} for inputs in batches]
    named = {
        f"{form} {budget:g}": _calls_on(_moved(arm.call, device), here, **arm.options)
        for (form, budget), arm in arms.items()
    }
    kind = torch.device(device).type
    wait = None if kind == "cpu" else partial(torch.accelerator.synchronize, torch.device(device))
    times = take_times(named, repeats, warmup, threads, progress, wait)
    results = compare_times(times, "dense 1", threads)
    over_fused: dict[tuple[str, float], dict[str, Any]] = {}
    if FUSED in arms:
        beside = zip(arms, compare_times(times, "fused 1", threads), strict=True)
        over_fused = {arm: {"over_fused": _ratios(result)} for arm, result in beside}
    computes = {arm: timed.computes for arm, timed in arms.items()}
    plain = computes["dense", 1.0]
    shapes = [tuple(inputs["input_ids"].shape) for inputs in batches]
    rows = sum(count for count, _ in shapes)
    macs = {
        arm: sum(count * count_macs(computed, width) for count, width in shapes) // rows
        for arm, computed in computes.items()
    }
    longest = max(width for _, width in shapes)
    removed = {
        budget: {
            name: round(share, 4)
            for name, share in compare_compute(plain, computed, longest).items()
        }
        for (form, budget), computed in computes.items()
        if form == "cut"
    }
    return [
        {
            "kind": "latency",
            "form": form,
            "budget": budget,
            "rows": rows,
            "batch": max(count for count, _ in shapes),
            "length": longest,
            "tokens": round(sum(count * width for count, width in shapes) / rows, 1),
            "runtime": "torch eager",
            **({} if wait is None else {"device": kind, "device_name": _device_name(device)}),
            "macs": macs[form, budget],
            "bound": round(macs["dense", 1.0] / macs[form, budget], 4),
            **({"removed": removed[budget]} if form == "cut" else {}),
            **_rounded(asdict(result)),
            **(
                over_fused.get((form, budget), {})
                if form in ("soft", "hard", "skip", "cut")
                else {}
            ),
        }
        for (form, budget), result in zip(arms, results, strict=True)
    ]


def _ratios(result: Latency) -> dict[str, Any]:
    """How much faster an arm is, as a record has it."""
    names = ("speedup", "low", "high", "of_medians")
    return _rounded({name: getattr(result, name) for name in names})


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in values.items()}


def _calls_on(
    model: nn.Module, batches: Iterable[Mapping[str, Tensor]], **options: object
) -> list[Arm]:
    """An arm: the model, in evaluation mode, called on each of the batches."""
    model.eval()
    return [partial(model, **inputs, **options) for inputs in batches]


def _moved(model: nn.Module, device: str) -> nn.Module:
    """A model on a device; one that is there is left alone, as `to` undoes what was prepared."""
    there = next(model.parameters()).device.type == torch.device(device).type
    return model if there else model.to(device)


def _device_name(device: str) -> str:
    """What a device calls itself, for records."""
    on_cuda = torch.device(device).type == "cuda"
    return torch.cuda.get_device_name(device) if on_cuda else device
