from __future__ import annotations

import copy
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from rich.console import Console
from short_training import train
from torch.nn.modules.module import register_module_forward_hook

from apportion.elastic.checkpoint import weights_digest
from apportion.elastic.elastic import Elastic, plain_of
from apportion.elastic.evaluation import evaluate
from apportion.method.losses import hidden_loss
from apportion.models.activations import layer_names, remembering
from apportion.training.loop import fit
from apportion.training.progress import training_bar
from apportion.training.recipes import ADAPT, BUDGETED, DENSE, NESTED, RECOVER, Recipe, recipe
from apportion.training.schedule import draw_budgets, learning_rate_share

SHORT = {"epochs": 2, "batch_size": 32}


def same_weights(one, other) -> bool:
    return weights_digest(one) == weights_digest(other)


def start_of(chosen, task, encoder):
    """What a recipe starts from."""
    if chosen.objective == "dense":
        return encoder
    elastic = Elastic(encoder, ("heads", "feedforward"), length=task.length, block=8)
    return elastic.nested() if chosen is NESTED else Elastic(encoder, length=task.length)


@pytest.mark.parametrize("chosen", [DENSE, BUDGETED, ADAPT, NESTED], ids=lambda r: r.name)
def test_the_same_seed_gives_the_same_weights(task, encoder, chosen):
    model = start_of(chosen, task, encoder)
    short = chosen.with_changes(**SHORT)
    first, second = (fit(model, task, recipe=short, seed=3).model for _ in range(2))
    assert same_weights(first, second)
    assert not same_weights(first, fit(model, task, recipe=short, seed=4).model)


def test_fit_leaves_the_given_model_and_the_random_state_alone(task, encoder):
    before, state = weights_digest(encoder), torch.get_rng_state()
    fitted = fit(encoder, task, recipe=DENSE.with_changes(**SHORT), seed=1)
    assert weights_digest(encoder) == before
    assert not same_weights(fitted.model, encoder)
    assert torch.equal(state, torch.get_rng_state())


class StoppedError(Exception):
    pass


def stop_after(steps: int):
    def progress(tick):
        if tick.step == steps:
            raise StoppedError

    return progress


WHOLE = {}  # runs that were not stopped, by recipe: they start from the same model in every test


@pytest.mark.parametrize("steps", [1, 3, 4, 6])
@pytest.mark.parametrize("chosen", [DENSE, BUDGETED, ADAPT, NESTED], ids=lambda r: r.name)
def test_a_run_that_was_stopped_ends_with_the_weights_of_one_that_was_not(
    task, encoder, tmp_path, chosen, steps
):
    model = start_of(chosen, task, encoder)
    how = {"recipe": chosen.with_changes(**SHORT), "seed": 3}
    how["teacher"] = model if chosen is ADAPT else None
    whole = WHOLE.get(chosen.name) or fit(model, task, **how)
    WHOLE[chosen.name] = whole
    how |= {"state": tmp_path / "state", "save_every": 0.0}
    with pytest.raises(StoppedError):
        fit(model, task, **how, progress=stop_after(steps))
    resumed_at = []
    rest = fit(model, task, **how, progress=lambda tick: resumed_at.append(tick.step))
    assert resumed_at[0] == steps + 1
    assert same_weights(whole.model, rest.model)
    assert [e.accuracy for e in whole.history] == [e.accuracy for e in rest.history]


KILLED = """
import os, sys
from pathlib import Path
from short_training import train
def progress(tick):
    if tick.step == 6:
        os.kill(os.getpid(), 9)
train(state=Path(sys.argv[1]), save_every=0.0, progress=progress)
"""


@pytest.mark.slow
def test_a_run_that_was_killed_ends_with_the_weights_of_one_that_was_not(tmp_path):
    state = tmp_path / "state"
    command = [sys.executable, "-c", KILLED, str(state)]
    killed = subprocess.run(command, cwd=Path(__file__).parents[1] / "support", check=False)
    assert killed.returncode == -9
    assert state.exists()
    assert same_weights(train(state=state).model, train().model)


