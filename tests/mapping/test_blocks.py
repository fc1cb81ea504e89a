"""The block table against a dictionary."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from embodied_perceptron.geometry.transforms import pack_keys
from embodied_perceptron.mapping.blocks import BlockTable, block_coords, pack_key


def keys_of(coords: np.ndarray) -> np.ndarray:
    return pack_keys(torch.from_numpy(np.asarray(coords, np.int64))).numpy()


def test_keys_are_those_of_geometry() -> None:
    rng = np.random.default_rng(0)
    coords = rng.integers(-(2**20), 2**20, (200, 3))
    assert [pack_key(*(int(a) for a in c)) for c in coords] == keys_of(coords).tolist()
    np.testing.assert_array_equal(block_coords(keys_of(coords)), coords)


@pytest.mark.parametrize("seed", range(5))
def test_random_operations_equal_a_dictionary(seed: int) -> None:
    rng = np.random.default_rng(seed)
    capacity = 70
    table = BlockTable(capacity)
    expected: set[tuple[int, int, int]] = set()
    for _ in range(120):
        coords = np.unique(rng.integers(-4, 5, (rng.integers(1, 90), 3)), axis=0)
        rng.shuffle(coords)
        center, radius = rng.uniform(-4, 4, 3), float(rng.uniform(2, 9))

        def distance(c: tuple[int, int, int], center: np.ndarray = center) -> float:
            return float(((np.array(c) + 0.5 - center) ** 2).sum())

        if rng.random() < 0.3:
            gone = table.beyond(center, radius)
            far = {c for c in expected if distance(c) > radius * radius}
            assert {tuple(c) for c in table.coords_of(gone).tolist()} == far
            table.release(gone)
            expected -= far
        wanted = {tuple(c) for c in coords.tolist()}
        allowed = expected | {c for c in wanted if distance(c) <= radius * radius}
        stay = set(sorted(allowed, key=lambda c: (distance(c), c))[:capacity])
        before = len(expected)
        acquired = table.acquire(keys_of(coords), center, radius)
        assert len(acquired.evicted) == len(expected - stay)
        assert len(set(acquired.evicted.tolist())) == len(acquired.evicted) <= before
        expected = stay

        assert len(table) == len(expected)
        slots = table.slots()
        assert [tuple(c) for c in table.coords_of(slots).tolist()] == sorted(expected)
        assert len(set(slots.tolist())) == len(slots)
        np.testing.assert_array_equal(table.lookup(keys_of(coords)), acquired.slots)
        for c, slot in zip(coords.tolist(), acquired.slots.tolist(), strict=True):
            assert (slot >= 0) == (tuple(c) in expected)
            if slot >= 0:
                assert table.coords_of(np.array([slot], np.int32)).tolist() == [c]
    table.clear()
    assert len(table) == 0
    assert (table.lookup(keys_of(np.zeros((1, 3)))) == -1).all()


def test_slots_in_a_part_of_space() -> None:
    table = BlockTable(1000)
    coords = np.stack(np.meshgrid(*[np.arange(-4, 4)] * 3), axis=-1).reshape(-1, 3)
    table.acquire(keys_of(coords), np.zeros(3), np.inf)
    lower, upper = np.array([-1.5, 0.0, -np.inf]), np.array([0.5, 1.0, np.inf])
    found = table.coords_of(table.slots(lower, upper))
    overlapping = ((coords + 1 > lower) & (coords < upper)).all(1)
    assert sorted(found.tolist()) == sorted(coords[overlapping].tolist())
    assert set(found[:, 0].tolist()) == {-2, -1, 0}
    assert set(found[:, 1].tolist()) == {0}
