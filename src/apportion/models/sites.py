"""Where a model's units live: a table with one row per architecture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from apportion.method.length import Schedule, kept_tokens
from apportion.method.units import KINDS, Unit, Units
from apportion.models.shrinking import CUT_TYPE

BLOCK = 64  # feed-forward neurons that are switched together


@dataclass(frozen=True)
class Architecture:
    """The names of the parts, as paths: layers from the base model, the others from a layer.

    Names differ between versions of a library: `a|b` is a, or b where there is no a.
    """

    layers: str
    query: str
    key: str
    value: str
    output: str
    head_width: str
    up: str
    down: str
    attention: str = ""  # the attention module, if it can't run without heads
    norm: str = ""  # of the module that adds an output projection to its input and norms the sum


_BERT = Architecture(
    layers="encoder.layer",
    query="attention.self.query",
    key="attention.self.key",
    value="attention.self.value",
    output="attention.output.dense",
    head_width="attention.self.attention_head_size",
    up="intermediate.dense",
    down="output.dense",
    attention="attention.self",
    norm="LayerNorm",
)

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
    "bert": _BERT,
    "electra": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "distilbert": Architecture(
        layers="transformer.layer",
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        output="attention.out_lin",
        head_width="attention.attention_head_size",
        up="ffn.lin1",
        down="ffn.lin2",
        attention="attention",
    ),
    "vit": Architecture(
        layers="layers|encoder.layer",
        query="attention.q_proj|attention.attention.query",
        key="attention.k_proj|attention.attention.key",
        value="attention.v_proj|attention.attention.value",
        output="attention.o_proj|attention.output.dense",
        head_width="attention.head_dim|attention.attention.attention_head_size",
        up="mlp.fc1|intermediate.dense",
        down="mlp.fc2|output.dense",
        attention="attention.attention|attention",
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
    attention: str = ""  # the module to replace when no head is left
    norm: str = ""  # of the sum of output and residual stream, in the module that holds the output
    first_token: bool = False  # whether it is computed for token 0 alone
    share: float = 1.0  # of a text's tokens, which its layer reads

    def unit_macs(self, length: int) -> int:
        """Multiply-accumulates that one unit spends on one sequence of this length."""
        length = kept_tokens(length, self.share)
        answered = 1 if self.first_token else length  # keys and values are of all tokens
        read = (len(self.inputs) - 1) * length + 2 * answered
        mixing = 2 * answered * length * self.width if self.kind == "heads" else 0
        return read * self.hidden * self.width + mixing


def find_sites(
    model: nn.Module, kinds: Sequence[str] = KINDS, block: int = BLOCK
) -> tuple[Site, ...]:
    """The sites of a model in (layer, kind) order, with the units that it has now.

    A cut model has fewer; a site may have none left.
    """
    unknown = set(kinds) - set(KINDS)
    if unknown or not kinds:
        raise ValueError(f"kinds of units are {', '.join(KINDS)}; not {sorted(unknown) or 'none'}")
    if not isinstance(block, int) or block < 1:
        raise ValueError(f"a block is of 1 neuron or more, not {block!r}")
    row = _row(model)
    prefix, base = _base(model)
    above, layers = _part(base, row.layers)
    shares = shares_of(base.get_submodule(above.rpartition(".")[0]), len(layers))
    sites = []
    for layer, module in enumerate(layers):
        within = f"{prefix}{above}.{layer}."
        for kind in (kind for kind in KINDS if kind in kinds):
            attention = ""
            if kind == "heads":
                inputs = [_part(module, name)[0] for name in (row.query, row.key, row.value)]
                output, last = _part(module, row.output)
                width: int = _part(module, row.head_width)[1]
                if row.attention:
                    attention = within + _part(module, row.attention)[0]
            else:
                inputs = [_part(module, row.up)[0]]
                output, last = _part(module, row.down)
                width = block
            if last.in_features % width:
                raise ValueError(
                    f"layer {layer} has {last.in_features} {kind} columns, "
                    f"not a multiple of {width}: choose a block that divides it"
                )
            sites.append(
                Site(
                    layer=layer,
                    kind=kind,
                    inputs=tuple(within + name for name in inputs),
                    output=within + output,
                    count=last.in_features // width,
                    width=width,
                    hidden=last.out_features,
                    attention=attention,
                    norm=row.norm,
                    first_token=getattr(module, "first_token", False),
                    share=shares[layer],
                )
            )
    return tuple(sites)


def on_first_token(sites: Sequence[Site]) -> tuple[Site, ...]:
    """The sites of a model whose last layer is computed for token 0 alone."""
    last = max(site.layer for site in sites)
    return tuple(replace(site, first_token=site.layer == last) for site in sites)


def on_fewer_tokens(sites: Sequence[Site], schedule: Schedule) -> tuple[Site, ...]:
    """The sites of a model whose layers read these shares of a text's tokens."""
    return tuple(replace(site, share=schedule.shares[site.layer]) for site in sites)


