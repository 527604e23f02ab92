"""Selection: the nodes of a graph that drop tokens between layers, as the budget's schedule says.

They compute what `apportion.models.shortening` does: the tokens that token 0 attends to most are
found by TopK and gathered, behind an `If` that a level without a drop passes by. Counts are of
whole thousandths, so that torch and the graph keep the same number of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from apportion.method.length import LEAST, PARTS, Schedule, parts_of
from apportion.models.sites import Site
from apportion.serving.runtime.nodes import Names, Scope

_LOW = np.float32(np.finfo(np.float32).min)


class Levels(Protocol):
    """What a graph knows of its levels, its weights and its mask."""

    main: Scope
    names: Names
    conditions: list[str]
    mask: str

    def weights(self, path: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Matrix [inputs, outputs] and bias of a linear layer."""

    def counts(self, site: Site) -> list[int]:
        """How many units of a site each level keeps."""

    def pay(
        self,
        scope: Scope,
        kept: Sequence[int],
        block: Callable[[Scope, slice], str],
        finish: Callable[[Scope, str | None], str],
    ) -> str:
        """What the blocks that a budget pays for add up to."""


class Selection:
    """The drops of a graph, one after the other, from the first layer to the last."""

    def __init__(self, graph: Levels, schedules: Sequence[Schedule | None], layers: int) -> None:
        self.graph, self.constant = graph, graph.names.constant
        if any(schedule and schedule.by_position for schedule in schedules):
            raise ValueError(
                "the model drops tokens by their position, which is there to be compared with and "
                "is not exported; train it with drop_by = 'attention'"
            )
        whole = Schedule.everything(layers)
        self.parts = [
            [parts_of((schedule or whole).shares[layer]) for schedule in schedules]
            for layer in range(layers)
        ]
        self.axis = self.constant(np.array([1], np.int64))
        self.one, self.zero = (self.constant(np.array(n, np.int64)) for n in (1, 0))
        # Of each row: its tokens, which all shares are of.
        self.count = graph.main.add("ReduceSum", "attention_mask", self.axis, keepdims=0)
        self.before = self.constant(np.array(PARTS, np.int64))

    def crop(self, states: str) -> str:
        """The tokens that are read at all: the first ones, and the last one of each row."""

        def by_position(scope: Scope) -> str:
            places = self.places(scope, states)
            last = scope.add("Unsqueeze", scope.add("Sub", self.count, self.one), self.axis)
            near = scope.add("Where", scope.add("Equal", places, last), self.zero, places)
            return scope.add("Cast", scope.add("Neg", near), to=TensorProto.FLOAT)

        return self.drop(states, 0, by_position)

    def after(self, site: Site, given: str, states: str) -> str:
        """The tokens that go on after a layer, whose attention was `given` other states."""
        if site.layer + 1 == len(self.parts):
            return states
        return self.drop(states, site.layer + 1, lambda scope: self.received(scope, site, given))

    def drop(self, states: str, layer: int, wanted: Callable[[Scope], str]) -> str:
        """The tokens that a layer reads; the graph's mask is then of those."""
        parts, earlier = self.parts[layer], [PARTS] * len(self.parts[layer])
        if layer:
            earlier = self.parts[layer - 1]
        if parts == earlier:
            return states
        main, graph = self.graph.main, self.graph
        part = self.constant(np.array(parts[0], np.int64))
        for condition, higher in zip(graph.conditions, parts[1:], strict=True):
            part = main.add("Where", condition, self.constant(np.array(higher, np.int64)), part)
        drops = main.add("Less", part, self.before)
        self.before = part
        fewer, same = Scope(graph.names), Scope(graph.names)
        kept = self.keep(fewer, states, part, wanted(fewer))
        rest = same.add("Identity", states), same.add("Identity", graph.mask)
        states, graph.mask = main.add_several(
            "If",
            drops,
            outputs=2,
            then_branch=self.branch(fewer, kept),
            else_branch=self.branch(same, rest),
        )
        return states

    def keep(self, scope: Scope, states: str, part: str, wanted: str) -> tuple[str, str]:
        """The states of the tokens that are wanted most, token 0 first, and their mask."""
        constant = self.constant
        share = scope.add("Mul", self.count, part)
        share = scope.add("Add", share, constant(np.array(PARTS - 1, np.int64)))
        share = scope.add("Div", share, constant(np.array(PARTS, np.int64)))
        share = scope.add("Max", share, constant(np.array(LEAST, np.int64)))
        count = scope.add("Min", self.count, share)  # [rows]
        width = scope.add("ReduceMax", count, keepdims=1)  # [1]
        first = scope.add("Equal", self.places(scope, states), self.zero)
        real = scope.add("Cast", self.graph.mask, to=TensorProto.BOOL)
        wanted = scope.add("Where", real, wanted, constant(np.float32(-np.inf)))
        wanted = scope.add("Where", first, constant(np.float32(np.inf)), wanted)
        # Of equals, the one that stands first comes first, as the operator promises.
        _, order = scope.add_several("TopK", wanted, width, outputs=2, axis=1, largest=1, sorted=1)
        order = scope.add("Unsqueeze", order, constant(np.array([2], np.int64)))
        gathered = scope.add("GatherND", states, order, batch_dims=1)
        ranks = scope.add("Range", self.zero, scope.add("Squeeze", width), self.one)
        mask = scope.add("Less", ranks, scope.add("Unsqueeze", count, self.axis))
        return gathered, scope.add("Cast", mask, to=TensorProto.INT32)

    def received(self, scope: Scope, site: Site, states: str) -> str:
        """The attention that tokens receive from token 0, summed over heads [rows, tokens]."""
        constant, size = self.constant, site.width
        first = scope.add("Gather", states, self.zero, axis=1)
        turned = scope.add("Transpose", states, perm=[0, 2, 1])
        real = scope.add("Cast", self.graph.mask, to=TensorProto.BOOL)
        real = scope.add("Unsqueeze", real, self.axis)

        def block(inside: Scope, units: slice) -> str:
            columns, heads = slice(units.start * size, units.stop * size), units.stop - units.start
            weight, bias = self.graph.weights(site.inputs[0])
            key = self.graph.weights(site.inputs[1])[0][:, columns]
            asked = inside.add(
                "Gemm", first, constant(weight[:, columns], "asking"), constant(bias[columns])
            )
            shape = constant(np.array([-1, heads, size], np.int64))
            asked = inside.add("Transpose", inside.add("Reshape", asked, shape), perm=[1, 0, 2])
            keys = key.T.reshape(heads, size, -1) * np.float32(size**-0.5)
            towards = inside.add("MatMul", asked, constant(keys, "asked"))  # [heads, rows, hidden]
            towards = inside.add("Transpose", towards, perm=[1, 0, 2])
            scores = inside.add("MatMul", towards, turned)  # [rows, heads, tokens]
            scores = inside.add("Where", real, scores, constant(_LOW))
            scores = inside.add("Softmax", scores, axis=-1)
            return inside.add("ReduceSum", scores, self.axis, keepdims=0)

        def finish(inside: Scope, total: str | None) -> str:
            if total is not None:
                return inside.add("Identity", total)
            alike = inside.add("Cast", self.graph.mask, to=TensorProto.FLOAT)
            return inside.add("Mul", alike, constant(np.float32(0.0)))

        return self.graph.pay(scope, self.graph.counts(site), block, finish)

    def places(self, scope: Scope, states: str) -> str:
        """The numbers of the tokens, from 0 up."""
        width = scope.add("Gather", scope.add("Shape", states), self.one)
        return scope.add("Range", self.zero, width, self.one)

    def branch(self, scope: Scope, outputs: tuple[str, str]) -> object:
        """A branch that returns states and their mask."""
        kinds = (TensorProto.FLOAT, TensorProto.INT32)
        values = [
            helper.make_tensor_value_info(name, kind, None)
            for name, kind in zip(outputs, kinds, strict=True)
        ]
        return helper.make_graph(scope.nodes, self.graph.names.new("branch"), [], values)
