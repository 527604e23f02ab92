"""The graph: a nested model as one ONNX graph that takes its budget as an input.

Each site is split into blocks, block i holding the units that level i adds. The first block stands
in the main graph, every other one behind `If(budget >= level i)`, inside the branch of the one
before it, so that a small budget passes one condition per site. What blocks return is summed onto
the residual stream; a branch that is not taken returns a zero that broadcasts. Weights of a block
stand once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from apportion.elastic.elastic import Elastic
from apportion.models.sites import Site, find_sites
from apportion.serving.runtime.quantisation import Scale, quantise_columns
from apportion.serving.runtime.skeletons import skeleton_of

OPSET = 17
CONTRIB = "com.microsoft"  # operators of ONNX Runtime's own
_SLACK = 1e-6  # a budget of 0.1 + 0.2 pays for 0.3


def build_graph(
    model: Elastic, levels: Sequence[float], *, scales: Mapping[str, Scale] | None = None
) -> onnx.ModelProto:
    """The ONNX model of a nested one, at these levels from the smallest up.

    With `scales`, which say where the inputs of each linear layer lie, sites compute in int8.
    """
    return _Graph(model, levels, scales).build()


class _Scope:
    """Nodes of a graph, or of a branch, in the order in which they are run."""

    def __init__(self, graph: _Graph) -> None:
        self.graph = graph
        self.nodes: list[onnx.NodeProto] = []

    def add(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """The output of a new node."""
        name = self.graph.name(kind)
        given = helper.make_node(kind, list(inputs), [name], name, domain=domain, **attributes)
        self.nodes.append(given)
        return name


class _Graph:
    def __init__(
        self, model: Elastic, levels: Sequence[float], scales: Mapping[str, Scale] | None
    ) -> None:
        self.model, self.levels, self.scales = model, levels, scales
        self.plain = model.plain().eval()
        self.config: Any = self.plain.config
        self.skeleton = skeleton_of(self.plain)
        self.initialisers: list[onnx.TensorProto] = []
        self.names: dict[str, int] = {}
        self.main = _Scope(self)
        kept = [model.allocation(level) for level in levels]
        self.kept = {
            (site.layer, site.kind): [len(one.indices(site.layer, site.kind)) for one in kept]
            for site in find_sites(self.plain, model.kinds, model.block)
        }

    def name(self, kind: str) -> str:
        """A name that no other node or initialiser has."""
        self.names[kind] = self.names.get(kind, 0) + 1
        return f"{kind}_{self.names[kind]}"

    def constant(self, values: NDArray[Any] | np.generic, kind: str = "constant") -> str:
        """The name of an initialiser; all of them stand in the main graph, seen by every branch."""
        name = self.name(kind)
        self.initialisers.append(numpy_helper.from_array(np.asarray(values, order="C"), name))
        return name

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
        self.zero = self.constant(np.zeros((1, 1, 1), np.float32), "zero")
        self.first = self.constant(np.array([0], np.int64), "first")
        self.mask = main.add("Cast", "attention_mask", to=TensorProto.INT32)
        states = self.embeddings()
        # Neurons that no budget switches off need not come in blocks.
        block = self.model.block if "feedforward" in self.model.kinds else 1
        sites = find_sites(self.plain, block=block)
        layers = len(sites) // 2
        for attention, feedforward in zip(sites[::2], sites[1::2], strict=True):
            # Only token 0 is read of the last layer: after its keys and values, the rest goes.
            states = self.attention(attention, states, attention.layer == layers - 1)
            states = self.feedforward(feedforward, states)
        states = main.add("Gather", states, self.constant(np.array(0, np.int64)), axis=1)
        for path, follows in self.skeleton.head:
            weight, bias = self.weights(path)
            states = main.add("Gemm", states, self.constant(weight), self.constant(bias))
            if follows:
                domain = CONTRIB if follows == "Gelu" else ""
                states = main.add(follows, states, domain=domain)
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
            self.main.nodes, "apportion", inputs, [logits], initializer=self.initialisers
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
        given = self.quantised(self.main, site.inputs[0], states)

        def block(scope: _Scope, units: slice) -> str:
            columns = slice(units.start * site.width, units.stop * site.width)
            parts = [self.weights(path) for path in site.inputs]
            weight = np.concatenate([matrix[:, columns] for matrix, _ in parts], axis=1)
            bias = self.constant(np.concatenate([shift[columns] for _, shift in parts]))
            heads = units.stop - units.start
            if self.scales is None:
                mixed = scope.add(
                    "Attention",
                    given,
                    self.constant(weight, "attention"),
                    bias,
                    self.mask,
                    domain=CONTRIB,
                    num_heads=heads,
                )
            else:
                matrix, sizes = quantise_columns(weight, self.scales[site.inputs[0]].bits)
                scale, zero = self.scale(site.inputs[0])
                mixed = scope.add(
                    "QAttention",
                    given,
                    self.constant(matrix, "attention"),
                    bias,
                    scale,
                    self.constant(sizes),
                    self.mask,
                    zero,
                    self.constant(np.zeros_like(matrix[0])),
                    domain=CONTRIB,
                    num_heads=heads,
                )
            if last:
                mixed = scope.add("Gather", mixed, self.first, axis=1)
            return self.linear(scope, site.output, mixed, columns)

        if last:
            states = self.main.add("Gather", states, self.first, axis=1)
        return self.sum(site, block, states, self.skeleton.attention_norm)

    def feedforward(self, site: Site, states: str) -> str:
        """A layer's feed-forward network, summed with the residual stream, and normed."""
        given = self.quantised(self.main, site.inputs[0], states)
        weight, bias = self.weights(site.inputs[0])

        def block(scope: _Scope, units: slice) -> str:
            columns = slice(units.start * site.width, units.stop * site.width)
            wide = self.product(scope, site.inputs[0], given, weight[:, columns])
            shift = self.constant(bias[columns])
            if self.activation == "BiasGelu":
                wide = scope.add("BiasGelu", wide, shift, domain=CONTRIB)
            else:
                wide = scope.add(self.activation, scope.add("Add", wide, shift))
            return self.linear(scope, site.output, wide, columns)

        return self.sum(site, block, states, self.skeleton.output_norm)

    @property
    def activation(self) -> str:
        """The operator of the feed-forward layers' activation."""
        name = getattr(self.config, "hidden_act", None) or self.config.activation
        known = {"gelu": "BiasGelu", "relu": "Relu"}
        if name not in known:
            raise ValueError(
                f"feed-forward layers with {name} can't be exported; gelu and relu can"
            )
        return known[name]

    def linear(self, scope: _Scope, path: str, given: str, columns: slice) -> str:
        """Some columns of an output projection, without its bias."""
        weight, _ = self.weights(path)
        return self.product(scope, path, self.quantised(scope, path, given), weight[columns])

    def product(self, scope: _Scope, path: str, given: str, weight: NDArray[Any]) -> str:
        """Given states times a weight: in int8 if there are scales."""
        if self.scales is None:
            return scope.add("MatMul", given, self.constant(weight, "weight"))
        matrix, sizes = quantise_columns(weight, self.scales[path].bits)
        scale, zero = self.scale(path)
        return scope.add(
            "MatMulIntegerToFloat",
            given,
            self.constant(matrix, "weight"),
            scale,
            self.constant(sizes),
            zero,
            domain=CONTRIB,
        )

    def quantised(self, scope: _Scope, path: str, states: str) -> str:
        """States as the linear layer at a path takes them."""
        if self.scales is None:
            return states
        return scope.add("QuantizeLinear", states, *self.scale(path))

    def scale(self, path: str) -> tuple[str, str]:
        """Scale and zero point of what a linear layer is given."""
        assert self.scales is not None
        found = self.scales[path]
        return self.constant(np.float32(found.size)), self.constant(np.uint8(found.zero))

    def sum(self, site: Site, block: Callable[[_Scope, slice], str], states: str, norm: str) -> str:
        """The blocks that the budget pays for, summed with the residual stream, and normed."""
        kept = self.kept.get((site.layer, site.kind), [site.count] * len(self.levels))
        layer = site.output.split(f".{site.layer}.")[0] + f".{site.layer}."
        scale, shift = (self.constant(values) for values in self.weights(layer + norm))
        bias = self.constant(self.weights(site.output)[1])
        epsilon = float(self.plain.get_submodule(layer + norm).eps)  # type: ignore[arg-type]
        more = self.branch(self.main, kept, block, 1)
        if kept[0]:
            total = block(self.main, slice(0, kept[0]))
            total = self.main.add("Add", total, more) if more else total
            return self.main.add(
                "SkipLayerNormalization",
                total,
                states,
                scale,
                shift,
                bias,
                domain=CONTRIB,
                epsilon=epsilon,
            )
        total = self.main.add("Add", states, more) if more else states
        total = self.main.add("Add", total, bias)
        return self.main.add("LayerNormalization", total, scale, shift, axis=-1, epsilon=epsilon)

    def branch(
        self, scope: _Scope, kept: Sequence[int], block: Callable[[_Scope, slice], str], level: int
    ) -> str | None:
        """What the blocks from a level on add, each inside the branch of the one before it."""
        while level < len(kept) and kept[level] == kept[level - 1]:
            level += 1
        if level == len(kept):
            return None
        inside = _Scope(self)
        total = block(inside, slice(kept[level - 1], kept[level]))
        more = self.branch(inside, kept, block, level + 1)
        if more:
            total = inside.add("Add", total, more)
        nothing = _Scope(self)
        unused = nothing.add("Identity", self.zero)
        return scope.add(
            "If",
            self.conditions[level - 1],
            then_branch=_branch_of(inside, total),
            else_branch=_branch_of(nothing, unused),
        )


def _branch_of(scope: _Scope, output: str) -> onnx.GraphProto:
    states = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    return helper.make_graph(scope.nodes, scope.graph.name("branch"), [], [states])


def _matrix(weight: torch.Tensor) -> NDArray[Any]:
    return weight.detach().float().numpy().T


def _flat(values: torch.Tensor) -> NDArray[Any]:
    return values.detach().float().numpy()