def test_tied_weights_are_saved_while_training_and_stay_tied(task, encoder, tmp_path):
    first, second = (layer.feedforward.up for layer in encoder.layers)
    second.weight = first.weight
    short = DENSE.with_changes(**SHORT)
    whole = fit(encoder, task, recipe=short, seed=3)
    state = tmp_path / "state"
    with pytest.raises(StoppedError):
        fit(
            encoder, task, recipe=short, seed=3, state=state, save_every=0.0, progress=stop_after(3)
        )
    rest = fit(encoder, task, recipe=short, seed=3, state=state)
    assert same_weights(whole.model, rest.model)
    first, second = (layer.feedforward.up for layer in rest.model.layers)
    assert second.weight is first.weight


def test_a_state_of_another_run_is_refused_and_a_broken_one_too(task, encoder, tmp_path):
    state = tmp_path / "state"
    short = DENSE.with_changes(**SHORT)
    with pytest.raises(StoppedError):
        fit(
            encoder, task, recipe=short, seed=3, state=state, save_every=0.0, progress=stop_after(2)
        )
    with pytest.raises(ValueError, match="belongs to another run"):
        fit(encoder, task, recipe=short, seed=4, state=state)
    state.write_bytes(state.read_bytes()[:100])
    with pytest.raises(ValueError, match="not a readable training state"):
        fit(encoder, task, recipe=short, seed=3, state=state)


def test_the_best_epoch_on_validation_is_the_one_returned(task, encoder):
    fitted = fit(encoder, task, recipe=DENSE.with_changes(epochs=6, lr=5e-3, batch_size=32), seed=5)
    best = max(fitted.history, key=lambda e: (e.accuracy, -e.objective))
    assert fitted.best == best
    assert evaluate(fitted.model, task.validation).accuracy == pytest.approx(best.accuracy)


def test_training_learns(task, encoder):
    fitted = fit(
        encoder, task, recipe=DENSE.with_changes(epochs=25, lr=5e-3, batch_size=32), seed=5
    )
    assert fitted.history[-1].train_loss < 0.5 * fitted.history[0].train_loss


def test_the_budget_loss_pulls_the_cost_down(task, encoder):
    elastic = Elastic(encoder, length=task.length)
    pressed = BUDGETED.with_changes(epochs=5, batch_size=32, lam=1.0, gate_lr=0.1)
    after = fit(elastic, task, recipe=pressed, seed=2).model
    assert float(after.cost(0.5).detach()) < 0.8 * float(elastic.cost(0.5).detach())


def test_gates_have_a_learning_rate_of_their_own(task, encoder):
    elastic = Elastic(encoder, length=task.length)
    frozen = fit(elastic, task, recipe=BUDGETED.with_changes(**SHORT, gate_lr=0.0), seed=2).model
    assert torch.equal(frozen.gates.a, elastic.gates.a)
    slow, fast = (
        fit(
            elastic, task, recipe=BUDGETED.with_changes(**SHORT, gate_lr=lr), seed=2
        ).model.gates.a.abs()
        for lr in (1e-4, 1e-1)
    )
    assert fast.mean() > 100 * slow.mean()


def test_a_teacher_pulls_the_student_towards_it(task, encoder):
    teacher = fit(
        encoder, task, recipe=DENSE.with_changes(epochs=8, lr=5e-3, batch_size=32), seed=1
    ).model
    ids = task.train.inputs["input_ids"]

    def distance(alpha):
        taught = RECOVER.with_changes(epochs=4, lr=3e-3, batch_size=32, alpha=alpha)
        student = fit(encoder, task, recipe=taught, seed=1, teacher=teacher).model
        return float((student(ids).softmax(-1) - teacher(ids).softmax(-1)).abs().mean().detach())

    assert distance(alpha=1.0) < distance(alpha=0.0)


@pytest.mark.parametrize("chosen", [NESTED, RECOVER], ids=["views", "whole"])
def test_hidden_states_pull_the_layers_towards_those_of_the_teacher(task, encoder, chosen):
    teacher = fit(
        encoder, task, recipe=DENSE.with_changes(epochs=4, lr=5e-3, batch_size=32), seed=1
    ).model
    start = start_of(chosen, task, encoder)
    ids = task.train.inputs["input_ids"]

    def distance(hidden):
        taught = chosen.with_changes(epochs=2, lr=3e-3, batch_size=32, hidden=hidden)
        student = plain_of(fit(start, task, recipe=taught, seed=1, teacher=teacher).model)
        states = []
        for model in (student, teacher):
            with torch.no_grad(), remembering(model, layer_names(model)) as seen:
                model(ids)
            states.append(list(seen.values()))
        return float(hidden_loss(*states))

    assert distance(10.0) < distance(0.0)


