"""Nodes: what a graph is written with: names, constants, and scopes of nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

CONTRIB = "com.microsoft"  # operators of ONNX Runtime's own
_OWN = {"Attention", "BiasGelu", "Gelu", "MatMulIntegerToFloat", "QAttention"}


class Names:
    """Names that are given once, and the constants of a graph, which every branch sees."""

    def __init__(self) -> None:
        self.constants: list[onnx.TensorProto] = []
        self._given: dict[str, int] = {}

    def new(self, kind: str) -> str:
        """A name that no other node or constant has."""
        self._given[kind] = self._given.get(kind, 0) + 1
        return f"{kind}_{self._given[kind]}"

    def constant(self, values: NDArray[Any] | np.generic, kind: str = "constant") -> str:
        """The name of a new constant; all of them stand in the main graph."""
        name = self.new(kind)
        self.constants.append(numpy_helper.from_array(np.asarray(values, order="C"), name))
        return name


class Scope:
    """Nodes of a graph, or of a branch, in the order in which they are run."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.nodes: list[onnx.NodeProto] = []

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """The output of a new node."""
        return self.add_several(kind, *inputs, outputs=1, **attributes)[0]

    def add_several(
        self, kind: str, *inputs: str, outputs: int, **attributes: Any
    ) -> tuple[str, ...]:
        """The outputs of a new node that has several."""
        names = tuple(self.names.new(kind) for _ in range(outputs))
        domain = CONTRIB if kind in _OWN else ""
        node = helper.make_node(kind, list(inputs), names, names[0], domain=domain, **attributes)
        self.nodes.append(node)
        return names

    def branch(self, output: str) -> onnx.GraphProto:
        """These nodes as a branch that returns one of their outputs."""
        states = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
        return helper.make_graph(self.nodes, self.names.new("branch"), [], [states])