def shares_of(encoder: nn.Module, layers: int) -> tuple[float, ...]:
    """The share of a text's tokens that each layer of an encoder reads."""
    return getattr(encoder, "token_shares", (1.0,) * layers)


def in_units(site: Site, count: int) -> Site:
    """A site that was found with `block=1`, its neurons taken together as `count` units."""
    neurons = site.count if site.kind == "feedforward" else site.count * site.width
    fits = neurons == 0 if count == 0 else count > 0 and neurons % count == 0
    if not fits or (site.kind == "heads" and count != site.count):
        raise ValueError(
            f"{count} {site.kind} were expected in layer {site.layer}, not the {site.count} that "
            "this model has"
        )
    return replace(site, count=count, width=neurons // count if count else site.width)


def largest_block(model: nn.Module) -> int:
    """How many neurons make a block: as many as usual, or the most that divide every layer."""
    counts = {site.count for site in find_sites(model, ("feedforward",), block=1)}
    return max(size for size in range(1, BLOCK + 1) if all(n % size == 0 for n in counts))


def layers_path(model: nn.Module) -> str:
    """The name of the list of layers that a model runs one after the other."""
    prefix, base = _base(model)
    return prefix + _part(base, _row(model).layers)[0]


def encoder_path(model: nn.Module) -> str:
    """The name of the module that runs the layers."""
    return layers_path(model).rpartition(".")[0]


def units_of(sites: Sequence[Site], length: int) -> Units:
    """The units at these sites, each at its cost in multiply-accumulates at this length."""
    members: list[Unit] = []
    costs: list[float] = []
    for site in sites:
        order = KINDS.index(site.kind)
        members += [Unit(site.layer, order, index) for index in range(site.count)]
        costs += [float(site.unit_macs(length))] * site.count
    return Units(tuple(members), tuple(costs))


def _row(model: nn.Module) -> Architecture:
    model_type = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    model_type = model_type.removeprefix(CUT_TYPE)
    if model_type not in ARCHITECTURES:
        raise ValueError(
            f"unknown architecture {model_type!r}; known: {', '.join(sorted(ARCHITECTURES))}. "
            "To add one, give apportion.models.sites.ARCHITECTURES a row with the names of its "
            "parts: docs/architectures.md shows how."
        )
    return ARCHITECTURES[model_type]


def _base(model: nn.Module) -> tuple[str, nn.Module]:
    """The encoder inside a model with a task's head, and the prefix of its parts' names."""
    name = getattr(model, "base_model_prefix", "")
    inside = getattr(model, name, None) if name else None
    return (f"{name}.", inside) if isinstance(inside, nn.Module) else ("", model)


def _part(root: object, paths: str) -> tuple[str, Any]:
    """The part at the first of some dotted paths that there is, with that path."""
    for path in paths.split("|"):
        part = root
        for name in path.split("."):
            part = getattr(part, name, None)
            if part is None:
                break
        else:
            return path, part
    raise ValueError(f"{type(root).__name__} has no part {' or '.join(paths.split('|'))}")
