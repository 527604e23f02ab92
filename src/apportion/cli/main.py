"""What every command shares: the program itself, its options, and how it fails."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from apportion import __version__
from apportion.extras import missing

app = typer.Typer(
    help="One transformer checkpoint, any compute budget.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    add_completion=False,
    # A flag that nobody gave: Typer would import pydantic to make that of nothing.
    context_settings={"default_map": {"help": False}},
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
        _check_streams()
        _check_words(sys.argv[1:])
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except SystemExit as stop:
        # Whoever read the output has enough of it, which Typer takes for a failure.
        if not isinstance(stop.__context__, BrokenPipeError):
            raise
    except ModuleNotFoundError as error:
        _fail(ValueError(missing(error)), 2)
    except (ValueError, *_WRONG_PATH) as error:
        _fail(error, 2)
    except OSError as error:
        _fail(error, 1)
    sys.exit(0)


def _check_streams() -> None:
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # Or the next file that is opened would get what is written to the terminal.
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        raise ValueError("stdout is closed; let it go to a file, or to /dev/null")


def _check_words(words: list[str]) -> None:
    """Complains of an empty word: to most options it would mean that they were not given."""
    for number, word in enumerate(words):
        option, equals, value = word.partition("=")
        if not word:
            option = words[number - 1] if number else ""
        elif not (option.startswith("--") and equals and not value):
            continue
        name = option if option.startswith("-") else "an argument"
        raise ValueError(f"{name} is empty; is a variable of the shell not set?")


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
