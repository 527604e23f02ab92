"""Damages copies of small checkpoint folders in many ways, and counts what the loader makes of it.

    python tools/torture.py --tries 10000 --commands 300

Every try damages one file of one folder: its bytes, a value of its JSON, or a tensor; half of them
are signed, which means that the sizes and hashes in the manifest are made anew, as somebody would
who does it on purpose. The folder is then read by the functions behind the commands or, for some of
the tries, by the commands themselves, in processes of their own. What may happen:

    refused     an error of one sentence (ValueError or OSError)
    same        nothing that matters was damaged: it answers as before, to the bit
    fits        it answers otherwise, and its parts fit each other: `misfit` says what that means

What may not: a traceback, a hang or a crash, or a folder that is accepted although its parts do not
fit. Each try depends on the seed and its number alone: --start 417 --tries 1 repeats one of them.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import faulthandler
import hashlib
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors

from apportion import cli
from apportion.cli.folders import inspect
from apportion.cli.predict import predict
from apportion.data.tokenizer import Tokenizer
from apportion.elastic.checkpoint import Checkpoint, load, read_manifest, save
from apportion.elastic.elastic import Elastic
from apportion.models.encoder import Encoder, EncoderConfig
from apportion.models.hub import load_tokenizer
from apportion.models.sites import find_sites
from apportion.training.recipes import BUDGETED

MANIFEST, CARD = "apportion.json", "README.md"
CLASSES = ["bad", "good"]
TEXTS = ["a good day", "a bad day and a bad night", "night", "the day"]
GOOD = ("refused", "same", "fits")
BAD = ("traceback", "hang", "misfit")
Draw = random.Random


# ---- folders to damage


def write_folders(home: Path) -> dict[str, Path]:
    """A small folder of each kind: our encoder with gates and cut, BERT nested, cut and dense."""
    torch.manual_seed(1)
    words = Tokenizer.learn(TEXTS, length=8, size=30, min_count=1)
    shape = {"classes": 2, "layers": 2, "heads": 2, "hidden": 8, "feedforward": 16}
    own = Elastic(Encoder(EncoderConfig(len(words), 8, **shape)).eval(), length=8, block=8)
    torch.nn.init.normal_(own.gates.a)
    folders = {name: home / name for name in ("own", "own-cut", "nested", "cut", "dense")}
    save(Checkpoint(own, _notes(), words=words), folders["own"])
    kept = own.allocation(0.5)
    save(Checkpoint(own.cut(0.5), _notes(cut=True), kept, words), folders["own-cut"])
    bert = _write_bert(folders["dense"])
    theirs = Elastic(bert, ("heads", "feedforward"), length=8, block=8)
    nested = theirs.nested(torch.rand(len(theirs.units)))
    words = load_tokenizer(str(folders["dense"]), 8)
    save(Checkpoint(nested, _notes(), words=words), folders["nested"])
    kept = nested.allocation(0.5)
    save(Checkpoint(nested.cut(0.5), _notes(cut=True), kept, words), folders["cut"])
    return folders


def _notes(cut: bool = False) -> dict[str, Any]:
    point = {"budget": 0.5, "form": "cut", "cost": 0.5, "accuracy": 0.75, "rows": 4}
    return {
        "classes": CLASSES,
        "task": {"kind": "text", "data": "texts", "text": ["text"], "label": "label", "length": 8},
        "recipes": [BUDGETED.to_dict()],
        "measured": [point],
        "data": "0123456789abcdef",
        "method": "budgeted",
        "seed": 7,
        "training": {"epochs": 1, "best": {"loss": 0.5}},
        **({"cut": {"budget": 0.5, "floor": 0, "cost": 0.5}} if cut else {}),
    }


def _write_bert(folder: Path) -> torch.nn.Module:
    import transformers  # slow to import

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    listed = [*special, *sorted({word for text in TEXTS for word in text.split()})]
    numbers = {word: number for number, word in enumerate(listed)}
    pieces = Backend(models.WordPiece(numbers, unk_token="[UNK]"))
    pieces.pre_tokenizer = pre_tokenizers.Whitespace()
    pieces.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=pieces, **dict(zip(names, special, strict=True)), model_max_length=16
    )
    config = transformers.BertConfig(
        vocab_size=len(listed),
        num_hidden_layers=2,
        num_attention_heads=2,
        hidden_size=8,
        intermediate_size=16,
        max_position_embeddings=16,
        id2label=dict(enumerate(CLASSES)),
        label2id={name: number for number, name in enumerate(CLASSES)},
    )
    model: torch.nn.Module = transformers.BertForSequenceClassification(config).eval()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


# ---- ways to damage a file


def damage(folder: Path, draw: Draw) -> str:
    """Damages one file of a folder, and may sign it; what was done, in words."""
    names = sorted(path.name for path in folder.iterdir())
    weights = [3 if name == MANIFEST else 0.2 if name == CARD else 1 for name in names]
    (name,) = draw.choices(names, weights)
    path = folder / name
    ways = [_damage_bytes]
    if path.suffix == ".json":
        ways += [_damage_json] * 4
    elif path.suffix == ".safetensors":
        ways += [_damage_tensors] * 3
    what = draw.choice(ways)(path, draw)
    signed = name != MANIFEST and (folder / MANIFEST).is_file() and draw.random() < 0.5
    if signed:
        _sign(folder)
    return f"{name}: {what}{', signed' if signed else ''}"


def _sign(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    for name in list(manifest["files"]):
        if not (folder / name).is_file():
            del manifest["files"][name]
            continue
        data = (folder / name).read_bytes()
        facts = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        manifest["files"][name] = facts
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")


def _damage_bytes(path: Path, draw: Draw) -> str:
    data = bytearray(path.read_bytes())
    at = draw.randrange(len(data))
    end = min(len(data), at + draw.choice((1, 4, 64, len(data))))
    way = draw.choice(
        ("cut off", "flip", "remove", "zero", "noise", "repeat", "swap", "gone", "link")
    )
    if way == "cut off":
        del data[at:]
    elif way == "flip":
        data[at] ^= 1 << draw.randrange(8)
    elif way == "remove":
        del data[at:end]
    elif way == "zero":
        data[at:end] = bytes(end - at)
    elif way == "noise":
        data[at:end] = draw.randbytes(end - at)
    elif way == "repeat":
        data[at:at] = data[at:end]
    elif way == "swap":
        other = draw.choice(sorted(path.parent.iterdir()))
        data = bytearray(other.read_bytes())
    path.unlink()
    if way == "link":
        path.symlink_to(path.name)
    elif way != "gone":
        path.write_bytes(data)
    return f"{way} at {at}"


# What can be written as JSON, and not be made by who writes JSON.
_WRITTEN = {"@deep": "[" * 5000 + "]" * 5000, "@large": "1e999", "@long": "9" * 5000}


def _odd(draw: Draw, old: Any) -> Any:
    """A value that somebody else may have put there."""
    if isinstance(old, bool) or not isinstance(old, (int, float)) or draw.random() < 0.5:
        return draw.choice(
            (
                *(None, True, False, 0, -1, 1, 2, 3, 0.5, 10**6, 10**9, 10**30, 1e-300),
                *(float("nan"), float("inf"), "", "x", "heads", "y" * 10_000),
                *([], {}, [1], {"a": 1}, *_WRITTEN),
            )
        )
    return draw.choice(
        (old + 1, old - 1, -old, 2 * old, old * 10**6, float(old), str(old), old / 2)
    )


def _damage_json(path: Path, draw: Draw) -> str:
    values = json.loads(path.read_text(encoding="utf-8"))
    holders = list(_holders(values))
    where, holder = draw.choice(holders)
    key = draw.choice(list(holder) if isinstance(holder, dict) else list(range(len(holder))))
    way = draw.choice(("set", "set", "set", "set", "remove", "rename", "exchange"))
    old = holder[key]
    if way == "remove":
        del holder[key]
    elif way == "rename" and isinstance(holder, dict):
        holder[f"{key}x"] = holder.pop(key)
    elif way == "exchange":
        _, there = draw.choice(holders)
        second = draw.choice(list(there) if isinstance(there, dict) else list(range(len(there))))
        there[second], holder[key] = copy.deepcopy(old), copy.deepcopy(there[second])
    else:
        holder[key] = _odd(draw, old)
        way = f"set to {holder[key]!r:.30}"
    text = json.dumps(values)
    for name, written in _WRITTEN.items():
        text = text.replace(json.dumps(name), written)
    path.write_text(text, encoding="utf-8")
    return f"{where}/{key}, {way}"


def _holders(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Every table and list in a value that is not empty, with its place."""
    if isinstance(value, (dict, list)) and value:
        yield where, value
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _holders(one, f"{where}/{key}")


