"""Running a model from one of its layers on: what lies below is recalled, not computed again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from torch import Tensor, nn

from apportion.models.sites import Site, find_sites, layers_path


class _Recall(nn.Module):
    """In place of a module: returns what that returned before."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self, *_: object, **__: object) -> Any:
        return self.output


@contextmanager
def remembering(model: nn.Module, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What each of these modules returns in a call, by its name."""
    seen: dict[str, Any] = {}
    hooks = [
        model.get_submodule(name).register_forward_hook(
            lambda _m, _i, out, name=name: seen.update({name: out})
        )
        for name in names
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def recalling(model: nn.Module, seen: Mapping[str, Any]) -> Iterator[None]:
    """These modules return what they returned before, whatever they are given."""
    before = {name: model.get_submodule(name) for name in seen}
    for name, output in seen.items():
        model.set_submodule(name, _Recall(output))
    try:
        yield
    finally:
        for name, module in before.items():
            model.set_submodule(name, module)


class _Enough(Exception):  # noqa: N818, nothing went wrong
    """A call has come as far as it was needed."""


def run_up_to(model: nn.Module, name: str, inputs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Calls a model up to the module of this name: what that was given, and what it returned."""
    found: list[tuple[Any, Any]] = []

    def stop(_module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        found.append((args[0], output))
        raise _Enough

    hook = model.get_submodule(name).register_forward_hook(stop)
    try:
        model(**inputs)
    except _Enough:
        return found[0]
    finally:
        hook.remove()
    raise ValueError(f"the model does not call its {name}")


def layer_names(model: nn.Module) -> list[str]:
    """The layers that a model runs one after the other."""
    above = layers_path(model)
    return [f"{above}.{number}" for number, _ in model.get_submodule(above).named_children()]


def attention_names(model: nn.Module) -> dict[int, str]:
    """Attention modules that end before the gates, which stand at their output projection."""
    return {
        site.layer: site.attention
        for site in find_sites(model, ("heads",))
        if site.attention and not site.output.startswith(f"{site.attention}.")
    }


class Stream:
    """A model on some batches, run up to the input of one of its layers."""

    def __init__(self, model: nn.Module, batches: Sequence[Mapping[str, Tensor]]) -> None:
        self.model, self.batches = model.eval(), batches
        self.names = layer_names(model)
        self.layer = 0
        self.given: list[Any] = [None] * len(batches)  # to its layer by the one below

    def enter(self, layer: int) -> None:
        """Runs on to the input of a layer."""
        while self.layer < layer:
            name = self.names[self.layer]
            given = [self._run(number, name)[1] for number in range(len(self.batches))]
            self.given, self.layer = given, self.layer + 1

    def columns(self, site: Site) -> int:
        """How many columns a site has left."""
        return cast(nn.Linear, self.model.get_submodule(site.output)).in_features

    def look(self, site: Site, number: int) -> tuple[Tensor, Tensor]:
        """What a site of its layer is given and returns for a batch, one row per real token."""
        given, returned = self._run(number, site.output)
        mask = self.batches[number].get("attention_mask")
        if mask is None:
            return given.flatten(0, -2).float(), returned.flatten(0, -2).float()
        return given[mask.bool()].float(), returned[mask.bool()].float()

    def _run(self, number: int, name: str) -> tuple[Any, Any]:
        """What a module of its layer is given and returns for a batch."""
        # All layers below return what the last of them did: no other is listened to.
        below = {earlier: self.given[number] for earlier in self.names[: self.layer]}
        with recalling(self.model, below):
            return run_up_to(self.model, name, self.batches[number])
