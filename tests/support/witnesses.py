"""Witnesses: which rows a model was called on, in which mode, and how far its units were open."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from apportion.data.task import SPLITS, Split, Task
from apportion.elastic.elastic import Elastic
from apportion.models.encoder import Encoder
from apportion.models.sites import find_sites


@dataclass(frozen=True)
class ToldApart:
    """A task whose rows say which split they are of: their first token is its number."""

    length: int = 8
    seed: int = 1
    train: int = 48
    validation: int = 24
    test: int = 20

    def build(self, words: None = None) -> Task:
        draw = torch.Generator().manual_seed(self.seed)
        splits = {}
        for number, name in enumerate(SPLITS):
            rows = getattr(self, name)
            ids = torch.randint(len(SPLITS), 12, (rows, self.length), generator=draw)
            ids[:, 0] = number
            labels = torch.randint(0, 2, (rows,), generator=draw)
            splits[name] = Split({"input_ids": ids}, labels)
        spec = {"kind": "told apart", **asdict(self)}
        return Task(
            "told apart", *splits.values(), ("no", "yes"), 12, self.length, spec=spec, words=words
        )

    def identity(self) -> dict[str, Any]:
        return asdict(self)

    def describe(self) -> str:
        return "rows that say which split they are of"


@dataclass(frozen=True)
class Call:
    """One call of an encoder."""

    split: str
    training: bool
    rows: int
    seed: int  # of the random numbers, as they were last set


def watch_rows(monkeypatch) -> list[Call]:
    """Every call of our encoders from now on, whatever copy, cut or view of one is called."""
    calls: list[Call] = []
    forward = Encoder.forward

    def watched(self, input_ids, attention_mask=None):
        if input_ids.shape[1] == 1:  # of no split: a checkpoint is tried on a token as it is loaded
            return forward(self, input_ids, attention_mask)
        (split,) = set(input_ids[:, 0].tolist())  # a batch is of one split
        # Where there is dropout, it is on everywhere or nowhere.
        (mode,) = {part.training for part in self.modules() if isinstance(part, nn.Dropout)}
        calls.append(Call(SPLITS[split], mode, len(input_ids), torch.initial_seed()))
        return forward(self, input_ids, attention_mask)

    monkeypatch.setattr(Encoder, "forward", watched)
    return calls


def watch_gates(elastic: Elastic) -> list[tuple[bool, torch.Tensor]]:
    """The mode and the gates of each call of a model or of a copy of it.

    Read off what its output projections are given before and after the gates. These are plain
    functions, so copies of the model share them.
    """
    seen: list[tuple[bool, torch.Tensor]] = []
    before: dict[int, torch.Tensor] = {}
    opened: dict[int, torch.Tensor] = {}
    sites = find_sites(elastic.model, elastic.kinds, elastic.block)
    for number, site in enumerate(sites):

        def given(_module, args, number=number):
            before[number] = args[0].detach().flatten(0, -2)

        def gated(module, args, _output, number=number, site=site):
            columns = args[0].detach().flatten(0, -2)
            open_by = (columns * before[number]).sum(0) / before[number].square().sum(0)
            opened[number] = open_by.view(site.count, site.width).mean(dim=1)
            if number == len(sites) - 1:
                seen.append((module.training, torch.cat([opened[n] for n in sorted(opened)])))

        part = elastic.model.get_submodule(site.output)
        part.register_forward_pre_hook(given, prepend=True)
        part.register_forward_hook(gated)
    return seen


class Clock:
    """A clock that only moves when it is told to, in place of `time.perf_counter`."""

    def __init__(self, monkeypatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("time.perf_counter", lambda: self.now)

    def spend(self, seconds: float) -> None:
        self.now += seconds


class Quiet:
    """A watcher that remembers which stages took training steps."""

    def __init__(self):
        self.trained, self.done = set(), []

    def started(self, stage, left):
        pass

    def ticked(self, stage, tick):
        if tick.loss is not None:
            self.trained.add(stage.key)

    def finished(self, stage, seconds):
        self.done.append(stage.label)

    def timing(self, stage, done, of):
        pass
