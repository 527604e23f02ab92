"""The command line: parse, call, print. Data goes to stdout, progress and messages to stderr."""

# In the order in which `--help` names them.
from apportion.cli import (  # isort: skip
    training,
    conversion,
    checkpoints,
    prediction,
    experiments,
    reproduce,
)
from apportion.cli.app import app, main

__all__ = [
    "app",
    "checkpoints",
    "conversion",
    "experiments",
    "main",
    "prediction",
    "reproduce",
    "training",
]
