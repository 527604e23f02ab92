"""Where a model's units live: a table with one row an architecture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from apportion.units import KINDS, Unit, Units

BLOCK = 64  # feed-forward neurons that are switched together


@dataclass(frozen=True)
class Architecture:
    """The names of the parts, as paths: layers from the model, the others from a layer."""

    layers: str
    query: str
    key: str
    value: str
    output: str
    head_width: str
    up: str
    down: str


# The key is `model.config.model_type`, as in Transformers.
ARCHITECTURES: dict[str, Architecture] = {
    "apportion-encoder": Architecture(
        layers="layers",
        query="attention.query",
        key="attention.key",
        value="attention.value",
        output="attention.output",
        head_width="attention.head_width",
        up="feedforward.up",
        down="feedforward.down",
    ),
}


@dataclass(frozen=True)
class Site:
    """Where one layer's units of one kind live.

    A unit owns `width` rows of each of the `inputs` and the matching columns of the `output`.
    """

    layer: int
    kind: str
    inputs: tuple[str, ...]
    output: str
    count: int
    width: int
    hidden: int

    def unit_macs(self, length: int) -> int:
        """Multiply-accumulates that one unit spends on one sequence of this length."""
        projections = (len(self.inputs) + 1) * length * self.hidden * self.width
        mixing = 2 * length * length * self.width if self.kind == "heads" else 0
        return projections + mixing


def find_sites(
    model: nn.Module, kinds: Sequence[str] = KINDS, block: int = BLOCK
) -> tuple[Site, ...]:
    """The sites of a model in (layer, kind) order, with the units that it has now.

    A cut model has fewer; a site may have none left.
    """
    unknown = set(kinds) - set(KINDS)
    if unknown or not kinds:
        raise ValueError(f"kinds of units are {', '.join(KINDS)}; not {sorted(unknown) or 'none'}")
    model_type = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    if model_type not in ARCHITECTURES:
        raise ValueError(
            f"unknown architecture {model_type!r}; known: {', '.join(sorted(ARCHITECTURES))}. "
            "To add one, give apportion.sites.ARCHITECTURES a row with the names of its parts."
        )
    row = ARCHITECTURES[model_type]
    sites = []
    layers: nn.ModuleList = _part(model, row.layers)
    for layer, module in enumerate(layers):
        prefix = f"{row.layers}.{layer}."
        for kind in (kind for kind in KINDS if kind in kinds):
            inputs: tuple[str, ...]
            if kind == "heads":
                inputs, output = (row.query, row.key, row.value), row.output
                width: int = _part(module, row.head_width)
            else:
                inputs, output = (row.up,), row.down
                width = block
            last: nn.Linear = _part(module, output)
            if last.in_features % width:
                raise ValueError(
                    f"layer {layer} has {last.in_features} {kind} columns, "
                    f"not a multiple of {width}: choose a block that divides it"
                )
            names = tuple(prefix + name for name in inputs)
            count = last.in_features // width
            sites.append(Site(layer, kind, names, prefix + output, count, width, last.out_features))
    return tuple(sites)


def units_of(sites: Sequence[Site], length: int) -> Units:
    """The units at these sites, each at its cost in multiply-accumulates at this length."""
    members: list[Unit] = []
    costs: list[float] = []
    for site in sites:
        order = KINDS.index(site.kind)
        members += [Unit(site.layer, order, index) for index in range(site.count)]
        costs += [float(site.unit_macs(length))] * site.count
    return Units(tuple(members), tuple(costs))


def _part(root: object, path: str) -> Any:
    """The part at a dotted path; an error that names the path if the model has none."""
    part = root
    for name in path.split("."):
        if not hasattr(part, name):
            raise ValueError(f"{type(root).__name__} has no part {path!r} (stopped at {name!r})")
        part = getattr(part, name)
    return part
