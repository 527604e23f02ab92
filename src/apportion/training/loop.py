"""fit: the one training loop, on Accelerate."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn

from apportion.data.task import Task
from apportion.elastic.elastic import Elastic, plain_of
from apportion.elastic.evaluation import sum_scores
from apportion.training.allocator import keep_freed_memory
from apportion.training.averaging import Average, copy_weights
from apportion.training.objectives import OBJECTIVES, Batch, Teacher, copy_for, step_losses
from apportion.training.progress import Tick, telling
from apportion.training.recipes import Recipe
from apportion.training.resume import TrainingState, load_state, run_identity, save_state
from apportion.training.schedule import (
    draw_budgets,
    drop_words,
    learning_rate_share,
    noise_seed,
    parameter_groups,
    row_order,
)
from apportion.training.transfer import Transfer, transfer


@dataclass(frozen=True)
class Epoch:
    """What was seen at the end of an epoch, on the validation split."""

    epoch: int
    train_loss: float
    accuracy: float
    objective: float
    seconds: float


@dataclass(frozen=True)
class Fitted:
    """The model of the best epoch, and how it came about."""

    model: nn.Module
    recipe: Recipe
    seed: int
    best: Epoch
    history: tuple[Epoch, ...]
    seconds: float
    processes: int


def fit(
    model: nn.Module,
    task: Task,
    *,
    recipe: Recipe,
    seed: int,
    teacher: nn.Module | None = None,
    state: Path | None = None,
    answers: Path | None = None,
    save_every: float = 30.0,
    progress: Callable[[Tick], None] | None = None,
) -> Fitted:
    """A new model, trained by the recipe; the given one is left alone.

    The epoch that is best on validation is kept: the highest accuracy averaged over the recipe's
    budgets, ties to the lower objective; of a recipe with an average, the last one. With a `state`
    file, training is saved there every `save_every` seconds or less often, and goes on from it. A
    recipe with views asks its teacher beforehand; `answers` is a file to keep what it says.
    """
    _check(model, task, recipe, teacher)
    keep_freed_memory()
    run = _Run(model, task, recipe, seed, teacher, state, answers, save_every, progress)
    with torch.random.fork_rng():
        return run.train()


class _Run:
    """One call of `fit`: what its steps share."""

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        recipe: Recipe,
        seed: int,
        teacher: nn.Module | None,
        state: Path | None,
        answers: Path | None,
        save_every: float,
        progress: Callable[[Tick], None] | None,
    ) -> None:
        self.given, self.recipe, self.task, self.seed = model, recipe, task, seed
        self.state_path, self.save_every, self.progress = state, save_every, progress
        # `cpu` is what makes several processes on processors talk to each other.
        self.accelerator = Accelerator(cpu=not torch.accelerator.is_available())
        self.identity = run_identity(model, task, recipe, seed, teacher)
        student = copy_for(model, recipe)
        optimizer = torch.optim.AdamW(parameter_groups(student, recipe), fused=True)
        self.base_lrs = [group["lr"] for group in optimizer.param_groups]
        self.student: nn.Module
        self.optimizer: torch.optim.Optimizer
        # Accelerate sums gradients of models that are called; a nested one is called by its views.
        self.sums_gradients = recipe.form == "nested" and self.accelerator.num_processes > 1
        if self.sums_gradients:
            self.student = student.to(self.accelerator.device)
            self.optimizer = self.accelerator.prepare(optimizer)
        else:
            self.student, self.optimizer = self.accelerator.prepare(student, optimizer)
        self.objective = OBJECTIVES[recipe.objective](self.student, recipe, self.accelerator)
        self.model = self.objective.model  # without what Accelerate wraps it in
        self.teacher = None
        if teacher is not None:
            copied = copy.deepcopy(teacher).to(self.accelerator.device)
            self.teacher = Teacher(copied, recipe.lowest)
        self.transfer = self._ask_teacher(answers) if recipe.views else None
        rows = len(self.transfer or task.train)
        self.steps_per_epoch = math.ceil(rows / recipe.batch_size)
        self.steps = self.steps_per_epoch * recipe.epochs
        self.step = 0
        self.history: list[Epoch] = []
        self.best: Epoch | None = None
        self.best_weights: dict[str, Tensor] = {}
        self.average = Average(self.model, recipe.average)
        self.epoch_loss = 0.0
        self.seconds = 0.0

    def train(self) -> Fitted:
        self._resume()
        started = saved = time.monotonic()
        before, pause = self.seconds, self.save_every
        while self.step < self.steps:
            epoch, inside = divmod(self.step, self.steps_per_epoch)
            if inside == 0:
                self.epoch_loss = 0.0
            loss, cost = self._one_step(epoch, inside)
            self.epoch_loss += loss
            self.step += 1
            self.seconds = before + time.monotonic() - started
            if self.step % self.steps_per_epoch == 0:
                self._end_epoch(epoch)
            if self.state_path and (begun := time.monotonic()) - saved >= pause:
                self._save()
                saved = time.monotonic()
                # A slow disk is asked less often: saving takes a twentieth of the time at most.
                pause = self.save_every and max(self.save_every, 20 * (saved - begun))
            if self.progress and self.accelerator.is_main_process:
                self.progress(self._tick(epoch, loss, cost))
        assert self.best is not None
        # A copy of the given one: what was trained keeps what Accelerate wrapped it in.
        model = copy_for(self.given, self.recipe)
        model.load_state_dict(self.best_weights)
        return Fitted(
            model.cpu().eval(),
            self.recipe,
            self.seed,
            self.best,
            tuple(self.history),
            before + time.monotonic() - started,
            self.accelerator.num_processes,
        )

    def _tick(self, epoch: int, loss: float, cost: float) -> Tick:
        return Tick(
            self.recipe.name,
            step=self.step,
            steps=self.steps,
            epoch=epoch + 1,
            epochs=self.recipe.epochs,
            loss=loss,
            cost=cost,
            accuracy=self.history[-1].accuracy if self.history else None,
        )

    def _one_step(self, epoch: int, inside: int) -> tuple[float, float]:
        """Takes one step; returns its loss, and the cost averaged over its budgets."""
        recipe = self.recipe
        torch.manual_seed(noise_seed(self.seed, self.step, self.accelerator.process_index))
        budgets = draw_budgets(recipe, self.seed, self.step)
        self.objective.draw(self.seed, self.step)
        batch, weight = self._batch(epoch, inside)
        for group, lr in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = lr * learning_rate_share(recipe, self.step, self.steps)
        self.student.train(recipe.dropout)
        self.optimizer.zero_grad()
        value, costs = 0.0, 0.0
        criterion = self.task.train.criterion
        losses = step_losses(self.objective, self.teacher, batch, budgets, criterion)
        for budget, loss in zip(budgets, losses, strict=True):
            paid, cost = self.objective.payment(budget)
            loss = loss * (weight / len(budgets)) + paid
            costs += cost
            value += self._finite(float(loss.detach()))
            self.accelerator.backward(loss)
        if self.sums_gradients:
            self._sum_gradients()
        self.accelerator.clip_grad_norm_(self.student.parameters(), recipe.clip)
        self.optimizer.step()
        self.average.follow(self.step)
        return value, costs / len(budgets)

    def _sum_gradients(self) -> None:
        """The mean of all processes' gradients: every process has those of the same weights."""
        own = [p.grad for p in self.student.parameters() if p.grad is not None]
        flat = self.accelerator.reduce(torch.cat([one.flatten() for one in own]), "mean")
        for gradient, mean in zip(own, flat.split([one.numel() for one in own]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def _ask_teacher(self, answers: Path | None) -> Transfer:
        """Views of the texts with the teacher's answers."""
        assert self.teacher is not None
        return transfer(
            self.teacher.model,
            self.task,
            count=self.recipe.views,
            seed=self.task.spec.get("seed", self.seed),
            calibrated=self.recipe.calibrated,
            accelerator=self.accelerator,
            kept=answers,
            progress=partial(telling(self.progress), "teacher"),
        )

    def _finite(self, loss: float) -> float:
        if not math.isfinite(loss):
            raise ValueError(
                f"the loss is {loss} at step {self.step} of recipe {self.recipe.name!r}; "
                f"a learning rate below {self.recipe.lr:g} may help"
            )
        return loss

    def _batch(self, epoch: int, inside: int) -> tuple[Batch, float]:
        """This process's rows of the step's batch, and their weight among all processes."""
        recipe, words = self.recipe, self.task.words
        view = epoch % max(1, recipe.views)
        split = self.transfer.views[view] if self.transfer else self.task.train
        size = recipe.batch_size
        order = row_order(self.seed, epoch, len(split), split.lengths, size)
        rows = order[inside * size :][:size]
        world = self.accelerator.num_processes
        mine = rows[self.accelerator.process_index :: world]
        # Processes are averaged as equals, so a smaller share has to count for less.
        weight = len(mine) * world / len(rows)
        mine = mine if len(mine) else rows[:1]
        inputs, labels = split.batch(mine)
        device = self.accelerator.device
        noisy = inputs = {name: values.to(device) for name, values in inputs.items()}
        if self.transfer:
            answers = self.transfer.answers[view][mine].to(device)
            return Batch(inputs, inputs, labels.to(device), answers), weight
        if recipe.word_dropout and words:
            noisy = drop_words(inputs, recipe.word_dropout, words.unknown, words.marks)
        taught = noisy if recipe.noisy_teacher else inputs
        return Batch(taught, noisy, labels.to(device)), weight

    def _end_epoch(self, epoch: int) -> None:
        with self.average.in_place():
            accuracy, objective = self._validate()
            weights = copy_weights(self.model)
        done = Epoch(
            epoch + 1, self.epoch_loss / self.steps_per_epoch, accuracy, objective, self.seconds
        )
        self.history.append(done)
        best = self.best
        better = best is None or (accuracy, -objective) > (best.accuracy, -best.objective)
        if better or self.recipe.average:
            self.best, self.best_weights = done, weights

    def _validate(self) -> tuple[float, float]:
        """Accuracy and objective on validation, averaged over the recipe's budgets."""
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        mine = torch.arange(rank, len(self.task.validation), world)
        part = self.task.validation.take(mine)
        calls, penalty = self.objective.validation()
        # As Python's numbers, of all processes: not every device has float64.
        sums = gather_object([sum_scores(model, part, **options) for model, options in calls])
        summed = torch.tensor(sums, dtype=torch.float64).view(world, -1, 2).sum(dim=0)
        scores, losses = (summed / len(self.task.validation)).unbind(dim=1)
        return float(scores.mean()), float(losses.mean()) + penalty

    def _save(self) -> None:
        if not self.accelerator.is_main_process:
            return
        assert self.state_path is not None
        notes = {
            "identity": self.identity,
            "step": self.step,
            "history": [asdict(epoch) for epoch in self.history],
            "best": self.best and asdict(self.best),
            "epoch_loss": self.epoch_loss,
            "seconds": self.seconds,
        }
        weights = self.model.state_dict()
        moments = self.optimizer.state_dict()["state"]
        state = TrainingState(weights, self.best_weights, moments, notes, self.average.weights)
        save_state(self.state_path, state)

    def _resume(self) -> None:
        if self.state_path is None or not self.state_path.exists():
            return
        saved = load_state(self.state_path)
        if saved.notes["identity"] != self.identity:
            raise ValueError(
                f"{self.state_path} belongs to another run (other weights, data, recipe or seed); "
                "remove it or choose another folder"
            )
        self.model.load_state_dict(saved.weights)
        now = self.optimizer.state_dict()
        self.optimizer.load_state_dict({**now, "state": saved.moments})
        self.best_weights = saved.best
        self.average.go_on_from(saved.average)
        notes = saved.notes
        self.step = notes["step"]
        self.history = [Epoch(**epoch) for epoch in notes["history"]]
        self.best = Epoch(**notes["best"]) if notes["best"] else None
        self.epoch_loss = notes["epoch_loss"]
        self.seconds = notes["seconds"]


def _check(model: nn.Module, task: Task, recipe: Recipe, teacher: nn.Module | None) -> None:
    """Refuses what does not go together, before the first step."""
    task.train.criterion.check(plain_of(model))
    if recipe.word_dropout and task.words is None:
        raise ValueError(f"recipe {recipe.name!r} drops words, and task {task.name!r} has none")
    elastic = isinstance(model, Elastic)
    if elastic and recipe.form is None:
        raise ValueError(f"recipe {recipe.name!r} trains a plain model; give it `elastic.plain()`")
    if recipe.form is not None and not elastic:
        raise ValueError(f"recipe {recipe.name!r} trains gates; wrap the model: `Elastic(model)`")
    if recipe.views and (teacher is None or isinstance(teacher, Elastic) or task.words is None):
        raise ValueError(f"recipe {recipe.name!r} has views: texts, and a plain teacher to ask")
    if recipe.hidden and teacher is None:
        raise ValueError(f"recipe {recipe.name!r} has hidden, and there is no teacher")
