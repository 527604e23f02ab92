"""Tiers and terms: what may be asked, and one sentence for what may not."""

from __future__ import annotations

import pytest
from virtual import LEVELS

from apportion.serving.server.configuration import read_config
from apportion.serving.server.terms import TIERS, Asked, Config, Refusal, Tier, agree

GOOD = """
[model]
name = "news"
[machine]
workers = 2
max_wait_s = 3
[[tier]]
name = "free"
max_budget = 0.25
[[tier]]
name = "paid"
max_budget = 1.0
min_budget = 0.5
target_ms = 80
weight = 8
price = 3
[keys]
file = "keys.txt"
[limits]
rows = 8
[policy]
name = "slackfit"
"""


def written(tmp_path, text):
    path = tmp_path / "tiers.toml"
    path.write_text(text)
    return path


def test_a_config_becomes_frozen_values(tmp_path):
    config = read_config(written(tmp_path, GOOD))
    assert (config.name, config.machine.workers, config.machine.max_wait_s) == ("news", 2, 3)
    assert config.tiers[1] == Tier("paid", 1.0, 0.5, weight=8, target_ms=80, price=3)
    assert config.keys == tmp_path / "keys.txt"
    assert (config.limits.rows, config.rule.name) == (8, "slackfit")
    assert config.machine.max_batch == Config().machine.max_batch


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "[server]\nport = 1",
            "the file has unknown keys server; known: certificate, keys",
        ),
        ("[machine]\nworker = 1", r"\[machine\] has unknown keys worker; known: grace_s"),
        ("[machine]\nworkers = 0", r"\[machine\] workers is a number above 0, not 0"),
        ("[machine]\nworkers = true", r"\[machine\] workers must be a whole number or nothing"),
        ("[limits]\nrows = -3", r"\[limits\] rows is a number above 0, not -3"),
        ('[[tier]]\nname = "a"', r"\[\[tier\]\] 1 has no max_budget"),
        ("[[tier]]\nmax_budget = 1.0", r"\[\[tier\]\] 1 has no name"),
        (
            '[[tier]]\nname = "a"\nmax_budget = 0.25\nmin_budget = 0.5',
            "tier 'a': min_budget 0.5 is above max_budget 0.25",
        ),
        ('[[tier]]\nname = "a"\nmax_budget = 2', r"max_budget is a number in \(0, 1\], not 2"),
        ('[[tier]]\nname = "a b"\nmax_budget = 1', "needs a name without spaces"),
        ('[[tier]]\nname = "a"\nmax_budget = 1\ntarget_ms = 0', "target_ms is a number above 0"),
        ('[[tier]]\nname = "a"\nmax_budget = 1\nprice = -1', "price is a number from 0 on"),
        ('[[tier]]\nname="a"\nmax_budget=1\n[[tier]]\nname="a"\nmax_budget=1', "called 'a'"),
        ('[policy]\nname = "fifo"', r"\[policy\] name must be 'ladder' or 'slackfit' or 'static'"),
        ("[policy]\nworth = [0.9, 0.8]", "worth may not fall"),
        ("[policy]\nbudget = 0.0", r"\[policy\] budget is a number in \(0, 1\]"),
        ('[model]\nname = "a/b"', "without colons and slashes"),
        ("[certificate]\naudit = 2.0", r"\[certificate\] audit is a share between 0 and 1, not 2"),
        ("[certificate]\nshare = 1.0", r"\[certificate\] has unknown keys share"),
        ("[model", "not TOML"),
    ],
)
def test_a_bad_config_is_one_sentence(tmp_path, text, says):
    with pytest.raises(ValueError, match=says) as caught:
        read_config(written(tmp_path, text))
    assert str(caught.value).startswith("tiers.toml: ") and "\n" not in str(caught.value)


def test_a_config_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match="there is no configuration"):
        read_config(tmp_path / "none.toml")


def test_a_tier_without_a_level_of_the_model_is_an_error_and_the_usual_tiers_fit_any():
    with pytest.raises(ValueError, match=r"the model has no such level: 0\.5, 1"):
        Config(tiers=(Tier("a", 0.25),)).fitted((0.5, 1.0))
    with pytest.raises(ValueError, match="the model has no such level"):
        Config(tiers=(Tier("a", 0.4, 0.3),)).fitted(LEVELS)
    fitted = Config().fitted((0.5, 1.0))
    assert [tier.max_budget for tier in fitted.tiers] == [0.5, 0.5, 1.0]
    assert TIERS[0].max_budget == 0.25


def test_terms_are_those_of_the_tier_narrowed_by_the_request():
    config = Config().fitted(LEVELS)
    whole = agree(Asked("high-quality"), config, levels=LEVELS)
    assert (whole.highest, whole.lowest, whole.target_ms) == (1.0, 0.125, 500.0)
    pinned = agree(Asked("high-quality", budget=0.6), config, levels=LEVELS)
    assert pinned.highest == pinned.lowest == 0.5
    raised = agree(Asked("balanced", min_budget=0.2, target_ms=9), config, levels=LEVELS)
    assert (raised.highest, raised.lowest, raised.target_ms) == (0.5, 0.25, 9)


def test_a_request_without_a_tier_gets_the_first_that_pays_for_its_budget():
    config = Config().fitted(LEVELS)
    assert agree(Asked(), config, levels=LEVELS).tier == "low-cost"
    assert agree(Asked(budget=0.5), config, levels=LEVELS).tier == "balanced"
    assert agree(Asked(min_budget=0.9), config, levels=LEVELS).tier == "high-quality"
    assert agree(Asked(), config, levels=LEVELS, allowed=["balanced"]).tier == "balanced"


def test_a_request_waits_no_longer_than_the_server_allows():
    config = Config().fitted(LEVELS)
    assert agree(Asked(timeout_ms=10), config, levels=LEVELS).timeout_ms == 10
    assert agree(Asked(timeout_ms=1e6), config, levels=LEVELS).timeout_ms == 30_000


@pytest.mark.parametrize(
    ("asked", "kind", "says"),
    [
        (Asked("gold"), "no-such-tier", "there are low-cost, balanced, high-quality"),
        (Asked("low-cost", budget=1.0), "tier-not-allowed", "pays for budgets to 0.25, not 1"),
        (Asked(budget=0.1), "bad-field", "below the lowest level of this model, 0.125"),
        (Asked(budget=1.5), "bad-field", r"budget is a number in \(0, 1\], not 1.5"),
        (Asked(budget=float("nan")), "bad-field", "not nan"),
        (Asked("low-cost", min_budget=0.5), "bad-field", "above the highest level"),
        (Asked(target_ms=-1.0), "bad-field", "target_ms is a number"),
        (Asked(timeout_ms=0.0), "bad-field", "timeout_ms is a number"),
    ],
)
def test_what_may_not_be_asked_is_refused_in_one_sentence(asked, kind, says):
    with pytest.raises(Refusal, match=says) as caught:
        agree(asked, Config().fitted(LEVELS), levels=LEVELS)
    assert caught.value.kind == kind


def test_a_key_has_its_tiers_and_no_other():
    config = Config().fitted(LEVELS)
    with pytest.raises(Refusal, match="this key has no tier 'balanced'; it has low-cost"):
        agree(Asked("balanced"), config, levels=LEVELS, allowed=["low-cost"])
    with pytest.raises(Refusal, match=r"pays for a budget of 0\.5"):
        agree(Asked(budget=0.5), config, levels=LEVELS, allowed=["low-cost"])
