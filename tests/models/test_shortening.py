"""Dropping tokens: dense, right with padding, and the same wherever it is computed."""

from __future__ import annotations

import pytest
import torch
from support.architectures import from_transformers
from support.shortened import LENGTHS, UNITS, alone, frontier, shortened, texts

from apportion.elastic.elastic import Elastic, logits_of
from apportion.method.frontier import Frontier
from apportion.method.length import Schedule, kept_tokens
from apportion.method.units import Allocation
from apportion.models.compute import count_macs
from apportion.models.shortening import shorten, watching_tokens
from apportion.models.sites import encoder_path, find_sites
from apportion.models.surgery import view
from apportion.serving.runtime.skipping import Skipping
from apportion.training.prefixes import Views

FAMILIES = ("bert", "electra", "roberta", "xlm-roberta", "distilbert")
BUDGETS = (0.2, 0.4)  # below the frontier, and between two of its points


@pytest.fixture(params=FAMILIES)
def family(request):
    torch.manual_seed(0)
    return request.param


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_a_row_gets_the_same_answer_alone_and_in_a_batch(family, kernel):
    served = Skipping(shortened(from_transformers(family, kernel)))
    rows = texts()
    for budget in BUDGETS:
        together = logits_of(served(**rows, budget=budget))
        for number in range(len(LENGTHS)):
            single = logits_of(served(**alone(rows, number), budget=budget))
            torch.testing.assert_close(single[0], together[number], atol=1e-4, rtol=1e-4)


def test_calls_views_training_and_cut_models_drop_the_same_tokens(family):
    model = shortened(from_transformers(family, "sdpa"))
    rows = texts()
    for budget in BUDGETS:
        called = logits_of(model(**rows, budget=budget))
        others = (
            logits_of(Skipping(model)(**rows, budget=budget)),
            logits_of(Views(model)(model.allocation(budget), **rows)),
            logits_of(model.cut(budget).eval()(**rows)),
        )
        for found in others:
            torch.testing.assert_close(found, called, atol=1e-4, rtol=1e-4)


def test_a_budget_of_one_is_exactly_the_model_as_it_was(family):
    model = shortened(from_transformers(family, "sdpa"))
    assert model.allocation(1.0).schedule is None
    before = logits_of(model.served()(**texts()))
    assert torch.equal(logits_of(view(model.served(), model.allocation(1.0))(**texts())), before)


def test_dropping_tokens_changes_answers():
    torch.manual_seed(0)
    model = shortened(from_transformers("bert", "sdpa"))
    kept = model.allocation(0.5)
    whole = Allocation(kept.units, kept.kept)
    with torch.no_grad():
        short, long = (logits_of(model(**texts(), allocation=one)) for one in (kept, whole))
    apart = short - long
    assert float(apart[:3].abs().amax()) > 1e-2
    assert float(apart[3].abs().amax()) < 1e-4  # three tokens are fewer than any layer drops to


def test_each_row_keeps_its_own_share_and_token_0():
    torch.manual_seed(0)
    model = shortened(from_transformers("bert", "sdpa"))
    with watching_tokens() as kept, torch.no_grad():
        model(**texts(), budget=0.25)
    shares = model.frontier.schedule(0.25).shares
    assert [order.shape[1] for order in kept] == [kept_tokens(14, share) for share in shares]
    for order in kept:
        assert (order[:, 0] == 0).all()
    # The crop keeps the first tokens and the last one of each row.
    for row, count in enumerate(LENGTHS):
        stays = kept_tokens(count, shares[0])
        found = sorted(kept[0][row, :stays].tolist())
        assert found == [*range(stays - 1), count - 1]


def test_the_tokens_that_token_0_attends_to_most_go_on():
    torch.manual_seed(0)
    model = from_transformers("bert", "eager").eval()
    rows = {name: values[:1] for name, values in texts().items()}
    attention = model(**rows, output_attentions=True).attentions[0][0].mean(dim=0)[0]
    wanted = {0, *attention[1:].argsort(descending=True)[:8].add(1).tolist()}
    shorten(model.get_submodule(encoder_path(model)), (1.0, 0.6, 0.6))
    with watching_tokens() as kept, torch.no_grad():
        model(**rows)
    assert set(kept[0][0].tolist()) == wanted


def test_a_layer_without_heads_keeps_the_tokens_that_stand_first():
    torch.manual_seed(0)
    model = shortened(from_transformers("bert", "sdpa"))
    heads = model.units.spans[0, "heads"]
    others = [n for n in range(len(model.units)) if not heads.start <= n < heads.stop]
    kept = model.on_fewer(Allocation.of(model.units, others), Schedule((1.0, 0.6, 0.6)))
    with watching_tokens() as seen, torch.no_grad():
        model(**texts(), allocation=kept)
    assert seen[0][0].tolist() == list(range(9))


