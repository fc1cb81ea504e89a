"""Sets of lattice sites without sorting equal what sorting finds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry import bits
from embodied_perceptron.geometry.bits import distinct_site_keys, lowest_bit
from embodied_perceptron.geometry.transforms import MAX_SITE_COORDINATE, pack_site_keys


def site_keys(rng: np.random.Generator, count: int, reach: int, stride: int, samples: int) -> NDArray[np.int64]:
    coords = torch.from_numpy(rng.integers(-reach, reach + 1, (count, 3)) * stride)
    return pack_site_keys(torch.from_numpy(rng.integers(0, samples, count)), coords).numpy()


@pytest.mark.parametrize("stride", [1, 2, 3, 8])
@pytest.mark.parametrize("samples", [1, 5])
def test_sites_close_together_and_far_apart(stride: int, samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(stride)
    sorted_ones = []
    monkeypatch.setattr(bits, "distinct_keys", lambda keys: sorted_ones.append(len(keys)) or np.unique(keys))
    for count, reach in ((1, 0), (3000, 6), (3000, 20), (50, 200)):
        keys = site_keys(rng, count, reach, stride, samples)
        before = keys.copy()
        np.testing.assert_array_equal(distinct_site_keys(keys), np.unique(keys))
        np.testing.assert_array_equal(keys, before)
    if stride != 3:  # which is no power of two, so that the box has sites that there cannot be
        assert sorted_ones == [50]  # of those far apart no bits are kept


def test_no_site_and_the_corners_of_the_world() -> None:
    assert len(distinct_site_keys(np.zeros(0, np.int64))) == 0
    edge = MAX_SITE_COORDINATE
    for z in (0, 63, 64, 65, 130):  # words of bits end at 64
        column = torch.tensor([[edge, -edge, edge - z], [edge, -edge, edge], [edge, -edge, edge - z]])
        keys = pack_site_keys(torch.tensor([63, 63, 63]), column).numpy()
        np.testing.assert_array_equal(distinct_site_keys(keys), np.unique(keys))


def test_the_lowest_bit_of_every_word() -> None:
    for bit in range(64):
        assert lowest_bit(np.uint64(1) << np.uint64(bit)) == bit
        assert lowest_bit((np.uint64(0b101) << np.uint64(bit)) & np.uint64(0xFFFFFFFFFFFFFFFF)) == bit
