"""Trimmed bounds are numpy's percentiles."""

from __future__ import annotations

import numpy as np
import pytest

from embodied_perceptron.geometry.boxes import median, trimmed_bounds


@pytest.mark.parametrize("count", [1, 2, 3, 7, 200, 4096, 4097, 20_000])
@pytest.mark.parametrize("trim", [0.0, 0.5, 2.0, 12.3, 50.0])
def test_as_numpys_percentiles(count, trim):
    values = np.random.default_rng(count).normal(size=(count, 5)) * 10.0
    low, high = trimmed_bounds(values, trim)
    slow_low, slow_high = np.percentile(values, [trim, 100 - trim], axis=0)
    np.testing.assert_allclose(low, slow_low, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(high, slow_high, rtol=1e-9, atol=1e-9)


def test_values_stay_as_they_are_and_nothing_is_refused():
    values = np.random.default_rng(0).normal(size=(50, 2))
    before = values.copy()
    trimmed_bounds(values, 1.0)
    assert (values == before).all()
    with pytest.raises(ValueError, match="values"):
        trimmed_bounds(np.zeros((0, 2)), 1.0)
    with pytest.raises(ValueError, match="trim_percent"):
        trimmed_bounds(values, 51.0)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 201])
def test_the_middle_is_numpys_median(count):
    values = np.random.default_rng(count).normal(size=count)
    before = values.copy()
    assert median(values) == np.median(values)
    assert (values == before).all()
    with pytest.raises(ValueError, match="values"):
        median(values[:0])
