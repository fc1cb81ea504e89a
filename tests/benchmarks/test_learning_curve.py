"""What more training would give: the fit finds a curve that it knows, and does not claim what it cannot know."""

from __future__ import annotations

import json

import pytest
from support.scripts import ROOT, load_script


@pytest.fixture(scope="module")
def curve():
    return load_script("benchmarks/learning_curve.py")


def test_a_known_curve_is_found_again(curve):
    n = [1e3, 3e3, 1e4, 3e4, 1e5, 3e5]
    fit = curve.fit_power_law(n, [70.0 - 600.0 * k**-0.5 for k in n], 0.05)
    assert (fit.limit[fit.best], fit.power[fit.best]) == pytest.approx((70.0, 0.5), rel=0.02)
    low, middle, high = fit.at(1e6)
    assert low <= middle <= high
    assert middle == pytest.approx(69.4, abs=0.2)


def test_few_noisy_points_leave_the_limit_open(curve):
    sure = curve.fit_power_law([1e3, 1e4, 1e5, 1e6], [20.0, 50.0, 60.0, 63.0], 0.1)
    open_ = curve.fit_power_law([1e3, 2e3, 3e3], [50.0, 53.0, 55.0], 2.0)
    widths = [fit.of_limit()[2] - fit.of_limit()[0] for fit in (sure, open_)]
    assert widths[1] > 5 * widths[0]
    spread = [fit.at(1e8)[2] - fit.at(1e8)[0] for fit in (sure, open_)]
    assert spread[1] > spread[0]


@pytest.mark.parametrize(
    ("n", "y", "noise", "message"),
    [([1, 2], [1, 2], 1, "at least three points, got 2"), ([0, 1, 2], [1, 2, 3], 1, "must be positive"),
     ([1, 2, 3], [1, 2, 3], 0, "must be positive")],
)  # fmt: skip
def test_what_cannot_be_fitted_is_refused(curve, n, y, noise, message):
    with pytest.raises(ValueError, match=message):
        curve.fit_power_law(n, y, noise)


def test_the_published_record_is_what_the_program_prints(curve):
    result = curve.study(json.loads(curve.DATA.read_text(encoding="utf-8")))
    record = ROOT / "docs" / "results" / "learning_curve.json"
    figures = json.loads(record.read_text(encoding="utf-8"))["figures"]
    assert len(figures) == 3
    for key, value in figures.items():
        way, after, times, place = key.split("/")
        assert value == pytest.approx(result[way][after][times][int(place)], abs=1e-6)