def _damage_tensors(path: Path, draw: Draw) -> str:
    tensors = load_file(path)
    name = draw.choice(sorted(tensors))
    old = tensors[name]
    generator = torch.Generator().manual_seed(draw.randrange(2**31))
    flat = old.flatten()
    number = draw.choice((float("nan"), float("inf"), -float("inf"), 3e38, 1e30, 0.0, -1.0))
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "one number": lambda: torch.cat([flat[:1] * 0 + number, flat[1:]]).reshape(old.shape),
        "all numbers": lambda: torch.full(old.shape, number, dtype=torch.float32),
        "mixed": lambda: flat[torch.randperm(len(flat), generator=generator)].reshape(old.shape),
        "half": lambda: old.half(),
        "double": lambda: old.double(),
        "whole numbers": lambda: old.long(),
        "truths": lambda: old.bool(),
        "longer": lambda: torch.cat([old, old]),
        "shorter": lambda: old[1:],
        "flat": lambda: flat,
        "turned": lambda: old.t().contiguous() if old.dim() == 2 else flat[None],
        "a scalar": lambda: torch.zeros(()),
    }
    way = draw.choice((*ways, "gone", "one more", "renamed"))
    if way == "gone":
        del tensors[name]
    elif way == "one more":
        tensors[f"{name}x"] = old.clone()
    elif way == "renamed":
        tensors[f"{name}x"] = tensors.pop(name)
    else:
        with contextlib.suppress(RuntimeError):  # what can't be made is left as it was
            tensors[name] = ways[way]()
    save_file(tensors, path)
    return f"{name} {way}" + (f" {number}" if "number" in way else "")


