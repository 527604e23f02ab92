"""The whole budget makes up, with units of its own, for what smaller budgets took from it."""

from __future__ import annotations

import pytest
import torch
from test_repairing import ALL, nested_of, outputs_of

from apportion.elastic.regaining import regain
from apportion.elastic.repairing import rows_with
from apportion.elastic.vouching import answers_of
from apportion.models.sites import find_sites
from apportion.models.surgery import cut


@pytest.fixture
def moved(encoder):
    """A nested model whose shared columns have learned something else."""
    nested = nested_of(encoder)
    torch.manual_seed(1)
    shared = nested.allocation(0.75)
    for site in find_sites(nested.model, ALL, nested.block):
        columns = len(shared.indices(site.layer, site.kind)) * site.width
        weight = nested.model.get_submodule(site.output).weight.detach()
        weight[:, :columns] += (
            0.3 * weight[:, :columns].std() * torch.randn(weight[:, :columns].shape)
        )
    return nested


def test_the_whole_budget_comes_nearer_and_no_smaller_one_moves(encoder, moved, task):
    whole = nested_of(encoder).plain()
    regained = regain(moved, task.train, whole=whole)
    for budget in (0.25, 0.5, 0.75):
        smaller = [cut(one.plain(), one.allocation(budget)) for one in (moved, regained)]
        assert torch.equal(*(answers_of(one, task.test) for one in smaller))
    wanted, *found = (
        answers_of(one, task.test) for one in (whole, moved.plain(), regained.plain())
    )
    before, after = (float((one - wanted).square().mean()) for one in found)
    assert after < 0.7 * before


def test_the_first_site_is_fitted_to_the_given_model(encoder, moved, task):
    whole = nested_of(encoder).plain()
    name = find_sites(whole, ALL, block=1)[0].output
    wanted, before, after = (
        outputs_of(one, name, task.train)
        for one in (whole, moved.plain(), regain(moved, task.train, whole=whole).plain())
    )
    assert (after - wanted).square().mean() < (before - wanted).square().mean()


def test_what_lost_nothing_stays_as_it_is(encoder, task):
    nested = nested_of(encoder)
    same = regain(nested, task.train, whole=nested.plain())
    for name, values in nested.plain().named_parameters():
        torch.testing.assert_close(same.plain().get_parameter(name), values, atol=1e-5, rtol=0)


def test_gates_of_their_own_have_no_units_behind_a_prefix(encoder, task):
    from apportion.elastic.elastic import Elastic

    with pytest.raises(ValueError, match="only a nested model"):
        regain(Elastic(encoder, ALL, length=12), task.train, whole=encoder)


def test_rows_are_counted_by_their_tokens(task):
    rows = rows_with(task.train, 100)
    lengths = task.train.lengths
    width = task.train.inputs["input_ids"].shape[1]
    each = torch.full((len(task.train),), width) if lengths is None else lengths
    assert int(each[: rows - 1].sum()) < 100 <= int(each[:rows].sum())
