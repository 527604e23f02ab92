"""The rungs of the ladder: which tier is lowered first, and by how much. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from apportion.serving.server.terms import Tier


def build_ladder(
    tiers: Sequence[Tier],
    levels: Sequence[float],
    *,
    worth: Sequence[float],
    times: Sequence[float],
) -> tuple[dict[str, float], ...]:
    """The rungs, from every tier at its highest level to every tier at its lowest.

    Each lowers one tier by one level: the one whose answers lose least, weight · worth, for the
    time that it saves. `worth` and `times` are of an answer at each level.
    """
    bounds = {tier.name: tier.levels_of(levels) for tier in tiers}
    weights = {tier.name: tier.weight for tier in tiers}
    places = {name: levels.index(highest) for name, (_, highest) in bounds.items()}
    ends = {name: levels.index(lowest) for name, (lowest, _) in bounds.items()}

    def loss(name: str) -> tuple[float, float]:
        place = places[name]
        # Two levels may be worth the same, or take the same time, as far as anyone measured.
        worth_lost = max(worth[place] - worth[place - 1], 1e-6)
        time_saved = max(times[place] - times[place - 1], 1e-9)
        return weights[name] * worth_lost / time_saved, weights[name]

    rungs = [{name: levels[place] for name, place in places.items()}]
    while movable := [name for name in places if places[name] > ends[name]]:
        places[min(movable, key=loss)] -= 1
        rungs.append({name: levels[place] for name, place in places.items()})
    return tuple(rungs)


def usual_worth(levels: Sequence[float]) -> tuple[float, ...]:
    """What answers are worth where nobody measured: each further level adds less."""
    return tuple(float(np.sqrt(level)) for level in levels)