# ---- what comes of it


@dataclass(frozen=True)
class Known:
    """A folder as it was: the bytes of its files, and what it answers."""

    folder: Path
    files: dict[str, bytes]
    answer: torch.Tensor
    notes: dict[str, Any]


def know(folder: Path) -> Known:
    """Looks at a folder before anything is damaged."""
    loaded = load(folder)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return Known(folder, files, _answer(loaded, loaded.model), loaded.notes)


def _answer(loaded: Checkpoint, model: Callable[..., Any]) -> torch.Tensor:
    assert loaded.words is not None
    with torch.no_grad():
        output = model(**loaded.words.pad(loaded.words.encode(TEXTS)))
    logits: torch.Tensor = getattr(output, "logits", output)
    return logits


def misfit(loaded: Checkpoint, folder: Path) -> str | None:
    """What of an accepted folder does not fit the rest, looked at from outside."""
    model = loaded.model
    for name, value in model.state_dict().items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            return f"{name} is not finite"
    plain = model.model if isinstance(model, Elastic) else model
    state = plain.state_dict()
    for name, value in load_file(folder / "model.safetensors").items():
        if name in state and not torch.equal(state[name], value.to(state[name].dtype)):
            return f"{name} is not what the file holds"
    if loaded.words is not None and loaded.classes is not None:
        answer = _answer(loaded, model)
        if answer.shape != (len(TEXTS), len(set(loaded.classes))):
            return f"{len(loaded.classes)} classes {loaded.classes}, answers {tuple(answer.shape)}"
        if not bool(torch.isfinite(answer).all()):
            return "it answers what is no number"
    if isinstance(model, Elastic):
        costs = [model.allocation(budget).cost for budget in (0.25, 0.5, 0.75, 1.0)]
        if costs != sorted(costs) or costs[-1] < 0.999:
            return f"more budget does not buy more: {costs}"
        if model.gates.order is not None:
            place = model.gates.order.argsort()
            if any(bool((place[span].diff() < 0).any()) for span in model.units.spans.values()):
                return "the order skips units"
        if loaded.words is not None:
            hard = _answer(loaded, lambda **inputs: model(**inputs, budget=0.5, form="hard"))
            if not torch.allclose(hard, _answer(loaded, model.cut(0.5)), rtol=1e-3, atol=1e-4):
                return "the hard mask and the cut model answer differently"
    if loaded.kept is not None:
        for site in find_sites(model, ("heads",)):
            if site.count != len(loaded.kept.indices(site.layer, "heads")):
                return f"layer {site.layer} has other heads than were kept"
    return _misfit_of_notes(loaded)


