"""The command line: parse, call, print. Data goes to stdout, progress and messages to stderr."""

from apportion.cli import checkpoints, experiments, prediction, reproduce
from apportion.cli.app import app, main

__all__ = ["app", "checkpoints", "experiments", "main", "prediction", "reproduce"]
