"""Transfer: what a teacher answers to texts, with or without labels, each in several views.

A teacher that knows the training rows by heart says little more about them than their labels do.
About views of them, and about texts that nobody labelled, it says what it has understood. Its
answers are computed once: every student that reads the same views can share them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn

from apportion.data.task import Split, Task
from apportion.data.tokenizer import Tokenizer
from apportion.data.views import nearest_tokens, views
from apportion.elastic.checkpoint import weights_digest
from apportion.elastic.elastic import logits_of, plain_of
from apportion.elastic.evaluation import answers_by_batch
from apportion.files import replacing
from apportion.tensor_files import read_tensors, save_tensors

_BATCH = 64
_COOLEST, _HOTTEST = 0.1, 10.0  # temperatures that are tried


@dataclass(frozen=True)
class Transfer:
    """Texts in some views: the inputs of each view, and the teacher's answers to them."""

    views: tuple[Split, ...]
    answers: tuple[Tensor, ...]  # of each view [rows, outputs]

    def __len__(self) -> int:
        return len(self.views[0])


def transfer(
    teacher: nn.Module,
    task: Task,
    *,
    count: int,
    seed: int,
    calibrated: bool = False,
    accelerator: Accelerator,
    kept: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Transfer:
    """The training rows of a task and its unlabelled ones, in so many views, with the answers.

    The answers are `kept` in a file, if there is a place for it; one that belongs to these texts
    and this teacher is taken from there. With `calibrated`, they are at the temperature that suits
    the validation rows best.
    """
    assert task.words is not None, "a recipe with views is refused for a task without words"
    texts = _all_texts(task)
    near = _neighbours(teacher, texts, task.words)
    rows = torch.arange(len(texts))
    shown = tuple(
        Split(
            views(texts, rows, words=task.words, seed=seed, number=number, neighbours=near),
            texts.labels,
            criterion=texts.criterion,
        )
        for number in range(count)
    )
    identity = _identity(teacher, shown)
    answers = _read(kept, [f"{identity}/{number}" for number in range(count)])
    if answers is None:
        answers = _ask(teacher, shown, accelerator, progress)
        if kept is not None and accelerator.is_main_process:
            tensors = {f"{identity}/{number}": answer for number, answer in enumerate(answers)}
            with replacing(kept) as part:
                save_tensors(tensors, part)
    T = fit_temperature(teacher, task.validation) if calibrated else 1.0
    return Transfer(shown, tuple(answer / T for answer in answers))


def _all_texts(task: Task) -> Split:
    """Training rows, then those without labels; no row has its label here."""
    parts = [task.train] if task.unlabelled is None else [task.train, task.unlabelled]
    return Split(
        {name: torch.cat([part.inputs[name] for part in parts]) for name in task.train.inputs},
        torch.full((sum(map(len, parts)),), -1),
        criterion=task.train.criterion,
    )


def _neighbours(model: nn.Module, texts: Split, words: Tokenizer) -> Tensor | None:
    """The words of the texts that are most like each, if the model says where it keeps them."""
    embeddings = getattr(plain_of(model), "get_input_embeddings", None)
    if embeddings is None:
        return None
    seen = torch.unique(texts.inputs["input_ids"]).long()
    special = torch.tensor((words.padding, words.unknown, *words.marks))
    return nearest_tokens(embeddings().weight.cpu(), seen[~torch.isin(seen, special)])


@torch.no_grad()
def _ask(
    teacher: nn.Module,
    shown: tuple[Split, ...],
    accelerator: Accelerator,
    progress: Callable[[int, int], None] | None,
) -> tuple[Tensor, ...]:
    """The teacher's answers to each view; several processes share the rows."""
    rank, world = accelerator.process_index, accelerator.num_processes
    every, done, answers = sum(map(len, shown)), 0, []
    for view in shown:
        assert view.lengths is not None
        mine = view.lengths.argsort(stable=True)[rank::world]
        found = []
        for rows in torch.split(mine, _BATCH):
            inputs, _ = view.batch(rows)
            moved = {name: values.to(accelerator.device) for name, values in inputs.items()}
            found.append(logits_of(teacher(**moved)).float().cpu())
            done += len(rows) * world
            if progress and accelerator.is_main_process:
                progress(min(done, every), every)
        pieces = gather_object([(mine, torch.cat(found))])
        answer = torch.empty(len(view), pieces[0][1].shape[1])
        for places, logits in pieces:
            answer[places] = logits
        answers.append(answer)
    return tuple(answers)


def _identity(teacher: nn.Module, shown: tuple[Split, ...]) -> str:
    """A hash of the teacher and of all that it is asked."""
    parts = [weights_digest(teacher), *(view.digest() for view in shown)]
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]


def _read(kept: Path | None, names: Sequence[str]) -> tuple[Tensor, ...] | None:
    """Answers that were kept, if they are those that are asked for."""
    if kept is None or not kept.exists():
        return None
    try:
        tensors = read_tensors(kept)
    except ValueError:
        return None  # half of a file: they are made again
    return tuple(map(tensors.__getitem__, names)) if tensors.keys() == set(names) else None


def fit_temperature(teacher: nn.Module, split: Split) -> float:
    """The T at which the teacher's softmax(logits / T) gives the labels of a split most likelihood.

    Training rows that are known by heart leave a teacher too sure of itself, or too shy. Where it
    gets every row right, any colder one would be likelier still: then it speaks as it does.
    """
    with torch.no_grad():
        answers = list(answers_by_batch(teacher, split, _BATCH))
    logits = torch.cat([found.float().cpu() for found, _ in answers])
    wanted = torch.cat([labels.cpu() for _, labels in answers])

    if bool((split.criterion.score(logits, wanted) == 1).all()):
        return 1.0

    def loss(log_T: float) -> float:
        return float(split.criterion.loss(logits / 2.0**log_T, wanted))

    from scipy.optimize import minimize_scalar  # slow to import

    ends = (torch.tensor([_COOLEST, _HOTTEST]).log2()).tolist()
    return float(2.0 ** minimize_scalar(loss, bounds=ends, method="bounded").x)