def _misfit_of_notes(loaded: Checkpoint) -> str | None:
    notes = loaded.notes
    for recipe in notes.get("recipes") or ():
        if not isinstance(recipe["name"], str) or type(recipe["floor"]) is not int:
            return "a recipe has no name or floor"
        if not all(0 < budget <= 1 for budget in recipe.get("budgets") or (1,)):
            return "a recipe has budgets that are none"
    for point in notes.get("measured") or ():
        if not 0 < point["budget"] <= 1 or not isinstance(point["form"], str):
            return "a measured point has no budget or form"
    columns = (notes.get("task") or {}).get("text") or ["text"]
    if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
        return "the task has columns that are none"
    return None


class _TooLong(BaseException):
    pass


@contextlib.contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Ends what takes too long; what can't be ended so ends the whole program, with a trace."""

    def ring(*_: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, ring)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(10 * seconds, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)  # of whoever runs this with a limit, too


def judge(known: Known, folder: Path, texts: Path, draw: Draw, limit: float) -> tuple[str, str]:
    """What the functions behind the commands make of a folder: one of the outcomes, and why."""
    try:
        silence = io.StringIO()
        with (
            contextlib.redirect_stdout(silence),
            contextlib.redirect_stderr(silence),
            _limit(limit),
        ):
            return _read(known, folder, texts, draw)
    except _TooLong:
        return "hang", f"more than {limit:g} s"
    except (ValueError, OSError) as error:
        said = str(error)
        if not said or "\n" in said.strip():
            return "traceback", f"not one sentence: {said[:200]!r}"
        return "refused", said
    except BaseException as error:  # what Rust panics with is none of Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        return "traceback", f"{type(error).__name__}: {error}"[:300]


def _read(known: Known, folder: Path, texts: Path, draw: Draw) -> tuple[str, str]:
    if os.path.lexists(folder / MANIFEST):
        read_manifest(folder)
    loaded = load(folder)
    found = misfit(loaded, folder)
    if found:
        return "misfit", found
    changed = [
        name
        for name, data in known.files.items()
        if not (folder / name).is_file() or (folder / name).read_bytes() != data
    ]
    if (folder / MANIFEST).is_file() and MANIFEST not in changed:
        unsigned = [name for name in changed if name != CARD]
        if unsigned:
            return "misfit", f"{unsigned[0]} was changed, and its hash was not"
    if loaded.words is None or draw.random() < 0.5:
        inspect(folder, as_json=True)
    else:
        budget = draw.choice((None, 0.5)) if isinstance(loaded.model, Elastic) else None
        predict(folder, texts, budget=budget, out=texts.with_name("out.csv"))
    is_same = loaded.notes == known.notes and torch.equal(
        _answer(loaded, loaded.model) if loaded.words else known.answer, known.answer
    )
    return ("same", "") if is_same else ("fits", "")