def test_by_position_the_first_tokens_and_the_end_of_a_text_go_on(family):
    model = from_transformers(family, "sdpa").eval()
    shorten(model.get_submodule(encoder_path(model)), (1.0, 0.7, 0.6), by_position=True)
    with watching_tokens() as kept, torch.no_grad():
        together = logits_of(model(**texts()))
        assert kept[0][0].tolist() == [0, 13, *range(1, 9)]
        assert kept[0][1, :9].tolist() == [0, 11, *range(1, 8)]
        assert kept[1][0].tolist() == list(range(9))  # of those, in the order that they stand in
        for number in range(len(LENGTHS)):
            single = logits_of(model(**alone(texts(), number)))
            torch.testing.assert_close(single[0], together[number], atol=1e-4, rtol=1e-4)


def test_gradients_reach_the_weights_through_the_tokens_that_stay():
    torch.manual_seed(0)
    model = shortened(from_transformers("bert", "sdpa")).train()
    logits_of(Views(model)(model.allocation(0.5), **texts())).square().sum().backward()
    weight = model.model.get_submodule(find_sites(model.model, block=1)[0].inputs[0]).weight
    assert float(weight.grad.abs().sum()) > 0


def test_macs_are_those_of_the_tokens_that_are_read():
    model = shortened(from_transformers("bert", "sdpa"))
    kept = model.allocation(0.25)
    smaller = view(model.served(), kept)
    inside = sum(c for c, stays in zip(kept.short_costs, kept.kept, strict=True) if stays)
    readout = 32 * 32 + 32 * 3
    assert count_macs(smaller, 14) == inside + readout
    tokens = kept.schedule.tokens(14)
    block = kept.short_costs[model.units.spans[1, "feedforward"].start]
    assert block == 2 * tokens[1] * 32 * 32
    assert kept.cost == pytest.approx(inside / sum(model.units.costs))


def test_costs_rise_with_the_budget():
    model = shortened(from_transformers("bert", "sdpa"))
    costs = [model.allocation(budget / 20).cost for budget in range(3, 21)]
    assert costs == sorted(costs)
    assert costs[-1] == 1.0
    assert float(model.cost(0.5)) == pytest.approx(model.allocation(0.5).cost)


def test_a_model_that_reads_all_tokens_is_refused():
    model = from_transformers("bert", "sdpa").eval()
    pool = model.bert.pooler.forward
    model.bert.pooler.forward = lambda states: pool(states.mean(dim=1, keepdim=True))
    made = Elastic(model, UNITS, length=14, block=32).nested()
    with pytest.raises(ValueError, match="reads more tokens than the first one"):
        made.shortened(frontier())
    assert made.frontier is None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (frontier(4), "a model of 3 layers have as many shares, not 4"),
        (
            Frontier((0.5, 1.0), (0.9, 1.0), (Schedule((1.0, 1.0, 0.2)), Schedule((1.0,) * 3))),
            "0.2 is 3 of 14 tokens",
        ),
    ],
)
def test_a_frontier_of_another_model_is_refused(given, says):
    made = Elastic(from_transformers("bert", "sdpa"), UNITS, length=14, block=32).nested()
    with pytest.raises(ValueError, match=says):
        made.shortened(given)


def test_only_nested_models_drop_tokens():
    made = Elastic(from_transformers("bert", "sdpa"), UNITS, length=14, block=32)
    with pytest.raises(ValueError, match="only a nested model"):
        made.shortened(frontier())


def test_gates_of_a_model_that_drops_tokens_are_not_trained_by_calls():
    model = shortened(from_transformers("bert", "sdpa")).train()
    with pytest.raises(ValueError, match="is trained by `fit`"):
        model(**texts(), budget=0.5)


@pytest.mark.parametrize("name", ["output_attentions", "output_hidden_states"])
def test_what_would_be_of_all_tokens_is_refused(family, name):
    smaller = shortened(from_transformers(family, "eager")).cut(0.25).eval()
    with pytest.raises(ValueError, match=f"{name} is of all tokens"):
        smaller(**texts(), **{name: True})
    setattr(smaller.config, name, True)
    with pytest.raises(ValueError, match=f"{name} is of all tokens"):
        smaller(**texts())


@pytest.mark.filterwarnings("ignore")  # torch's own, of tracing
def test_a_model_that_drops_tokens_is_not_traced():
    """Its counts would be those of the example."""
    smaller = shortened(from_transformers("bert", "sdpa")).cut(0.25).eval()
    with pytest.raises(ValueError, match="can't be traced"):
        torch.jit.trace(smaller, tuple(texts().values()), strict=False)
