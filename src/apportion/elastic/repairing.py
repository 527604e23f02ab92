"""Repairing: what stays makes up for what is switched off, at all budgets at once, in closed form.

A site's output is y = W h + b, of which a budget keeps the first columns. From some rows of text,
each site gets the W and b whose prefixes come nearest to what the whole model computes:

    min Σ_B w_B Σ_tokens ‖ y - W_k(B) h_k(B) - b ‖² + λ ‖ W - W₀ ‖²

with y of the dense model and h of the budget's own model, whose sites below are repaired already.
w_B = max(loss_B, ε)^-1/2, so that small budgets, which lose most, do not dominate the fit; the
whole model, which should lose nothing, weighs γ times as much. It is one set of weights for all
budgets, so it costs nothing when it runs.

Least squares can do harm: with few tokens for many unknowns they learn the rows by heart, and what
one budget gains another may lose. So rows that the fit never sees decide how far it is trusted.
They choose λ for each site, then (ε, γ) and the share μ of the way from the dense weights to the
fitted ones, W₀ + μ (W - W₀): those with the smallest Σ_B √KL(dense ‖ B). By Pinsker's inequality
√(KL / 2) bounds how far probabilities move, so that every budget counts by the answers that it
changes. The whole model and the budgets that work may change next to none of theirs.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from apportion.data.task import Split
from apportion.elastic.elastic import Elastic, logits_of, plain_of
from apportion.elastic.pairing import check_all_tokens
from apportion.method.least_squares import Equations
from apportion.method.units import Allocation
from apportion.models.activations import Stream
from apportion.models.sites import Site, find_sites
from apportion.models.surgery import view

REPAIRED_AT = (0.125, 0.25, 0.375, 0.5, 0.75, 1.0)
# (ε, γ), ε in shares of the outputs' variance; the later ones guard the whole model more
WEIGHTINGS = ((1e-9, 1.0), (1e-3, 5.0), (1e-3, 30.0))
RIDGES = (1e-3, 1e-2, 1e-1, math.inf)  # λ, in shares of the mean square of the columns of h
SHARES = (1.0, 0.75, 0.5, 0.25)  # μ; 0, the order alone, can always be had
# What the first studies were repaired with: 256 rows, and none that were held out.
VERSION_1: dict[str, Any] = {
    "budgets": tuple(step / 8 for step in range(1, 9)),
    "rows": 256,
    "weightings": ((1e-3, 1.0),),
    "ridges": (1e-3,),
    "shares": (),
}
AGREEMENT = 0.985  # the share of held-out rows that the whole model has to answer as before
_FLIPPED = 1  # row that may change all the same: of a few rows it is a large share
_WORKS = 0.9  # a budget that answers fewer of them as the dense model may lose, where others gain
_LOST = 0.02  # of the held-out rows: what a budget that works may lose
_TOKENS = 10  # fitted to, for each unknown of the largest site
HELD_OUT = 256  # rows
_CHOOSING = 2  # batches of them, from among all lengths
_BATCH = 32

Weights = dict[str, Tensor]  # of the sites' output projections, by name
Apart = list[tuple[float, float]]  # per model: divergence, and the share of rows that agree


@torch.no_grad()
def repair(
    model: Elastic,
    split: Split,
    *,
    held_out: Split | None = None,
    budgets: Sequence[float] = REPAIRED_AT,
    floor: int | None = None,
    rows: int | None = None,
    weightings: Sequence[tuple[float, float]] = WEIGHTINGS,
    ridges: Sequence[float] = RIDGES,
    shares: Sequence[float] = SHARES,
    until_taken: bool = False,
    seconds: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Elastic, dict[str, Any]]:
    """A nested model with repaired output projections, and what that took.

    Uses texts, not their labels. It fits to as many `rows` of the split as give the largest site
    enough tokens, and trusts the fit as far as `held_out` rows allow, best some that the model was
    not trained on; without them, a quarter of the split is held out. With no `shares` to choose
    from, the fit is taken as it is. The first weighting is always tried; of the others, with
    `seconds` none that would end after them, and with `until_taken` none once a share of a fit was
    taken. The given model is left alone.
    """
    if model.form != "nested":
        raise ValueError("only a nested model has one set of weights to repair; `elastic.nested()`")
    check_all_tokens(model, "repaired")
    if not shares and (len(weightings) > 1 or len(ridges) > 1):
        raise ValueError("several weightings or ridges need shares to choose from, 1.0 at least")
    split.criterion.check(plain_of(model))
    started = time.perf_counter()
    sites = find_sites(model.model, model.kinds, block=1)
    fit, check = _divide(split, held_out) if shares else (split, None)
    columns = max(site.count * site.width for site in sites)
    fit = fit.take(torch.arange(rows or _enough(fit, columns))[: len(fit)])
    run = _Run(model, sites, fit, check, [model.allocation(b, floor) for b in budgets])
    steps, done = len(weightings) * (len(sites) + len(shares)), 0

    def tell() -> None:
        nonlocal done
        done += 1
        if progress:
            progress(done, steps)

    facts: dict[str, Any] = {"repair_rows": len(fit)}
    if check is None:
        best, _ = run.fit(weightings[0], ridges, tell)
    else:
        order = run.weights(model.plain())
        apart = run.apart(order)
        assert apart is not None, "with its own weights, the whole model is the dense one"
        best, least = order, _distance(apart)
        chosen: dict[str, Any] = {
            "repair_weighting": None,
            "repair_share": 0.0,
            "repair_ridges": [],
        }
        for number, weighting in enumerate(weightings):
            if number and _is_over(started, seconds, part=number / (number + 1)):
                break
            if until_taken and chosen["repair_share"]:
                break
            fitted, solved = run.fit(weighting, ridges, tell)
            nearest = math.inf
            for share in shares:
                mixed = {n: order[n] + share * (fitted[n] - order[n]) for n in order}
                found = run.apart(mixed)
                tell()
                if found is None or _harms(found, apart, len(check)):
                    continue
                if (distance := _distance(found)) >= nearest:
                    break  # a smaller share only comes nearer to the order
                nearest = distance
                if distance < least:
                    best, least = mixed, distance
                    chosen = dict(zip(chosen, (weighting, share, solved), strict=True))
        facts |= {"repair_held_out": len(check), **chosen}
    repaired = copy.deepcopy(model)
    for name, values in best.items():
        repaired.model.get_parameter(name).copy_(values)
    repaired.made_for("nested", model.floor if floor is None else floor, lowest=min(budgets))
    return repaired, {**facts, "repair_seconds": round(time.perf_counter() - started, 1)}


def _is_over(started: float, seconds: float | None, *, part: float) -> bool:
    """Whether the time is too short for the whole of what this part of was done so far."""
    return seconds is not None and (time.perf_counter() - started) / part > seconds


def _divide(split: Split, held_out: Split | None) -> tuple[Split, Split]:
    """The rows to fit to, and those that choose."""
    if held_out is not None:
        return split, held_out.take(torch.arange(len(held_out))[:HELD_OUT])
    if len(split) < 2:
        raise ValueError("a repair needs two rows at least: one to fit to, and one held out")
    order = torch.arange(len(split))
    last = len(split) - max(1, min(HELD_OUT, len(split) // 4))
    return split.take(order[:last]), split.take(order[last:])


def _enough(split: Split, unknowns: int) -> int:
    """How many rows of a split have `_TOKENS` tokens per unknown, if it has that many."""
    return rows_with(split, _TOKENS * (unknowns + 1))


def rows_with(split: Split, tokens: int) -> int:
    """How many of a split's first rows have so many tokens together, if it has that many."""
    width = next(iter(split.inputs.values())).shape[1]
    lengths = torch.full((len(split),), width) if split.lengths is None else split.lengths
    return int((lengths.cumsum(0) < tokens).sum()) + 1