def command(folder: Path, texts: Path, draw: Draw, limit: float) -> tuple[str, str]:
    """What a command, run in a process of its own, makes of a folder."""
    words = ["inspect", str(folder)]
    if draw.random() < 0.5:
        words = ["predict", str(folder), str(texts)]
    said = texts.with_name("said.txt")
    child = os.fork()  # as `apportion WORDS`, but for the seconds that imports take
    if not child:
        code = 70
        try:
            silence = os.open(os.devnull, os.O_RDWR)
            os.dup2(silence, 1)
            os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
            sys.argv = ["apportion", *words]
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        except BaseException as error:
            os.write(2, f"Traceback: {error!r}".encode())
        finally:
            with contextlib.suppress(Exception):
                sys.stderr.flush()
            os._exit(code)
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.005)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return "hang", f"{words[0]}: more than {limit:g} s"
    text = said.read_text(encoding="utf-8", errors="replace").strip()
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, 1, 2) or "Traceback" in text:
        return "traceback", f"{words[0]} ended with {code}: {text[-300:]}"
    if code and (len(text.splitlines()) != 1 or not text.startswith("apportion: ")):
        return "traceback", f"{words[0]} said more than a sentence: {text[:300]!r}"
    return ("refused", text) if code else ("fits", "")


# ---- many times


@dataclass
class Tally:
    """How often each thing happened to each folder, and what should not have."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def add(self, row: str, outcome: str, problem: str) -> None:
        """One more try."""
        self.counts[row, outcome] += 1
        if outcome in BAD:
            self.problems.append(problem)

    def table(self) -> Table:
        """The counts, a row for each folder."""
        shown = Table("folder", "tries", *GOOD, *BAD)
        for column in shown.columns[1:]:
            column.justify = "right"
        rows = list(dict.fromkeys(row for row, _ in self.counts))
        for row in rows:
            numbers = [self.counts[row, outcome] for outcome in (*GOOD, *BAD)]
            shown.add_row(row, *(f"{number:,}" for number in (sum(numbers), *numbers)))
        return shown


def run(
    tries: int,
    commands: int,
    seed: int,
    start: int = 0,
    limit: float = 20.0,
    tell: Callable[[str], None] = lambda line: None,
) -> Tally:
    """Damages folders so many times, and reads them by functions and by commands."""
    tally = Tally()
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        known = [know(folder) for folder in write_folders(home / "whole").values()]
        texts = home / "texts.txt"
        texts.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
        # Our own encoder is read faster, so it is damaged more often.
        weights = [4 if one.folder.name.startswith("own") else 1 for one in known]
        told, began = time.monotonic(), time.monotonic()
        for number in range(start, start + tries + commands):
            by_command = number >= start + tries
            draw = random.Random(f"{seed} {number} {by_command}")
            (one,) = draw.choices(known, weights)
            folder = home / "damaged"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(one.folder, folder)
            what = damage(folder, draw)
            if by_command:
                outcome, why = command(folder, texts, draw, limit)
            else:
                outcome, why = judge(one, folder, texts, draw, limit)
            row = "by command" if by_command else one.folder.name
            problem = f"{number} {one.folder.name}, {what} → {outcome}: {why}"
            tally.add(row, outcome, problem)
            if outcome in BAD:
                tell(problem)
            if time.monotonic() - told > 10:
                told = time.monotonic()
                done = number - start + 1
                left = (told - began) / done * (tries + commands - done)
                bad = len(tally.problems)
                tell(f"{done:,} of {tries + commands:,}, {bad} problems, {left:.0f} s left")
    return tally


def main() -> None:
    """The command."""
    about = (__doc__ or "").split("\n\n")
    parser = argparse.ArgumentParser(
        description=about[0], epilog=about[2], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tries", type=int, default=10_000, help="by functions [10000]")
    parser.add_argument("--commands", type=int, default=300, help="by commands [300]")
    parser.add_argument("--seed", type=int, default=1, help="of what is damaged, and how [1]")
    parser.add_argument("--start", type=int, default=0, help="the number of the first try [0]")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds of a try [20]")
    how = parser.parse_args()
    torch.set_num_threads(1)
    err = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    tally = run(how.tries, how.commands, how.seed, how.start, how.limit, err.print)
    Console().print(tally.table())
    sys.exit(1 if tally.problems else 0)


if __name__ == "__main__":
    main()
