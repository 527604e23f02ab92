"""The command line: parse, call, print. Data goes to stdout, progress and messages to stderr."""

import sys

from apportion.extras import missing

try:
    # In the order in which `--help` names them.
    from apportion.cli import (  # isort: skip
        demo,
        train,
        convert,
        folders,
        export,
        certify,
        calibrate,
        predict,
        serve,
        load,
        studies,
        reproduce,
    )
    from apportion.cli.main import app, main
except KeyboardInterrupt:  # imports take seconds
    raise SystemExit(130) from None
except ModuleNotFoundError as error:
    sys.stderr.write(f"apportion: {missing(error)}\n")
    raise SystemExit(2) from None

__all__ = [
    "app",
    "calibrate",
    "certify",
    "convert",
    "demo",
    "export",
    "folders",
    "load",
    "main",
    "predict",
    "reproduce",
    "serve",
    "studies",
    "train",
]