def test_a_nested_model_learns_at_all_budgets_and_keeps_its_order(task, encoder):
    start = start_of(NESTED, task, encoder)
    long = NESTED.with_changes(epochs=12, batch_size=16, lr=5e-3)
    fitted = fit(start, task, recipe=long, seed=5, teacher=encoder).model
    assert fitted.gates.order.tolist() == start.gates.order.tolist()
    for budget in (0.25, 1.0):
        before, after = (
            evaluate(m, task.train, budget=budget, form="cut").loss for m in (start, fitted)
        )
        assert after < before, budget
    with pytest.raises(ValueError, match="needs one order for all budgets"):
        fit(Elastic(encoder, length=task.length), task, recipe=NESTED, seed=5)


def test_a_nested_step_takes_both_ends_and_some_budgets_between():
    budgets = draw_budgets(NESTED.with_changes(samples=3), seed=1, step=4)
    assert budgets[:2] == [1.0, 0.125] and len(budgets) == 5
    assert all(0.125 <= budget <= 1.0 for budget in budgets)
    assert len(draw_budgets(BUDGETED, 1, 4)) == 1


def test_a_recipe_fits_only_its_kind_of_model(task, encoder):
    with pytest.raises(ValueError, match="wrap the model"):
        fit(encoder, task, recipe=BUDGETED, seed=1)
    with pytest.raises(ValueError, match="plain"):
        fit(Elastic(encoder), task, recipe=DENSE, seed=1)


def test_a_diverged_run_says_so(task, encoder):
    with pytest.raises(ValueError, match="a learning rate below"):
        fit(encoder, task, recipe=DENSE.with_changes(**SHORT, lr=1e30, warmup=0.0), seed=1)


def test_a_bar_shows_loss_cost_accuracy_and_time_left(task, encoder):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=140)
    with training_bar(console) as bar:
        fit(encoder, task, recipe=DENSE.with_changes(**SHORT), seed=1, progress=bar)
    shown = screen.getvalue()
    for part in ("dense", "epoch 2/2", "loss", "cost", "accuracy", "left"):
        assert part in shown


@pytest.mark.parametrize("chosen", [BUDGETED, ADAPT, NESTED], ids=lambda r: r.name)
def test_the_cost_that_is_shown_is_the_one_of_what_is_trained(task, encoder, chosen):
    """Gates stay as they are: at budgets of 1/4 a hard mask costs 1/4, and soft gates more."""
    start = start_of(chosen, task, encoder)
    quarter = {"budgets": (0.25, 0.25), "gate_lr": 0.0, "floor": 0}
    shown = []
    fit(
        start,
        task,
        recipe=chosen.with_changes(**SHORT, **quarter),
        seed=1,
        progress=lambda tick: shown.append(tick.cost),
    )
    soft = chosen is BUDGETED
    paid = float(start.cost(0.25).detach()) if soft else start.allocation(0.25).cost
    assert shown == pytest.approx([paid] * len(shown))


def test_budgets_are_drawn_from_their_range():
    drawn = [draw_budgets(BUDGETED, 1, step)[0] for step in range(400)]
    assert 0.25 <= min(drawn) < 0.3
    assert 0.95 < max(drawn) <= 1.0
    fixed = BUDGETED.with_changes(budgets=(0.5, 0.5))
    assert draw_budgets(fixed, 1, 7) == [0.5]


def test_the_learning_rate_rises_and_falls():
    shares = [learning_rate_share(DENSE, step, 100) for step in range(100)]
    assert shares[0] == pytest.approx(0.2)
    assert max(shares) == 1.0
    assert shares.index(1.0) == 4
    assert shares[-1] == pytest.approx(1 / 95)


