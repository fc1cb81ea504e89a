"""Names of all parametric families of homes of version 2."""

from __future__ import annotations

import itertools

from embodied_perceptron_training.homes.assets.varied import catalogue, clutter


def all_families() -> set[str]:
    """Families with alternatives, the alternatives, single ones, and shapes of clutter."""
    named = {*catalogue.ALTERNATIVES, *itertools.chain(*catalogue.ALTERNATIVES.values())}
    named |= {*catalogue.OWN, *catalogue._SINGLES, *clutter.SHAPES}
    return {catalogue.family_name(family) for family in named}
