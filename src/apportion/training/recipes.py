"""Recipes: the numbers of each way to train, as values.

Defaults are the paper's where it gives a number. It gives no rate for dense, budgeted or static
training; those of `Recipe` are ours, and so is a rate of the gates' own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from apportion.elastic.elastic import TRAINED_FORMS, Form
from apportion.elastic.pairing import check_axis
from apportion.method.units import check_budget

Objective = Literal["dense", "soft", "straight-through", "nested"]


@dataclass(frozen=True)
class Recipe:
    """One way to train; `fit` reads nothing else about how.

    Stages are keyed by these numbers: one that is added needs a default that means what was there
    before, and a place in `_LATER`.

    An objective of "dense" trains a plain model; "soft" trains weights and gates under Eq. 5;
    "straight-through" trains under hard masks; "nested" trains the weights of a model with one
    order for all budgets, several of them in each step. With a teacher, Eq. 6 takes the place of
    the plain task loss.
    """

    name: str
    objective: Objective
    epochs: int = 32
    batch_size: int = 64
    lr: float = 1e-3
    gate_lr: float = 1e-2  # the gates' own; 0 freezes them
    weight_decay: float = 0.01
    warmup: float = 0.05  # share of the steps in which the learning rate rises from 0
    clip: float = 1.0  # largest norm of the gradient
    budgets: tuple[float, float] = (0.25, 1.0)  # drawn uniformly, one per step
    lam: float = 0.02
    beta: float = 2.0
    alpha: float = 0.5  # weight of the teacher, where there is one
    T: float = 2.0
    floor: int = 0
    select_at: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)  # budgets that choose the best epoch
    word_dropout: float = 0.0  # share of a batch's words that become unknown
    noisy_teacher: bool = False  # whether the teacher reads the same unknown words
    hidden: float = 0.0  # weight of the hidden-state loss, added to the distillation loss
    samples: int = 2  # budgets of a nested step beside the highest and the lowest
    readout_rate: float = 1.0  # times `lr`: the rate of what reads the encoder's last states
    one_budget: bool = False  # a nested step takes one budget, not several
    views: int = 0  # of each text that a teacher is asked about beforehand; 0: in each step
    calibrated: bool = False  # the teacher speaks at the temperature that fits validation best
    dropout: bool = True
    average: float = 0.0  # how slowly the mean of the weights follows, which is then kept
    whole: float = 0.15  # how often a step of one budget takes the highest
    rooted: bool = False  # √KL in place of KL, where views are learned: near answers count for more
    axis: str = "width"  # what budgets of a nested model buy: units, tokens (length), or both
    crop: bool = True  # whether small budgets leave out tokens before the first layer
    drop_by: str = "attention"  # what lets a token go on: token 0's "attention", or its "position"

    def __post_init__(self) -> None:
        if self.objective not in get_args(Objective):
            known = ", ".join(get_args(Objective))
            raise ValueError(f"objective must be one of {known}, not {self.objective!r}")
        if len(self.budgets) != 2:
            raise ValueError(f"budgets are a low and a high one, not {self.budgets}")
        if not self.select_at:
            raise ValueError("select_at needs at least one budget")
        for name, value in asdict(self).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, not {value}")
        low, high = self.budgets
        check_budget(low)
        check_budget(high)
        if low > high:
            raise ValueError(f"budgets go from low to high, not from {low:g} to {high:g}")
        for budget in self.select_at:
            check_budget(budget)
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("lr", "clip", "T", "readout_rate"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")
        for name in ("gate_lr", "weight_decay", "lam", "beta", "floor", "hidden", "samples"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, not {getattr(self, name)}")
        if self.views < 0:
            raise ValueError(f"views must not be negative, not {self.views}")
        if not 0.0 <= self.average < 1.0:
            raise ValueError(f"average must be in [0, 1), not {self.average}")
        if self.views and (self.alpha != 1.0 or self.word_dropout or self.hidden):
            raise ValueError(
                "views are learned from the teacher alone: alpha = 1, no word_dropout, no hidden"
            )
        if self.rooted and not self.views:
            raise ValueError("rooted is of what a teacher says about views: it needs views")
        if check_axis(self.axis) != "width" and (self.objective != "nested" or self.hidden):
            raise ValueError(
                f"axis {self.axis!r} drops tokens: objective 'nested', and no hidden states, which "
                "are of all tokens"
            )
        if self.drop_by not in ("attention", "position"):
            raise ValueError(f"drop_by is attention or position, not {self.drop_by!r}")
        if self.axis == "width" and not (self.crop and self.drop_by == "attention"):
            raise ValueError("crop and drop_by are of tokens: they need axis 'length' or 'both'")
        if self.noisy_teacher and not self.word_dropout:
            raise ValueError("noisy_teacher needs word_dropout, or there is no noise")
        if not 0.0 <= self.whole <= 0.85:
            raise ValueError(f"whole must be in [0, 0.85], not {self.whole}")
        for name in ("warmup", "alpha", "word_dropout"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must be in [0, 1], not {getattr(self, name)}")

    @property
    def form(self) -> Form | None:
        """The form that it makes an elastic model for; none, if it trains plain ones."""
        return TRAINED_FORMS[self.objective]

    @property
    def tokens(self) -> dict[str, Any]:
        """How its budgets drop tokens, as `find_frontier` takes it."""
        by_position = self.drop_by == "position"
        return {"axis": self.axis, "crop": self.crop, "by_position": by_position}

    @property
    def lowest(self) -> float:
        """The smallest budget at which it trains a model, or chooses its best epoch."""
        return min(self.budgets[0], *self.select_at)

    def with_changes(self, **changes: Any) -> Recipe:
        """The same recipe with some numbers changed; unknown names are an error."""
        known = {field.name for field in fields(self)}
        unknown = sorted(set(changes) - known)
        if unknown:
            raise ValueError(
                f"recipe {self.name!r} has no {', '.join(unknown)}; "
                f"it has {', '.join(sorted(known))}"
            )
        return replace(self, **_frozen(changes))

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain JSON values."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    def identity(self) -> dict[str, Any]:
        """The numbers that a stage is keyed by: later ones only where they change something."""
        default = {field.name: field.default for field in fields(self)}
        now = {k: v for k, v in self.to_dict().items() if k not in _LATER or v != default[k]}
        return {**now, "ramp": 0.0}  # which recipes had when the first stages were keyed by them

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Recipe:
        """The inverse of `to_dict`."""
        return cls(**_frozen(data))


# Numbers that recipes did not have when the first stages were keyed by them.
_LATER = (
    *("word_dropout", "noisy_teacher", "hidden", "samples"),
    *("readout_rate", "one_budget", "views", "calibrated", "dropout", "average", "axis"),
    *("whole", "rooted", "crop", "drop_by"),
)


def _frozen(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}


DENSE = Recipe("dense", "dense")
BUDGETED = Recipe("budgeted", "soft")
STATIC = Recipe("static", "soft")
# Gates move as slowly as weights here: one epoch has no time to recover from a late change of mask.
ADAPT = Recipe("adapt", "straight-through", epochs=1, lr=3e-4, gate_lr=3e-4)
NESTED = Recipe("nested", "nested", epochs=3, gate_lr=0.0, budgets=(0.125, 1.0))
RECOVER = Recipe("recover", "dense", epochs=1, lr=2e-5)

# Of a pretrained encoder and a few thousand texts. The names inside stay those of the recipes that
# they change, since stages are keyed by them.
#
# Pooler and classifier begin at random: at the encoder's rate they are stopped before they have
# learned to speak, and a teacher that hardly speaks has little to teach.
DENSE_ENCODER = DENSE.with_changes(epochs=3, batch_size=16, lr=5e-5, warmup=0.1, readout_rate=20.0)
# All that is learned comes from the teacher, about views of texts with and without labels.
_TAUGHT: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 16,
    "lr": 1e-4,
    "warmup": 0.1,
    "alpha": 1.0,
    "T": 1.0,
    "views": 2,
    "calibrated": True,
    "dropout": False,
    "average": 0.99,
}
NESTED_ENCODER = NESTED.with_changes(**_TAUGHT, one_budget=True, select_at=(0.125, 0.25, 0.5, 1.0))
RECOVER_ENCODER = RECOVER.with_changes(**_TAUGHT)
# A converted model learns from the one that it was made of, as that speaks: nobody knows labels.
TUNE_ENCODER = NESTED_ENCODER.with_changes(
    epochs=1, views=1, lr=5e-5, whole=0.4, calibrated=False, rooted=True
)
# As the first studies of heads and feed-forward blocks trained: one rate for all, the training
# rows alone, several budgets in a step.
DENSE_PRETRAINED = DENSE_ENCODER.with_changes(readout_rate=1.0)
NESTED_PRETRAINED = NESTED.with_changes(
    epochs=2,
    batch_size=16,
    lr=5e-5,
    warmup=0.1,
    alpha=0.9,
    word_dropout=0.2,
    noisy_teacher=True,
    samples=1,
    select_at=(0.125, 0.25, 0.5, 1.0),
)

RECIPES: dict[str, Recipe] = {
    **{recipe.name: recipe for recipe in (DENSE, BUDGETED, STATIC, ADAPT, NESTED, RECOVER)},
    "dense-encoder": DENSE_ENCODER,
    "nested-encoder": NESTED_ENCODER,
    "recover-encoder": RECOVER_ENCODER,
    "tune-encoder": TUNE_ENCODER,
    "dense-pretrained": DENSE_PRETRAINED,
    "nested-pretrained": NESTED_PRETRAINED,
}


def recipe(name: str, **changes: Any) -> Recipe:
    """A recipe by its name, with some numbers changed."""
    if name not in RECIPES:
        raise ValueError(f"unknown recipe {name!r}; known: {', '.join(RECIPES)}")
    return RECIPES[name].with_changes(**changes)
