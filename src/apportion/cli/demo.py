"""The command that shows it all: demo; and the page of one's own run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apportion.cli.main import AsJson, app, err
from apportion.cli.streams import say

if TYPE_CHECKING:
    from apportion.study.own_run import OwnRun


@app.command(
    epilog="[bold]apportion demo[/], then [bold]apportion serve runs/demo/onnx[/]. Your own texts: "
    "[bold]apportion train --data reviews/ --model minilm --out runs/mine[/] and "
    "[bold]apportion report runs/mine --measure[/]."
)
def demo(
    into: Annotated[Path, typer.Option("--out", help="Folder for all that it makes.")] = Path(
        "runs/demo"
    ),
    archive: Annotated[
        Path | None,
        typer.Option(
            help="vaderSentiment-3.3.2.tar.gz, which holds the reviews. \\[default: from the "
            "package index, once]",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str, typer.Option(help="The encoder to start from: minilm, a folder or a name on the hub.")
    ] = "minilm",
    as_json: AsJson = False,
) -> None:
    """Show it on film reviews: from a pretrained encoder to one int8 file with a speed dial.

    Fine-tunes the encoder on 2,000 reviews, trains it for all budgets, exports it to one file,
    measures that beside the dense model, and certifies it; about five minutes on two cores. Stopped
    or killed, the same command goes on where it was; when all is done, it only prints the table.
    """
    from apportion.study.bars import Bars
    from apportion.study.demonstration import demonstrate

    try:
        with Bars(err) as bars, _pieces() as progress:
            done = demonstrate(
                into,
                watcher=bars,
                model=model,
                archive=archive,
                tell=say,
                progress=progress,
            )
    except KeyboardInterrupt:
        say("stopped; the same command goes on where it was")
        raise typer.Exit(130) from None
    _show_run(done.run, done.page, str(done.texts), as_json)


def report_run(folder: Path, texts: Path | None, *, measured: bool, as_json: bool) -> None:
    """Measures a run if that is asked for, writes its page, and prints its table."""
    from apportion.data.unlabelled import read_texts
    from apportion.study.experiment import read_experiment
    from apportion.study.own_run import measure_run, read_run
    from apportion.study.report.run_page import write_run_page

    if not (folder / "checkpoint").is_dir():
        raise ValueError(f"{folder} has no checkpoint; --measure takes the folder of a training")
    if measured:
        found = read_texts(texts, ["text"]).texts if texts else ()
        with _pieces() as progress:
            run = measure_run(folder, texts=found, progress=progress)
    else:
        run = read_run(folder)
    file = folder / "experiment.toml"
    title = read_experiment(file).title if file.is_file() else folder.resolve().name
    page, named = folder / "report.html", str(texts) if texts else "texts.csv"
    write_run_page(run, page, title=title, texts=named)
    _show_run(run, page, named, as_json)


def _show_run(run: OwnRun, page: Path, texts: str, as_json: bool) -> None:
    from apportion.study.report.run_page import (
        advice,
        certificate_words,
        next_commands,
        run_table,
    )
    from apportion.study.report.terminal import show

    show([run_table(run)], as_json)
    say(advice(run))
    if run.certificate is not None:
        say(certificate_words(run))
    (predict, of_predict), *_, (serve, of_serve) = next_commands(run, texts=texts)
    said = f"{predict}   # {of_predict}\n{serve}   # {of_serve}\nopen {page}   # all of this"
    say(f"\n{said}")


@contextmanager
def _pieces() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each piece of work, and a line where there is no terminal."""
    from apportion.training.progress import telling, training_bar

    last = ""
    with training_bar(err) as bar:

        def tell(what: str, done: int, of: int) -> None:
            nonlocal last
            if what != last and not err.is_terminal:
                say(f"{what}: started")
            last = what
            telling(bar)(what, done, of)

        yield tell
