"""fit: the one training loop, on Accelerate."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import convert_outputs_to_fp32, gather_object
from torch import Tensor, nn

from apportion.data.task import Task
from apportion.elastic.elastic import Elastic
from apportion.elastic.evaluation import count_correct
from apportion.method.losses import budget_loss
from apportion.method.units import check_budget
from apportion.training.allocator import keep_freed_memory
from apportion.training.objectives import Batch, paid_loss, step_losses
from apportion.training.prefixes import Views
from apportion.training.progress import Tick
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
    save_every: float = 30.0,
    progress: Callable[[Tick], None] | None = None,
) -> Fitted:
    """A new model, trained by the recipe; the given one is left alone.

    The epoch that is best on validation is kept: the highest accuracy averaged over the recipe's
    budgets, ties to the lower objective. With a `state` file, training is saved there every
    `save_every` seconds, and goes on from it if it exists.
    """
    _check(model, task, recipe)
    if isinstance(teacher, Elastic):
        check_budget(recipe.lowest, teacher.lowest)  # and not at some step
    if recipe.hidden and teacher is None:
        raise ValueError(f"recipe {recipe.name!r} has hidden, and there is no teacher")
    keep_freed_memory()
    run = _Run(model, task, recipe, seed, teacher, state, save_every, progress)
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
        save_every: float,
        progress: Callable[[Tick], None] | None,
    ) -> None:
        self.given, self.recipe, self.task, self.seed = model, recipe, task, seed
        self.state_path, self.save_every, self.progress = state, save_every, progress
        # `cpu` is what makes several processes on processors talk to each other.
        self.accelerator = Accelerator(cpu=not torch.accelerator.is_available())
        self.identity = run_identity(model, task, recipe, seed, teacher)
        student = _copy_for(model, recipe)
        optimizer = torch.optim.AdamW(parameter_groups(student, recipe), fused=True)
        self.base_lrs = [group["lr"] for group in optimizer.param_groups]
        self.student: nn.Module
        self.optimizer: torch.optim.Optimizer
        self.student, self.optimizer = self.accelerator.prepare(student, optimizer)
        self.views: Views | None = None
        if recipe.objective == "nested" and isinstance(student, Elastic):
            if self.accelerator.num_processes > 1:
                raise ValueError(f"recipe {recipe.name!r} trains through views, on one process")
            self.views = Views(student, self._in_mixed_precision)
        self.teacher = None
        if teacher is not None:
            self.teacher = copy.deepcopy(teacher).to(self.accelerator.device).eval()
        self.steps_per_epoch = math.ceil(len(task.train) / recipe.batch_size)
        self.steps = self.steps_per_epoch * recipe.epochs
        self.step = 0
        self.history: list[Epoch] = []
        self.best: Epoch | None = None
        self.best_weights: dict[str, Tensor] = {}
        self.epoch_loss = 0.0
        self.seconds = 0.0

    def train(self) -> Fitted:
        self._resume()
        started = saved = time.monotonic()
        before = self.seconds
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
            if self.state_path and time.monotonic() - saved >= self.save_every:
                self._save()
                saved = time.monotonic()
            if self.progress and self.accelerator.is_main_process:
                accuracy = self.history[-1].accuracy if self.history else None
                where = (self.recipe.name, self.step, self.steps)
                shown = Tick(*where, epoch + 1, self.recipe.epochs, loss, cost, accuracy)
                self.progress(shown)
        assert self.best is not None
        # A copy of the given one: what was trained keeps what Accelerate wrapped it in.
        model = _copy_for(self.given, self.recipe)
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

    def _one_step(self, epoch: int, inside: int) -> tuple[float, float]:
        recipe = self.recipe
        torch.manual_seed(noise_seed(self.seed, self.step, self.accelerator.process_index))
        budgets = draw_budgets(recipe, self.seed, self.step, self.steps)
        inputs, labels, weight = self._batch(epoch, inside)
        noisy, words = inputs, self.task.words
        if recipe.word_dropout and words:
            noisy = drop_words(inputs, recipe.word_dropout, words.unknown, words.marks)
        for group, lr in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = lr * learning_rate_share(recipe, self.step, self.steps)
        self.student.train()
        model = self._unwrapped()
        self.optimizer.zero_grad()
        value, costs = 0.0, []
        batch = Batch(noisy if recipe.noisy_teacher else inputs, noisy, labels)
        losses = step_losses(self.student, self.teacher, batch, recipe, budgets, self.views)
        for budget, loss in zip(budgets, losses, strict=True):
            loss = loss * (weight / len(budgets))
            if isinstance(model, Elastic):
                paid, cost = paid_loss(model, budget, recipe)
                loss = loss + paid
                costs.append(cost)
            value += self._finite(float(loss.detach()))
            self.accelerator.backward(loss)
        self.accelerator.clip_grad_norm_(self.student.parameters(), recipe.clip)
        self.optimizer.step()
        return value, sum(costs) / len(costs) if costs else 1.0

    def _finite(self, loss: float) -> float:
        if not math.isfinite(loss):
            raise ValueError(
                f"the loss is {loss} at step {self.step} of recipe {self.recipe.name!r}; "
                f"a learning rate below {self.recipe.lr:g} may help"
            )
        return loss

    def _batch(self, epoch: int, inside: int) -> tuple[dict[str, Tensor], Tensor, float]:
        """This process's rows of the step's batch, and their weight among all processes."""
        size = self.recipe.batch_size
        split = self.task.train
        order = row_order(self.seed, epoch, len(split), split.lengths, size)
        rows = order[inside * size :][:size]
        world = self.accelerator.num_processes
        mine = rows[self.accelerator.process_index :: world]
        # Processes are averaged as equals, so a smaller share has to count for less.
        weight = len(mine) * world / len(rows)
        inputs, labels = split.batch(mine if len(mine) else rows[:1])
        device = self.accelerator.device
        inputs = {name: values.to(device) for name, values in inputs.items()}
        return inputs, labels.to(device), weight

    def _end_epoch(self, epoch: int) -> None:
        accuracy, objective = self._validate()
        done = Epoch(
            epoch + 1, self.epoch_loss / self.steps_per_epoch, accuracy, objective, self.seconds
        )
        self.history.append(done)
        best = self.best
        if best is None or (accuracy, -objective) > (best.accuracy, -best.objective):
            self.best = done
            self.best_weights = _copy_weights(self._unwrapped())

    def _validate(self) -> tuple[float, float]:
        """Accuracy and objective on validation, averaged over the recipe's budgets."""
        model, recipe = self._unwrapped(), self.recipe
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        mine = torch.arange(rank, len(self.task.validation), world)
        part = self.task.validation.take(mine)
        calls: list[tuple[nn.Module, dict[str, Any]]] = [(model, {})]
        penalty = 0.0
        if isinstance(model, Elastic) and recipe.objective == "nested":
            # The hard mask's numbers, in a budget's share of the time.
            calls = [(model.cut(budget, recipe.floor), {}) for budget in recipe.select_at]
        elif isinstance(model, Elastic):
            mode = "soft" if recipe.objective == "soft" else "hard"
            options = {"mode": mode, "floor": recipe.floor}
            calls = [(model, {"budget": budget, **options}) for budget in recipe.select_at]
            if mode == "soft":
                budgets = torch.tensor(recipe.select_at, device=self.accelerator.device)
                with torch.no_grad():
                    costs = model.cost(budgets)
                penalty = float(budget_loss(costs, budgets, recipe.lam, recipe.beta))
        # As Python's numbers, of all processes: not every device has float64.
        counts = gather_object([count_correct(called, part, **given) for called, given in calls])
        summed = torch.tensor(counts, dtype=torch.float64).view(world, -1, 2).sum(dim=0)
        correct, losses = (summed / len(self.task.validation)).unbind(dim=1)
        return float(correct.mean()), float(losses.mean()) + penalty

    def _in_mixed_precision(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A call as Accelerate would make it of a model that it prepared; views are none."""
        if not self.accelerator.native_amp:
            return call
        wrapped: Callable[..., Any] = convert_outputs_to_fp32(self.accelerator.autocast()(call))
        return wrapped

    def _unwrapped(self) -> nn.Module:
        model: nn.Module = self.accelerator.unwrap_model(self.student)
        return model

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
        weights = self._unwrapped().state_dict()
        moments = self.optimizer.state_dict()["state"]
        save_state(self.state_path, TrainingState(weights, self.best_weights, moments, notes))

    def _resume(self) -> None:
        if self.state_path is None or not self.state_path.exists():
            return
        saved = load_state(self.state_path)
        if saved.notes["identity"] != self.identity:
            raise ValueError(
                f"{self.state_path} belongs to another run (other weights, data, recipe or seed); "
                "remove it or choose another folder"
            )
        self._unwrapped().load_state_dict(saved.weights)
        now = self.optimizer.state_dict()
        self.optimizer.load_state_dict({**now, "state": saved.moments})
        self.best_weights = saved.best
        notes = saved.notes
        self.step = notes["step"]
        self.history = [Epoch(**epoch) for epoch in notes["history"]]
        self.best = Epoch(**notes["best"]) if notes["best"] else None
        self.epoch_loss = notes["epoch_loss"]
        self.seconds = notes["seconds"]


def _check(model: nn.Module, task: Task, recipe: Recipe) -> None:
    elastic = isinstance(model, Elastic)
    if recipe.word_dropout and task.words is None:
        raise ValueError(f"recipe {recipe.name!r} drops words, and task {task.name!r} has none")
    if recipe.objective == "dense" and elastic:
        raise ValueError(f"recipe {recipe.name!r} trains a plain model; give it `elastic.plain()`")
    if recipe.objective != "dense" and not elastic:
        raise ValueError(f"recipe {recipe.name!r} trains gates; wrap the model: `Elastic(model)`")


def _copy_for(model: nn.Module, recipe: Recipe) -> nn.Module:
    """A copy of a model that is asked as the recipe trains it."""
    copied = copy.deepcopy(model)
    if isinstance(copied, Elastic):
        copied.made_for(recipe.form, recipe.floor, lowest=recipe.lowest)
    return copied


def _copy_weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
