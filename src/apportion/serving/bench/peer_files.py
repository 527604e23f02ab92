"""Peer files: what other ways of running a checkpoint read, each written once.

dense.onnx            the whole model, as `torch.onnx.export` gives it
dense-int8.onnx       that through ONNX Runtime's `quantize_dynamic`, as people call it
dense-products.onnx   the same, but embeddings stay in single precision, as they do in our file
dense-static.onnx     the whole model with int8 scales taken from texts, which OpenVINO reads
file/, file-int8/     our exported folders with all levels,
file-int8-dynamic/    and the one whose int8 scales are taken anew in each call
level-0.25/, …        our int8 export of one level alone
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from apportion.elastic.checkpoint import Checkpoint
from apportion.elastic.elastic import logits_of
from apportion.files import replacing
from apportion.serving.milliseconds.machine import int8_target
from apportion.serving.runtime.engines import LEVELS
from apportion.serving.runtime.exported import GRAPH, is_export
from apportion.serving.runtime.exporting import export

_CALIBRATED = 256  # texts that scales are taken from, as many as our export takes
_BATCH = 32


@dataclass(frozen=True)
class PeerFiles:
    """The files of one nested checkpoint, in a folder of their own.

    `texts` are what int8 scales are taken from; no label is needed. Others run the checkpoint's
    whole model, or a `given` one, such as the dense model that it comes from. Our int8 file is
    written there too, unless it was `exported` before.
    """

    checkpoint: Checkpoint
    folder: Path
    texts: Sequence[str]
    given: nn.Module | None = None
    exported: Path | None = None

    @property
    def levels(self) -> tuple[float, ...]:
        """The usual levels of the checkpoint's range."""
        return self.checkpoint.require_elastic().within(LEVELS)

    def whole(self) -> nn.Module:
        """A copy of the model as it was given: nothing is cut, nothing is fused."""
        if self.given is not None:
            return copy.deepcopy(self.given).eval()
        return self.checkpoint.require_elastic().plain().eval()

    def dense(self) -> Path:
        """The whole model as ONNX."""
        return self._made("dense.onnx", self._write_dense)

    def dense_int8(self) -> Path:
        """The whole model with int8 weights and dynamic scales, embeddings included."""
        return self._made("dense-int8.onnx", self._write_dynamic)

    def dense_products(self) -> Path:
        """The whole model with int8 products and dynamic scales: the precision of our file."""

        def write(path: Path) -> None:
            self._write_dynamic(path, op_types_to_quantize=["MatMul"])

        return self._made("dense-products.onnx", write)

    def dense_static(self) -> Path:
        """The whole model with int8 products and scales from texts."""
        return self._made("dense-static.onnx", self._write_static)

    def one_file(self, *, int8: bool, scales: str = "static") -> Path:
        """Our exported folder with all levels."""
        if self.exported is not None and int8 and scales == "static":
            return self.exported
        name = f"file{'-int8' * int8}{'-dynamic' * (scales == 'dynamic')}"
        return self._exported(name, self.levels, int8, scales)

    def of_level(self, level: float) -> Path:
        """Our int8 export of one level alone."""
        return self._exported(f"level-{level:g}", (level,), True)

    def _exported(
        self, name: str, levels: Sequence[float], int8: bool, scales: str = "static"
    ) -> Path:
        folder = self.folder / name
        if not is_export(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            export(
                self.checkpoint,
                folder,
                texts=self.texts,
                levels=levels,
                int8=int8,
                scales=scales,
            )
        return folder

    def _made(self, name: str, write: Callable[[Path], None]) -> Path:
        path = self.folder / name
        if not path.exists():
            with replacing(path) as part, _quietly():
                write(part)
        return path

    def _write_dense(self, path: Path) -> None:
        rows, tokens = torch.export.Dim("rows"), torch.export.Dim("tokens")
        ids = torch.ones(2, 8, dtype=torch.int64)
        torch.onnx.export(
            _Logits(self.whole()).eval(),
            (ids, torch.ones_like(ids)),
            str(path),
            dynamo=True,
            external_data=False,
            verbose=False,
            input_names=["input_ids", "attention_mask"],
            output_names=["logits"],
            dynamic_shapes=({0: rows, 1: tokens}, {0: rows, 1: tokens}),
        )

    def _write_dynamic(self, path: Path, **more: Any) -> None:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        # 8-bit products saturate on processors without VNNI: there it takes 7 bits, as we do.
        seven = int8_target() != "vnni"
        quantize_dynamic(
            self._bare(), path, weight_type=QuantType.QInt8, reduce_range=seven, **more
        )

    def _write_static(self, path: Path) -> None:
        from onnxruntime.quantization import (
            CalibrationDataReader,
            QuantFormat,
            QuantType,
            quantize_static,
        )

        calls = self._calibration()

        class Reader(CalibrationDataReader):  # type: ignore[misc]
            def get_next(self) -> Any:
                return next(calls, None)

        quantize_static(
            self._bare(),
            path,
            Reader(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            weight_type=QuantType.QInt8,
            op_types_to_quantize=["MatMul"],
            extra_options={"MatMulConstBOnly": True},  # of weights; attention stays as it is
        )

    def _bare(self) -> Any:
        """The dense graph without the shapes inside: the quantiser turns weights round, and trips
        over what was noted of their shapes before.
        """
        import onnx

        graph = onnx.load(str(self.dense()))
        del graph.graph.value_info[:]
        return graph

    def _calibration(self) -> Iterator[dict[str, Any]]:
        words = self.checkpoint.words
        assert words is not None, "a checkpoint that is exported has a tokenizer"
        encoded = words.encode(list(self.texts)[:_CALIBRATED])
        for start in range(0, len(encoded), _BATCH):
            arrays = words.pad_arrays(encoded[start : start + _BATCH])
            yield {name: values.astype("int64") for name, values in arrays.items()}


def graph_of(folder: Path) -> Path:
    """The ONNX file of an exported folder."""
    return folder / GRAPH


class _Logits(nn.Module):
    """A classifier that returns its logits alone, as exporters want it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return logits_of(self.model(input_ids=input_ids, attention_mask=attention_mask))


@contextmanager
def _quietly() -> Iterator[None]:
    """Exporters and quantisers warn of their own insides; what fails is still raised."""
    before = logging.root.manager.disable  # a file may be made on the way to another
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