def _distance(apart: Apart) -> float:
    """Σ_B √KL: in the measure of the answers that change."""
    return sum(math.sqrt(divergence) for divergence, _ in apart)


def answers_as_before(agreement: float, rows: int) -> bool:
    """Whether the whole model answers enough of so many held-out rows as before."""
    return agreement >= AGREEMENT or round((1.0 - agreement) * rows) <= _FLIPPED


def _harms(apart: Apart, before: Apart, rows: int) -> bool:
    """Whether a budget that worked now answers fewer rows as the dense model does."""
    lost = max(_LOST, (_FLIPPED + 0.5) / rows)
    return any(
        works >= _WORKS and agrees < works - lost
        for (_, agrees), (_, works) in zip(apart, before, strict=True)
    )


class _Run:
    """What all attempts at one repair share: the rows, and the models of the budgets."""

    def __init__(
        self,
        model: Elastic,
        sites: Sequence[Site],
        fit: Split,
        check: Split | None,
        kept: Sequence[Allocation],
    ) -> None:
        self.sites, self.criterion = sites, fit.criterion
        self.dense = model.plain().eval()
        self.whole = model.plain().eval()
        # Views of the whole model's weights: what is repaired there is repaired in each of them.
        self.smaller = [view(self.whole, one).eval() for one in kept if not all(one.kept)]
        self.fits_whole = any(all(one.kept) for one in kept)
        device = model.gates.a.device
        fit_to, self.held_out = (
            [
                {name: values.to(device) for name, values in inputs.items()}
                for inputs, _ in (part.batches(_BATCH) if part is not None else ())
            ]
            for part in (fit, check)
        )
        self.fitted = len(fit_to)  # after them, held-out batches that choose λ: a few will do
        self.batches = [*fit_to, *self.held_out[:: max(1, len(self.held_out) // _CHOOSING)]]
        self.names = [f"{site.output}.{name}" for site in sites for name in ("weight", "bias")]
        self.dense_answers = self._answers(self.dense) if check is not None else None

    def weights(self, model: nn.Module) -> Weights:
        """A copy of the weights that a repair changes."""
        return {name: model.get_parameter(name).clone() for name in self.names}

    def fit(
        self, weighting: tuple[float, float], ridges: Sequence[float], tell: Callable[[], None]
    ) -> tuple[Weights, list[float | None]]:
        """The weights of all sites, solved one after the other, and the λ of each.

        None is a site that is better off as it was.
        """
        self._take(self.weights(self.dense))
        epsilon, guard = weighting
        dense = Stream(self.dense, self.batches)
        streams = [(Stream(model, self.batches), 1.0) for model in self.smaller]
        if self.fits_whole:
            streams.append((Stream(self.whole, self.batches), guard))
        chosen: list[float | None] = []
        for site in self.sites:
            for stream in (dense, *(stream for stream, _ in streams)):
                stream.enter(site.layer)
            output = cast(nn.Linear, self.whole.get_submodule(site.output))
            ridge = _repair_site(output, site, dense, streams, self.fitted, ridges, epsilon)
            chosen.append(ridge if math.isfinite(ridge) else None)  # JSON has no infinity
            tell()
        return self.weights(self.whole), chosen

    def apart(self, weights: Weights) -> Apart | None:
        """How far each budget is from the dense model with these weights, on the held-out rows.

        None, if the whole model no longer answers as before.
        """
        self._take(weights)
        assert self.dense_answers is not None
        found: Apart = []
        for model in (self.whole, *self.smaller):
            if found and not answers_as_before(found[0][1], len(self.dense_answers)):
                return None
            answers = self._answers(model)
            divergence = float(self.criterion.divergence(answers, self.dense_answers))
            agrees = self.criterion.agreement(answers, self.dense_answers)
            found.append((max(0.0, divergence), float(agrees.float().mean())))
        return found

    def _take(self, weights: Weights) -> None:
        for name, values in weights.items():
            self.whole.get_parameter(name).copy_(values)

    def _answers(self, model: nn.Module) -> Tensor:
        """The logits of the held-out rows [rows, outputs]."""
        return torch.cat([logits_of(model(**inputs)).float() for inputs in self.held_out])


def _repair_site(
    output: nn.Linear,
    site: Site,
    dense: Stream,
    streams: Sequence[tuple[Stream, float]],
    fitted: int,
    ridges: Sequence[float],
    epsilon: float,
) -> float:
    """Solves a site's least squares, writes the solution into its projection, and returns λ.

    Of several λ it is the one that does best on the batches after the `fitted` ones. Each stream
    has the factor by which its budget weighs more than others.
    """
    weight, bias = output.weight.detach().float(), output.bias.detach().float()
    wanted = [dense.look(site, number)[1] for number in range(len(dense.batches))]
    spread = float(torch.cat(wanted[:fitted]).var(dim=0).mean())
    fit, check = Equations.none(weight), Equations.none(weight)
    for stream, factor in streams:
        # A site that keeps nothing need not be called; its bias stays.
        keeps = stream.columns(site) > 0
        given = [
            stream.look(site, number)[0] if keeps else outputs[:, :0]
            for number, outputs in enumerate(wanted)
        ]
        mine = Equations.of(weight, bias, given[:fitted], wanted[:fitted])
        lost = mine.lost / mine.tokens / spread if spread else 1.0
        w_B = max(lost, epsilon) ** -0.5 * factor
        fit = fit.plus(mine, w_B)
        check = check.plus(Equations.of(weight, bias, given[fitted:], wanted[fitted:]), w_B)
    solutions = {ridge: fit.solve(ridge, bias) for ridge in ridges}
    if not all(bool(torch.isfinite(solution).all()) for solution in solutions.values()):
        raise ValueError(f"{site.output} can't be repaired: its outputs are not finite numbers")
    best = min(solutions, key=lambda ridge: check.error(solutions[ridge]))
    output.weight.copy_(weight + solutions[best][:-1].T.to(weight))
    output.bias.copy_(solutions[best][-1].to(bias))
    return best
