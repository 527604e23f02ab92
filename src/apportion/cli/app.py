"""What every command shares: the program itself, its options, and how it fails."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from apportion import __version__

app = typer.Typer(
    help="One transformer checkpoint, any compute budget.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    add_completion=False,
)
err = Console(stderr=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs, not a table.")]

# A path of the user's that does not lead where it should: a mistake like any other.
_WRONG_PATH = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)


def main() -> NoReturn:
    """Runs the command; a user's mistake is one sentence and exit code 2, never a traceback."""
    try:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ValueError("the command line runs as one process; to use several, call `fit`")
        app()
    except BrokenPipeError:
        # Whoever read the output has enough of it; what Python would flush at exit has no reader.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, *_WRONG_PATH) as error:
        _fail(error, 2)
    except OSError as error:
        _fail(error, 1)
    sys.exit(0)


def _fail(error: Exception, code: int) -> NoReturn:
    if os.environ.get("APPORTION_DEBUG"):
        raise error
    err.print("apportion:", style="bold red", end=" ")
    # As it is: [task] in a message is a table's name, not a style.
    err.print(str(error), markup=False, highlight=False, soft_wrap=True)
    sys.exit(code)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass
