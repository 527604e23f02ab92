"""Repairing what a budget switches off, in closed form."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers import BertConfig, BertForSequenceClassification

from apportion.data.stand_ins import write_docstrings
from apportion.data.task import Split
from apportion.data.text import Text
from apportion.elastic import repairing
from apportion.elastic.elastic import Elastic
from apportion.elastic.evaluation import evaluate
from apportion.elastic.repairing import AGREEMENT, VERSION_1, repair
from apportion.elastic.scoring import nest, random, squared_gradient, uniform
from apportion.method.units import Allocation
from apportion.models.activations import layer_names, recalling, remembering, run_up_to
from apportion.models.hub import load_model, load_tokenizer
from apportion.models.sites import find_sites
from apportion.models.surgery import cut
from apportion.training.loop import fit
from apportion.training.recipes import recipe

ALL = ("heads", "feedforward")


def nested_of(model, length=12, block=16, even=True):
    """In a random order: the same share of every layer, or one in which sites lose all units."""
    elastic = Elastic(model, ALL, length=length, block=block)

    def score(fine):
        scored = random(fine.units, seed=3)
        return uniform(scored, fine.units) if even else scored

    return nest(elastic, score)[0]


def outputs_of(model, name, split):
    """What a site returns for all rows, one row a token."""
    output = model.get_submodule(name)
    if not output.in_features:
        return output.bias.detach()
    with torch.no_grad():
        found = [run_up_to(model, name, inputs)[1].flatten(0, 1) for inputs, _ in split.batches(32)]
    return torch.cat(found)


@pytest.mark.parametrize("even", [True, False])
def test_what_stays_comes_nearer_to_the_whole_model(encoder, task, even):
    nested = nested_of(encoder, even=even)
    repaired, facts = repair(nested, task.train, **{**VERSION_1, "rows": 64})
    assert facts["repair_rows"] == 64
    whole = nested.plain()
    for site in find_sites(whole, ALL, block=1):
        wanted = outputs_of(whole, site.output, task.train)
        errors = {"before": 0.0, "after": 0.0}
        for budget in (0.25, 0.5, 0.75):
            for name, model in (("before", nested), ("after", repaired)):
                smaller = cut(model.plain(), model.allocation(budget)).eval()
                found = outputs_of(smaller, site.output, task.train)
                errors[name] += float((found - wanted).square().mean())
        assert errors["after"] < errors["before"]


def test_one_site_at_one_budget_is_ordinary_least_squares(encoder, task):
    """The first site sees the same inputs at every budget, so the solution can be looked up."""
    nested = nested_of(encoder)
    settings = {**VERSION_1, "budgets": (0.75,), "rows": len(task.train)}
    repaired, _ = repair(nested, task.train, **settings)
    site = find_sites(nested.model, ALL, block=1)[0]
    whole = nested.plain()
    smaller = cut(whole, nested.allocation(0.75)).eval()
    ids = task.train.inputs["input_ids"]
    with torch.no_grad():
        given, _ = run_up_to(smaller, site.output, {"input_ids": ids})
        _, wanted = run_up_to(whole, site.output, {"input_ids": ids})
    given, wanted = given.flatten(0, 1).double(), wanted.flatten(0, 1).double()
    ones = torch.ones(len(given), 1, dtype=torch.float64)
    best = torch.linalg.lstsq(torch.cat([given, ones], dim=1), wanted).solution
    output = repaired.model.get_submodule(site.output)
    kept = given.shape[1]
    weight, bias = output.weight.detach().double(), output.bias.detach().double()
    found = given @ weight[:, :kept].T + bias
    exact = torch.cat([given, ones], dim=1) @ best
    error, least = (float((w - wanted).square().mean()) for w in (found, exact))
    bias_alone = float((wanted - wanted.mean(dim=0)).square().mean())
    assert least <= error < least + 0.05 * (bias_alone - least)  # the ridge costs a little
    # What the budget does not keep is left alone.
    before = nested.model.get_submodule(site.output).weight.detach()
    assert torch.equal(output.weight.detach()[:, kept:], before[:, kept:])


@pytest.mark.parametrize("guard", [1.0, 30.0])
def test_a_budget_weighs_one_over_the_root_of_what_it_loses(encoder, task, guard):
    """The first site sees the same inputs at every budget: its equations, made by hand."""
    with torch.no_grad():
        encoder.layers[0].attention.output.bias.normal_()
    nested = nested_of(encoder)
    budgets = (0.25, 0.5, 0.75, 1.0)
    settings = {**VERSION_1, "budgets": budgets, "rows": 64, "weightings": ((1e-3, guard),)}
    repaired, _ = repair(nested, task.train, **settings)
    site = find_sites(nested.model, ALL, block=1)[0]
    ids = task.train.inputs["input_ids"][:64]
    with torch.no_grad():
        given, wanted = run_up_to(nested.plain(), site.output, {"input_ids": ids})
    given, wanted = given.flatten(0, 1).double(), wanted.flatten(0, 1).double()
    before = nested.model.get_submodule(site.output)
    weight, bias = before.weight.detach().double(), before.bias.detach().double()
    columns = given.shape[1]
    gram = torch.zeros(columns + 1, columns + 1, dtype=torch.float64)
    right = torch.zeros(columns + 1, len(bias), dtype=torch.float64)
    lost = []
    for budget in budgets:
        kept = len(nested.allocation(budget).indices(0, "heads")) * site.width
        seen = torch.cat([given, torch.ones(len(given), 1, dtype=torch.float64)], dim=1)
        seen[:, kept:-1] = 0.0
        missing = wanted - seen[:, :-1] @ weight.T
        lost.append(float((missing - bias).square().mean() / wanted.var(dim=0).mean()))
        share = max(lost[-1], 1e-3) ** -0.5 * (guard if budget == 1.0 else 1.0)
        gram += share * seen.T @ seen
        right += share * seen.T @ missing
    ridge = 1e-3 * gram.diagonal()[:-1].mean()
    gram.diagonal()[:-1].add_(ridge)
    solved = torch.linalg.solve(gram, right)
    after = repaired.model.get_submodule(site.output)
    assert torch.allclose(after.weight.detach().double(), weight + solved[:-1].T, atol=1e-4)
    assert torch.allclose(after.bias.detach().double(), solved[-1], atol=1e-4)
    # What tells the weights apart: small budgets lose far more than large ones.
    assert lost == sorted(lost, reverse=True) and lost[0] > 2 * lost[2] > 0
    assert not torch.allclose(after.weight.detach(), before.weight.detach(), atol=1e-2)


def test_with_all_units_at_work_there_is_nothing_to_repair(encoder, task):
    nested = nested_of(encoder)
    repaired, _ = repair(nested, task.train, budgets=(1.0,), rows=64)
    ids = task.test.inputs["input_ids"]
    with torch.no_grad():
        assert torch.allclose(repaired(ids), nested(ids), atol=1e-4)


def test_the_given_model_is_left_alone_and_the_order_stays(encoder, task):
    nested = nested_of(encoder)
    before = {name: value.clone() for name, value in nested.state_dict().items()}
    repaired, _ = repair(nested, task.train, rows=32)
    assert all(torch.equal(value, before[name]) for name, value in nested.state_dict().items())
    assert torch.equal(repaired.gates.order, nested.gates.order)
    assert repaired.allocation(0.5).kept == nested.allocation(0.5).kept


def test_padding_says_nothing():
    shape = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 16}
    model = BertForSequenceClassification(
        BertConfig(vocab_size=50, intermediate_size=64, max_position_embeddings=16, **shape)
    ).eval()
    nested = nested_of(model, length=16)
    ids = torch.randint(5, 50, (24, 16))
    mask = torch.arange(16) < torch.tensor([[16], [4]]).repeat(12, 1)  # in every batch, both
    labels = torch.zeros(24, dtype=torch.long)

    def repaired(garbage):
        filled = torch.where(mask, ids, garbage)
        split = Split({"input_ids": filled, "attention_mask": mask}, labels)
        return repair(nested, split, **VERSION_1)[0].state_dict()

    first, second = repaired(torch.tensor(1)), repaired(torch.tensor(7))
    assert all(torch.allclose(first[name], second[name], atol=1e-4) for name in first)


def short_rows(rows, seed=0):
    """Rows of six tokens: far fewer than a site has unknowns."""
    ids = torch.randint(5, 50, (rows, 6), generator=torch.Generator().manual_seed(seed))
    return Split({"input_ids": ids}, torch.zeros(rows, dtype=torch.long))


@pytest.fixture(scope="module")
def starved():
    """A nested model of which least squares learn a few short rows by heart."""
    torch.manual_seed(2)
    shape = {"num_hidden_layers": 4, "num_attention_heads": 4, "hidden_size": 32}
    config = BertConfig(
        vocab_size=50,
        intermediate_size=256,
        max_position_embeddings=16,
        num_labels=8,
        initializer_range=0.4,
        **shape,
    )
    return nested_of(BertForSequenceClassification(config).eval(), length=6)


def agreement(model, other, split, **options):
    with torch.no_grad():
        pairs = ((model.eval(), options), (other.eval(), {}))
        first, second = (asked(**split.inputs, **how).logits for asked, how in pairs)
    return float((first.argmax(dim=-1) == second.argmax(dim=-1)).float().mean())


def test_what_was_learned_by_heart_is_not_trusted(starved):
    """The whole model answers as before on rows that were held out; the fit alone changes it."""
    train, held_out = short_rows(24), short_rows(400, seed=1)
    fitted, _ = repair(starved, train, **VERSION_1)
    assert agreement(fitted, starved, held_out) < 0.97
    repaired, facts = repair(starved, train, held_out=held_out)
    assert facts["repair_held_out"] == 256
    assert agreement(repaired, starved, held_out.take(torch.arange(256))) >= AGREEMENT
    for budget in (0.5, 0.75):
        order = agreement(starved, starved, held_out, budget=budget)
        assert agreement(repaired, starved, held_out, budget=budget) >= order - 0.02


@pytest.mark.slow
def test_convert_on_short_rows_never_makes_a_model_worse(tmp_path):
    """A fine-tuned encoder of twelve tokens a row: 32 rows are one token for each unknown.

    The fit alone costs the whole model points. What is trusted of it costs nothing there, and
    small budgets do better than by the order alone.
    """
    write_docstrings(tmp_path, ["email", "torch.nn", "numpy", "scipy.stats"], train=170, test=200)
    task = Text(str(tmp_path), length=12, validation=160).build(load_tokenizer("minilm", 12))
    model = load_model("minilm", task.classes, 7)
    blocks = Elastic(model, ("feedforward",), length=12, block=384).units
    smaller = cut(model, Allocation(blocks, tuple(unit.index == 0 for unit in blocks)))
    dense_recipe = recipe("dense", epochs=2, batch_size=16, lr=1e-4, warmup=0.1)
    dense = fit(smaller, task, recipe=dense_recipe, seed=7).model
    order, _ = nest(
        Elastic(dense, ALL, length=12, block=16), lambda fine: squared_gradient(fine, task.train)
    )
    few = task.train.take(torch.arange(32))

    def points(nested, budget):
        return 100 * evaluate(nested, task.test, budget=budget).accuracy

    whole = 100 * evaluate(dense, task.test).accuracy
    fitted, _ = repair(order, few, **VERSION_1)
    assert points(fitted, 1.0) <= whole - 3.0
    repaired, _ = repair(order, few, held_out=task.validation)
    assert abs(points(repaired, 1.0) - whole) <= 0.3
    for budget in (0.75, 0.5):
        assert points(repaired, budget) >= points(order, budget) - 0.3
    far = {
        nested: sum(divergence(nested, dense, task.test, b) for b in (0.5, 0.375, 0.25))
        for nested in (order, repaired)
    }
    assert far[repaired] < far[order]


def divergence(nested, dense, split, budget):
    """How far a budget's answers are from the dense model's, in nats per row."""
    smaller = nested.cut(budget).eval()
    with torch.no_grad():
        found, wanted = (
            torch.cat([model(**inputs).logits for inputs, _ in split.batches(32)]).log_softmax(-1)
            for model in (smaller, dense.eval())
        )
    return float(F.kl_div(found, wanted, reduction="batchmean", log_target=True))


def test_there_are_as_many_rows_as_the_largest_site_has_unknowns_for(starved):
    """Ten tokens for each of 256 columns and a bias, of rows of six tokens."""
    _, facts = repair(starved, short_rows(600), held_out=short_rows(8, seed=1))
    assert facts["repair_rows"] == -(-10 * 257 // 6)
    _, facts = repair(starved, short_rows(40))
    assert (facts["repair_rows"], facts["repair_held_out"]) == (30, 10)


def test_rows_that_choose_are_others_than_those_that_are_fitted_to(starved, monkeypatch):
    taken = []
    take = Split.take
    monkeypatch.setattr(
        Split, "take", lambda split, rows: taken.append(rows.tolist()) or take(split, rows)
    )
    repair(starved, short_rows(40))
    fit, check = taken[0], taken[1]
    assert sorted(fit + check) == list(range(40)) and len(check) == 10


def test_one_row_is_too_few_to_hold_any_out(starved):
    with pytest.raises(ValueError, match="two rows at least"):
        repair(starved, short_rows(1))
    with pytest.raises(ValueError, match="shares"):
        repair(starved, short_rows(8), shares=())


def test_only_a_nested_model_can_be_repaired(encoder, task):
    with pytest.raises(ValueError, match="nested"):
        repair(Elastic(encoder, ALL, length=task.length, block=16), task.train)


def test_a_model_may_run_from_any_layer_on(encoder, task):
    ids = task.test.inputs["input_ids"]
    with torch.no_grad():
        with remembering(encoder, layer_names(encoder)) as seen:
            whole = encoder(ids)
        first, *_ = layer_names(encoder)
        with recalling(encoder, {first: seen[first]}):
            # What comes in at the bottom no longer matters.
            assert torch.equal(encoder(ids.flip(1)), whole)
        assert not torch.equal(encoder(ids.flip(1)), whole)


def test_a_part_that_is_not_called_is_named(encoder, task):
    encoder.unused = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match="does not call its unused"):
        run_up_to(encoder, "unused", {"input_ids": task.test.inputs["input_ids"]})


@pytest.fixture
def tried(monkeypatch):
    """The weightings that repairs try, as they try them."""
    tried = []
    fit_all = repairing._Run.fit

    def noted(run, weighting, *others):
        tried.append(weighting)
        return fit_all(run, weighting, *others)

    monkeypatch.setattr(repairing._Run, "fit", noted)
    return tried


def test_a_repair_tries_no_more_weightings_than_its_time_allows(encoder, task, tried):
    repair(nested_of(encoder), task.train, rows=32, seconds=1e-6)
    assert tried == [repairing.WEIGHTINGS[0]]
    tried.clear()
    repair(nested_of(encoder), task.train, rows=32, seconds=1e6)
    assert tried == list(repairing.WEIGHTINGS)


def test_where_one_is_enough_no_weighting_is_tried_after_one_that_was_taken(
    encoder, task, tried, monkeypatch
):
    _, facts = repair(nested_of(encoder), task.train, rows=32, until_taken=True)
    taken = facts["repair_weighting"]
    assert tried[-1] == taken if taken else tried == list(repairing.WEIGHTINGS)
    tried.clear()
    monkeypatch.setattr(repairing, "_harms", lambda *_: True)
    repair(nested_of(encoder), task.train, rows=32, until_taken=True)
    assert tried == list(repairing.WEIGHTINGS), "none was taken"


@pytest.mark.parametrize(
    ("changed", "rows", "good"),
    [(1, 10, True), (2, 10, False), (1, 66, True), (2, 66, False), (3, 256, True), (4, 256, False)],
)
def test_one_answer_of_few_may_change(changed, rows, good):
    assert repairing.answers_as_before(1.0 - changed / rows, rows) is good


def test_one_row_of_few_that_a_budget_loses_is_no_harm():
    before = [(0.0, 1.0), (0.1, 1.0)]
    for lost, harm in ((1, False), (2, True)):
        after = [(0.0, 1.0), (0.1, 1.0 - lost / 20)]
        assert repairing._harms(after, before, 20) is harm


def test_heads_alone_are_fitted_to_tokens_for_all_their_columns():
    """Four heads of eight columns: ten tokens for each of 32 and a bias, of rows of six tokens."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        num_labels=2,
    )
    elastic = Elastic(BertForSequenceClassification(config).eval(), ("heads",), length=6)
    nested, _ = nest(elastic, lambda fine: random(fine.units, seed=3))
    _, facts = repair(nested, short_rows(600), held_out=short_rows(8, seed=1))
    assert facts["repair_rows"] == -(-10 * 33 // 6)
