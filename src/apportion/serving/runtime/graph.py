"""The graph: a nested model as one ONNX graph that takes its budget as an input.

Each site is split into blocks, block i holding the units that level i adds. The first block stands
in the main graph, every other one behind `If(budget >= level i)`, inside the branch of the one
before it, so that a small budget passes one condition per site. The norm that ends a site stands
in every branch, so that no branch has to return a zero for the blocks that it lacks. Weights of a
block stand once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper

from apportion.elastic.elastic import Elastic
from apportion.models.sites import Site, find_sites
from apportion.serving.runtime.nodes import CONTRIB, Names, Scope
from apportion.serving.runtime.rounding import Scale
from apportion.serving.runtime.selection import Selection
from apportion.serving.runtime.skeletons import activation_of, skeleton_of

OPSET = 17
Given = tuple[str, str, str]  # states, their scale and zero point; no more than states in fp32
Block = Callable[[Scope, slice], str]  # what some units of a site add
_SLACK = 1e-6  # a budget of 0.1 + 0.2 pays for 0.3


def build_graph(
    model: Elastic,
    levels: Sequence[float],
    *,
    scales: Mapping[str, Scale] | None = None,
    dynamic: bool = False,
) -> onnx.ModelProto:
    """The ONNX model of a nested one, at these levels from the smallest up.

    With `scales`, which say where the inputs of each linear layer lie, sites compute in int8. Where
    they are to be `dynamic`, each call takes its own from what it is given; weights stay as they
    are.
    """
    return _Graph(model, levels, scales, dynamic).build()


class _Graph:
    def __init__(
        self,
        model: Elastic,
        levels: Sequence[float],
        scales: Mapping[str, Scale] | None,
        dynamic: bool,
    ) -> None:
        self.model, self.levels = model, levels
        self.scales, self.dynamic = scales, dynamic
        self.plain = model.plain().eval()
        self.config: Any = self.plain.config
        self.skeleton, self.activation = skeleton_of(self.plain), activation_of(self.plain)
        self.names = Names()
        self.constant = self.names.constant
        self.main = Scope(self.names)
        kept = [model.allocation(level) for level in levels]
        self.schedules = [one.schedule for one in kept]
        self.kept = {
            (site.layer, site.kind): [len(one.indices(site.layer, site.kind)) for one in kept]
            for site in find_sites(self.plain, model.kinds, model.block)
        }

    def weights(self, path: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """Matrix [inputs, outputs] and bias of a linear layer, or scale and shift of a norm."""
        module: Any = self.plain.get_submodule(path)
        weight = module.weight.detach().float().numpy()
        return (weight.T if weight.ndim == 2 else weight), module.bias.detach().float().numpy()

    def build(self) -> onnx.ModelProto:
        """The model, with its inputs and output named."""
        main = self.main
        self.conditions = [
            main.add("GreaterOrEqual", "budget", self.constant(np.float32(level - _SLACK)))
            for level in self.levels[1:]
        ]
        self.first = self.constant(np.array([0], np.int64), "first")
        self.mask = main.add("Cast", "attention_mask", to=TensorProto.INT32)
        states = self.embeddings()
        drops = None
        if any(self.schedules):
            drops = Selection(self, self.schedules, self.model.units.layers)
            states = drops.crop(states)
        # Neurons that no budget switches off need not come in blocks.
        block = self.model.block if "feedforward" in self.model.kinds else 1
        sites = find_sites(self.plain, block=block)
        layers = len(sites) // 2
        for attention, feedforward in zip(sites[::2], sites[1::2], strict=True):
            # Only token 0 is read of the last layer: after its keys and values, the rest goes.
            given = states
            states = self.attention(attention, states, attention.layer == layers - 1)
            states = self.feedforward(feedforward, states)
            if drops is not None:
                states = drops.after(attention, given, states)
        states = main.add("Gather", states, self.constant(np.array(0, np.int64)), axis=1)
        for path, follows in self.skeleton.head:
            weight, bias = self.weights(path)
            states = main.add("Gemm", states, self.constant(weight), self.constant(bias))
            if follows:
                states = main.add(follows, states)
        main.nodes[-1].output[0] = "logits"
        return self.finish()

    def finish(self) -> onnx.ModelProto:
        """The model around the nodes, checked."""
        ids = [("input_ids", TensorProto.INT64), ("attention_mask", TensorProto.INT64)]
        if self.skeleton.types:
            ids.append(("token_type_ids", TensorProto.INT64))
        inputs = [helper.make_tensor_value_info(n, t, ["batch", "length"]) for n, t in ids]
        inputs.append(helper.make_tensor_value_info("budget", TensorProto.FLOAT, []))
        classes = int(self.config.num_labels)
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", classes])
        graph = helper.make_graph(
            self.main.nodes, "apportion", inputs, [logits], initializer=self.names.constants
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)]
        made = helper.make_model(graph, opset_imports=opsets, producer_name="apportion")
        made.ir_version = 9
        onnx.checker.check_model(made)
        return made

    def embeddings(self) -> str:
        """Words, positions and types of tokens, summed and normed [batch, length, hidden]."""
        main, base = self.main, getattr(self.plain, str(self.plain.base_model_prefix))
        parts: Any = base.get_submodule(self.skeleton.embeddings)
        table = self.constant(parts.word_embeddings.weight.detach().float().numpy(), "words")
        states = main.add("Gather", table, "input_ids")
        table = self.constant(parts.position_embeddings.weight.detach().float().numpy(), "places")
        states = main.add("Add", states, main.add("Gather", table, self.positions()))
        types = getattr(parts, "token_type_embeddings", None)
        if types is not None:
            table = types.weight.detach().float().numpy()
            if self.skeleton.types:
                kinds = main.add("Gather", self.constant(table, "types"), "token_type_ids")
            else:
                kinds = self.constant(table[:1], "types")
            states = main.add("Add", states, kinds)
        states = self.norm(states, parts.LayerNorm)
        project = getattr(base, "embeddings_project", None)
        if project is not None:
            weight, bias = (
                self.constant(_matrix(project.weight)),
                self.constant(_flat(project.bias)),
            )
            states = main.add("Add", main.add("MatMul", states, weight), bias)
        return states

    def positions(self) -> str:
        """The number of each token's place, counted as its architecture does."""
        main = self.main
        one = self.constant(np.array(1, np.int64))
        if self.skeleton.counts_padding:
            padding = np.array(self.config.pad_token_id, np.int64)
            real = main.add("Equal", "input_ids", self.constant(padding))
            real = main.add("Cast", main.add("Not", real), to=TensorProto.INT64)
            count = main.add("CumSum", real, one)
            return main.add("Add", main.add("Mul", count, real), self.constant(padding))
        shape = main.add("Shape", "input_ids")
        length = main.add("Gather", shape, one)
        zero = self.constant(np.array(0, np.int64))
        return main.add("Range", zero, length, one)

    def norm(self, states: str, module: Any) -> str:
        """A layer norm of states."""
        scale, shift = self.constant(_flat(module.weight)), self.constant(_flat(module.bias))
        return self.main.add(
            "LayerNormalization", states, scale, shift, axis=-1, epsilon=float(module.eps)
        )

    def attention(self, site: Site, states: str, last: bool) -> str:
        """A layer's attention, its sum with the residual stream, and the norm of that."""
        path = site.inputs[0]
        given = self.quantised(self.main, path, states)
        over = self.factors(site.output)

        def block(scope: Scope, units: slice) -> str:
            columns = slice(units.start * site.width, units.stop * site.width)
            parts = [self.weights(one) for one in site.inputs]
            # What the output projection's inputs are divided by, values are divided by before.
            parts[2] = (parts[2][0] / over, parts[2][1] / over)
            weight = np.concatenate([matrix[:, columns] for matrix, _ in parts], axis=1)
            bias = self.constant(np.concatenate([shift[columns] for _, shift in parts]))
            heads = units.stop - units.start
            if self.scales is None:
                whole = self.constant(weight, "attention")
                mixed = scope.add("Attention", given[0], whole, bias, self.mask, num_heads=heads)
            else:
                matrix, sizes = self.scales[path].weights(weight, slice(None))
                mixed = scope.add(
                    "QAttention",
                    given[0],
                    self.constant(matrix, "attention"),
                    bias,
                    given[1],
                    self.constant(sizes),
                    self.mask,
                    given[2],
                    self.constant(np.zeros_like(matrix[0])),
                    num_heads=heads,
                )
            if last:
                mixed = scope.add("Gather", mixed, self.first, axis=1)
            given_back = self.rounded(scope, site.output, mixed)
            return self.product(scope, site.output, given_back, columns, bias=not units.start)

        if last:
            states = self.main.add("Gather", states, self.first, axis=1)
        return self.sum(site, block, states, self.skeleton.attention_norm)

    def feedforward(self, site: Site, states: str) -> str:
        """A layer's feed-forward network, summed with the residual stream, and normed."""
        path = site.inputs[0]
        given = self.quantised(self.main, path, states)
        bias = self.weights(path)[1]

        def block(scope: Scope, units: slice) -> str:
            columns = slice(units.start * site.width, units.stop * site.width)
            wide = self.product(scope, path, given, slice(None), columns)
            shift = self.constant(bias[columns])
            if self.activation == "BiasGelu":
                wide = scope.add("BiasGelu", wide, shift)
            else:
                wide = scope.add(self.activation, scope.add("Add", wide, shift))
            given_back = self.rounded(scope, site.output, wide)
            return self.product(scope, site.output, given_back, columns, bias=not units.start)

        return self.sum(site, block, states, self.skeleton.output_norm)

    def product(
        self,
        scope: Scope,
        path: str,
        given: Given,
        rows: slice,
        columns: slice = slice(None),
        *,
        bias: bool = False,
    ) -> str:
        """Given states times some rows and columns of a weight: in int8 if there are scales.

        Products in int8 add a bias as they are scaled; in single precision it is `sum` that does.
        """
        weight, shift = self.weights(path)
        weight = weight[rows, columns]
        if self.scales is None:
            return scope.add("MatMul", given[0], self.constant(weight, "weight"))
        matrix, sizes = self.scales[path].weights(weight, rows)
        rounded, by = self.constant(matrix, "weight"), self.constant(sizes)
        more = ["", self.constant(shift)] if bias else []
        return scope.add("MatMulIntegerToFloat", given[0], rounded, given[1], by, given[2], *more)

    def quantised(self, scope: Scope, path: str, states: str) -> Given:
        """States after a norm as the linear layer at a path takes them."""
        factors = self.factors(path)
        if np.ndim(factors):
            states = scope.add("Mul", states, self.constant(1.0 / factors))
        return self.rounded(scope, path, states)

    def rounded(self, scope: Scope, path: str, states: str) -> Given:
        """States by a scale and a zero point, if a linear layer takes them so."""
        if self.scales is None:
            return states, "", ""
        if self.dynamic:
            given = scope.add_several("DynamicQuantizeLinear", states, outputs=3)
            return given[0], given[1], given[2]
        found = self.scales[path]
        size, zero = self.constant(np.float32(found.size)), self.constant(np.uint8(found.zero))
        return scope.add("QuantizeLinear", states, size, zero), size, zero

    def factors(self, path: str) -> NDArray[Any] | np.float32:
        """What the channels before a linear layer are divided by."""
        found = None if self.scales is None else self.scales[path].factors
        return np.float32(1.0) if found is None else found

    def sum(self, site: Site, block: Block, states: str, norm: str) -> str:
        """The blocks that the budget pays for, summed with the residual stream, and normed."""
        kept = self.counts(site)
        layer = site.output.split(f".{site.layer}.")[0] + f".{site.layer}."
        scale, shift = (self.constant(values) for values in self.weights(layer + norm))
        epsilon = float(self.plain.get_submodule(layer + norm).eps)  # type: ignore[arg-type]

        def finish(scope: Scope, total: str | None) -> str:
            terms = [states] if total is None else [total, states]
            if total is None or self.scales is None:  # or the first block has added it
                terms.append(self.constant(self.weights(site.output)[1]))
            # Not `Add`: ONNX Runtime would make one operator of it and the norm,
            # SkipLayerNormalization, which takes twice as long as the two.
            total = scope.add("Sum", *terms)
            return scope.add("LayerNormalization", total, scale, shift, axis=-1, epsilon=epsilon)

        return self.pay(self.main, kept, block, finish)

    def counts(self, site: Site) -> list[int]:
        """How many units of a site each level keeps."""
        return self.kept.get((site.layer, site.kind), [site.count] * len(self.levels))

    def pay(
        self,
        scope: Scope,
        kept: Sequence[int],
        block: Block,
        finish: Callable[[Scope, str | None], str],
        level: int = 0,
        total: str | None = None,
    ) -> str:
        """A level's block on top of a total, then those of higher levels that the budget pays."""
        before = kept[level - 1] if level else 0
        if kept[level] > before:
            added = block(scope, slice(before, kept[level]))
            total = added if total is None else scope.add("Add", total, added)
        higher = [one for one in range(level + 1, len(kept)) if kept[one] > kept[level]]
        if not higher:
            return finish(scope, total)
        more, enough = Scope(self.names), Scope(self.names)
        return scope.add(
            "If",
            self.conditions[higher[0] - 1],
            then_branch=more.branch(self.pay(more, kept, block, finish, higher[0], total)),
            else_branch=enough.branch(finish(enough, total)),
        )


def _matrix(weight: torch.Tensor) -> NDArray[Any]:
    return weight.detach().float().numpy().T


def _flat(values: torch.Tensor) -> NDArray[Any]:
    return values.detach().float().numpy()
