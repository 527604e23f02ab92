"""Peers: a nested checkpoint run in every way that people would run it, to be timed side by side.

Each arm is a function of arrays, ids and mask in and logits out, for each of its levels; ways that
know no budget have one level, 1. All of them run the same weights.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from apportion.models.readout import read_first_token, reads_first_token
from apportion.serving.bench.peer_files import PeerFiles
from apportion.serving.runtime.arrays import on_arrays
from apportion.serving.runtime.engines import open_session
from apportion.serving.runtime.prediction import Answering
from apportion.serving.runtime.session import Runtime
from apportion.serving.runtime.skipping import Skipping

ByLevel = Mapping[float, Answering]


class LeftOutError(Exception):
    """Why an arm can't be built here."""


@dataclass(frozen=True)
class Setting:
    """What an arm is built for."""

    threads: int = 1
    one_shape: bool = False  # all calls are of the same size, so a compiler may count on it


@dataclass(frozen=True)
class Peer:
    """One way to run a checkpoint."""

    name: str  # in records and goals
    words: str  # in tables
    build: Callable[[PeerFiles, Setting], ByLevel]
    packages: tuple[str, ...] = ("torch",)  # the first one runs it
    how: str = ""  # what was set, where it matters
    int8: bool = False
    of_levels: bool = False
    beside: str = "torch"  # what it has to answer like, level by level

    def runtime(self) -> str:
        """What runs it, with its version."""
        return f"{self.packages[0]} {version(self.packages[0])}" + f", {self.how}" * bool(self.how)


def eager(files: PeerFiles, _: Setting) -> ByLevel:
    """The model as it was given."""
    return {1.0: on_arrays(files.whole())}


def shortcut(files: PeerFiles, _: Setting) -> ByLevel:
    """The model with its last layer computed for token 0 alone."""
    model = files.whole()
    if not reads_first_token(model):
        raise LeftOutError("its classifier reads more than token 0")
    return {1.0: on_arrays(read_first_token(model))}


def compiled(files: PeerFiles, setting: Setting) -> ByLevel:
    """The model through torch.compile, anew for each shape."""
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        raise LeftOutError("torch.compile needs a C++ compiler")
    torch.compiler.reset()
    model = torch.compile(files.whole(), dynamic=not setting.one_shape, options={"freezing": True})
    return {1.0: on_arrays(model)}


def onnx_dense(files: PeerFiles, setting: Setting) -> ByLevel:
    """ONNX Runtime on what `torch.onnx.export` gives."""
    return {1.0: _onnxruntime(files.dense(), setting)}


def onnx_int8(files: PeerFiles, setting: Setting) -> ByLevel:
    """ONNX Runtime on what `quantize_dynamic` makes of that."""
    return {1.0: _onnxruntime(files.dense_int8(), setting)}


def openvino_dense(files: PeerFiles, setting: Setting) -> ByLevel:
    """OpenVINO on what `torch.onnx.export` gives."""
    return {1.0: _openvino(files.dense(), setting)}


def openvino_int8(files: PeerFiles, setting: Setting) -> ByLevel:
    """OpenVINO on that with int8 scales taken from texts."""
    return {1.0: _openvino(files.dense_static(), setting)}


def views(files: PeerFiles, _: Setting) -> ByLevel:
    """Views of one set of weights, in torch."""
    skipping = Skipping(files.checkpoint.require_elastic())
    return {level: on_arrays(skipping.at(level)) for level in files.levels}


def one_file(files: PeerFiles, setting: Setting) -> ByLevel:
    """One ONNX file with all levels, in single precision."""
    return _by_level(Runtime(files.one_file(int8=False), threads=setting.threads))


def one_file_int8(files: PeerFiles, setting: Setting) -> ByLevel:
    """One ONNX file with all levels, in int8."""
    return _by_level(Runtime(files.one_file(int8=True), threads=setting.threads))


def one_file_dynamic(files: PeerFiles, setting: Setting) -> ByLevel:
    """The same with scales that each call takes anew, as ONNX Runtime's own int8 has them."""
    folder = files.one_file(int8=True, scales="dynamic")
    return _by_level(Runtime(folder, threads=setting.threads))


_EXPORTED = ("onnxruntime", "onnx", "onnxscript")
_OPENVINO = ("openvino", "onnx", "onnxscript")
PEERS = (
    Peer("torch", "torch eager", eager),
    Peer("torch-shortcut", "torch eager, last layer for token 0", shortcut),
    Peer("torch-compiled", "torch.compile", compiled, how="inductor, freezing"),
    Peer("onnxruntime", "ONNX Runtime", onnx_dense, _EXPORTED),
    Peer("onnxruntime-int8", "ONNX Runtime, dynamic int8", onnx_int8, _EXPORTED, int8=True),
    Peer("openvino", "OpenVINO", openvino_dense, _OPENVINO, "precision hint f32"),
    Peer(
        "openvino-int8",
        "OpenVINO, static int8",
        openvino_int8,
        (*_OPENVINO, "onnxruntime"),
        "precision hint f32",
        int8=True,
    ),
    Peer("views", "torch views", views, of_levels=True),
    Peer("file", "one file", one_file, _EXPORTED[:2], of_levels=True, beside="views"),
    Peer(
        "file-int8", "one file, int8", one_file_int8, _EXPORTED[:2], int8=True, of_levels=True,
        beside="file",
    ),
    Peer(
        "file-int8-dynamic", "one file, dynamic int8", one_file_dynamic, _EXPORTED[:2], int8=True,
        of_levels=True, beside="file",
    ),
)  # fmt: skip
NAMED = {peer.name: peer for peer in PEERS}


@dataclass(frozen=True)
class Built:
    """The arms that could be built here, and why the others could not."""

    arms: Mapping[tuple[str, float], Answering]  # by name and level
    left_out: Mapping[str, str]


def build_peers(files: PeerFiles, setting: Setting, *, names: Sequence[str] | None = None) -> Built:
    """The arms of some names, or of all, in the order of the table above."""
    arms: dict[tuple[str, float], Answering] = {}
    left_out: dict[str, str] = {}
    for peer in PEERS:
        if names is not None and peer.name not in names:
            continue
        missing = [package for package in peer.packages if find_spec(package) is None]
        if missing:
            left_out[peer.name] = f"{missing[0]} is not installed"
            continue
        try:
            built = peer.build(files, setting)
        except LeftOutError as reason:
            left_out[peer.name] = str(reason)
            continue
        arms |= {(peer.name, level): answer for level, answer in built.items()}
    return Built(arms, left_out)


def _onnxruntime(path: Path, setting: Setting) -> Answering:
    """A file as a function of arrays; the session's options are those of our own file's."""
    session = open_session(path, setting.threads)

    def answer(**inputs: NDArray[Any]) -> NDArray[Any]:
        given = {name: np.asarray(values, np.int64) for name, values in inputs.items()}
        logits: NDArray[Any] = session.run(None, given)[0]
        return logits

    return answer


def _openvino(path: Path, setting: Setting) -> Answering:
    """A file as a function of arrays; without the hint, it would compute in bf16 where it can."""
    core = import_module("openvino").Core()  # by name, as it comes without types
    options = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": setting.threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
    }
    model = core.compile_model(core.read_model(str(path)), "CPU", options)

    def answer(**inputs: NDArray[Any]) -> NDArray[Any]:
        given = {name: np.asarray(values, np.int64) for name, values in inputs.items()}
        return np.array(model(given)[0])  # its own memory is written anew by the next call

    return answer


def _by_level(runtime: Runtime) -> ByLevel:
    return {level: partial(runtime, budget=level) for level in runtime.levels}
