"""Empty modules of the right sizes: a model that has yet to be given the weights of a cut one.

It needs torch alone, because a folder that loads without apportion carries a copy of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from torch import Tensor, nn

CUT_CLASS, CUT_TYPE = "Cut", "cut-"  # before a class's name, before a config's model type

# The names under which attention modules hold the number of their heads, and the width of all.
# They do not compute with them, but exporters read them.
_HEAD_COUNTS = ("num_attention_heads", "num_heads", "n_heads")
_HEAD_WIDTHS = ("all_head_size",)


class WithoutHeads(nn.Module):
    """In place of an attention that has no head left: nothing is mixed, a bias remains.

    It keeps the parts of the attention that it replaces under their names. Where they include the
    output projection, `output` is its name among them; else it is empty.
    """

    def __init__(self, attention: nn.Module, output: str) -> None:
        super().__init__()
        for name, part in attention.named_children():
            setattr(self, name, part)
        for name, value in vars(attention).items():
            if isinstance(value, int) and not name.startswith("_"):
                setattr(self, name, value)
        self.ends_with = output

    def forward(self, hidden_states: Tensor, *_: object, **__: object) -> tuple[Tensor, None]:
        """What attention with all of its heads masked would have given."""
        nothing = hidden_states[..., :0]
        if not self.ends_with:
            return nothing, None
        return self.get_submodule(self.ends_with)(nothing), None


def recount_heads(model: nn.Module, query: str, output: str, attention: str, heads: int) -> None:
    """Tells the attention with this query projection how many heads it has, or replaces it."""
    projection = cast(nn.Linear, model.get_submodule(query))
    holder = model.get_submodule(query.rpartition(".")[0])
    for names, number in ((_HEAD_COUNTS, heads), (_HEAD_WIDTHS, projection.out_features)):
        for name in names:
            if hasattr(holder, name):
                setattr(holder, name, number)
    if attention and not heads:
        inside = output.removeprefix(f"{attention}.")
        stand_in = WithoutHeads(model.get_submodule(attention), inside if inside != output else "")
        model.set_submodule(attention, stand_in)


def shrink(model: nn.Module, record: Mapping[str, Any]) -> None:
    """Gives a whole model the sizes that a config's record of a cut says; weights are left empty.

    The record: `kept`, the units of each layer that stay; `of`, how many there were; and `where`,
    the layers in the base model and the names of their parts in a layer.
    """
    inside = getattr(model, getattr(model, "base_model_prefix", ""), None)
    model = inside if isinstance(inside, nn.Module) else model
    for layer, kind, indices, count in _kept(record):
        within = f"{record['where']['layers']}.{layer}."
        parts = record["where"][kind]
        output = cast(nn.Linear, model.get_submodule(within + parts["output"]))
        columns = output.in_features // count * len(indices)
        for name in parts["inputs"]:
            _resize(model.get_submodule(within + name), out_features=columns)
        _resize(output, in_features=columns)
        if kind == "heads":
            attention = within + parts["attention"] if parts["attention"] else ""
            first = within + parts["inputs"][0]
            recount_heads(model, first, within + parts["output"], attention, len(indices))


def _kept(record: Mapping[str, Any]) -> Iterator[tuple[int, str, Sequence[int], int]]:
    """(layer, kind, units that stay, units that were there), checked."""
    for name, kinds in record["kept"].items():
        for kind, indices in kinds.items():
            count = record["of"][name][kind]
            odd = [index for index in indices if not 0 <= index < count]
            if odd or sorted(set(indices)) != list(indices):
                raise ValueError(
                    f"the config keeps {kind} {list(indices)} of {name}, which has 0 to {count - 1}"
                )
            yield int(name.removeprefix("layer ")), kind, indices, count


def _resize(part: nn.Module, **sizes: int) -> None:
    """Makes a linear layer's weights anew in other sizes, where the old ones were."""
    linear = cast(nn.Linear, part)
    for name, size in sizes.items():
        setattr(linear, name, size)
    linear.weight = nn.Parameter(linear.weight.new_zeros(linear.out_features, linear.in_features))
    if linear.bias is not None:
        linear.bias = nn.Parameter(linear.bias.new_zeros(linear.out_features))