def test_the_papers_numbers_are_the_defaults():
    assert (BUDGETED.lam, BUDGETED.beta, BUDGETED.budgets) == (0.02, 2.0, (0.25, 1.0))
    assert (ADAPT.alpha, ADAPT.T, ADAPT.epochs, ADAPT.lr) == (0.5, 2.0, 1, 3e-4)


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("dens", {}, "unknown recipe 'dens'; known: dense, budgeted"),
        ("dense", {"epoch": 3}, "has no epoch"),
        ("dense", {"epochs": 0}, "epochs must be at least 1"),
        ("budgeted", {"budgets": (0.0, 1.0)}, "in \\(0, 1\\]"),
        ("budgeted", {"budgets": (0.9, 0.5)}, "from low to high"),
        ("budgeted", {"lam": -1.0}, "lam must not be negative"),
        ("adapt", {"alpha": 2.0}, "alpha must be in"),
        ("adapt", {"objective": "hard"}, "objective must be"),
        ("nested", {"noisy_teacher": True}, "needs word_dropout"),
    ],
)
def test_bad_recipes_are_refused(name, changes, says):
    with pytest.raises(ValueError, match=says):
        recipe(name, **changes)


def test_a_recipe_survives_json():
    assert Recipe.from_dict(json.loads(json.dumps(BUDGETED.to_dict()))) == BUDGETED


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["budgeted", "nested"])
def test_the_same_call_runs_on_two_processes(tmp_path, kind):
    """Two processes share each batch, so they end where one process ends, to float precision."""
    script = Path(__file__).parents[1] / "support" / "short_training.py"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [*launch, str(script), str(tmp_path), kind]
    for _ in range(3):  # the port that the launcher found free may be taken a moment later
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
    assert done.returncode == 0, done.stderr
    facts = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [f["processes"] for f in facts] == [2, 2]
    assert facts[0]["weights"] == facts[1]["weights"]
    alone = train(kind)
    assert alone.processes == 1
    assert torch.allclose(torch.tensor(facts[0]["gates"]), alone.model.gates.a, atol=1e-4)
    readout = alone.model.model.classifier.weight
    assert torch.allclose(torch.tensor(facts[0]["readout"]), readout, atol=1e-4)


@pytest.fixture
def bfloat16(monkeypatch):
    """Accelerate is launched with mixed precision; it keeps what it was launched with."""
    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


EACH_RECIPE = pytest.mark.parametrize(
    "chosen", [DENSE, BUDGETED, ADAPT, NESTED], ids=lambda r: r.name
)


@EACH_RECIPE
def test_mixed_precision_is_of_the_training_and_not_of_the_model(task, encoder, chosen, bfloat16):
    start = start_of(chosen, task, encoder)
    trained_in = set()
    hook = register_module_forward_hook(
        lambda module, _given, made: (
            trained_in.add(made.dtype) if isinstance(module, torch.nn.Linear) else None
        )
    )
    try:
        fitted = fit(start, task, recipe=chosen.with_changes(**SHORT), seed=3).model
    finally:
        hook.remove()
    assert torch.bfloat16 in trained_in
    ids = task.test.inputs["input_ids"]
    with torch.no_grad():
        fresh = copy.deepcopy(start)
        fresh.load_state_dict(fitted.state_dict())
        assert torch.equal(fitted(ids), fresh.eval()(ids))
        if isinstance(fitted, Elastic):
            hard = fitted(ids, budget=0.5, form="hard")
            assert torch.allclose(hard, fitted.cut(0.5).eval()(ids), atol=1e-5)


@EACH_RECIPE
def test_what_is_trained_is_a_plain_model_that_can_be_trained_again(task, encoder, chosen):
    """No mark of Accelerate's is left on it, or the next training would not be prepared."""
    start = start_of(chosen, task, encoder)
    fitted = fit(start, task, recipe=chosen.with_changes(**SHORT), seed=3).model
    assert vars(fitted).keys() == vars(start).keys()


def test_adaptation_and_recovery_have_the_papers_numbers():
    adapt, recover = recipe("adapt"), recipe("recover")
    assert (adapt.epochs, adapt.lr, adapt.alpha, adapt.T) == (1, 3e-4, 0.5, 2.0)
    assert (recover.epochs, recover.lr, recover.alpha, recover.T) == (1, 2e-5, 0.5, 2.0)
