"""The command line: parse, call, print. Data goes to stdout, progress and messages to stderr."""

try:
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
except KeyboardInterrupt:  # imports take seconds
    raise SystemExit(130) from None

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
