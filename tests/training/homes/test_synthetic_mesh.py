"""Primitives: closed surfaces, tight extents, joints."""

from __future__ import annotations

import inspect
from collections import Counter
from types import ModuleType

import numpy as np
import pytest

from embodied_perceptron.weights.categories import ALL_CATEGORIES
from embodied_perceptron_training.homes.assets import bath, decor, electronics, furniture, kitchen, small, soft
from embodied_perceptron_training.homes.assets.mesh import MeshBuilder, face_normals, rotation
from embodied_perceptron_training.homes.assets.objects import Joint, ObjectModel
from embodied_perceptron_training.homes.rendering.materials import Material

PLAIN = Material()
MODULES = (bath, decor, electronics, furniture, kitchen, small, soft)


def families(module: ModuleType) -> list[str]:
    """Functions that need nothing but a generator and an empty builder."""
    return [
        name
        for name, f in vars(module).items()
        if inspect.isfunction(f)
        and f.__module__ == module.__name__
        and not name.startswith("_")
        and [p.default for p in inspect.signature(f).parameters.values()].count(inspect.Parameter.empty) == 2
    ]


def open_edges(builder: MeshBuilder) -> int:
    """Edges that are not shared by two faces running in opposite directions."""
    edges: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    for t in np.round(builder.build().triangles * 1e6).astype(int):
        corners = [tuple(c) for c in t]
        for a, b in zip(corners, (*corners[1:], corners[0]), strict=True):
            edges[(a, b)] += 1
    return sum(count != edges.get((b, a), 0) for (a, b), count in edges.items())


def volume(builder: MeshBuilder) -> float:
    t = builder.build().triangles
    return float(np.einsum("ni,ni->n", t[:, 0], np.cross(t[:, 1], t[:, 2])).sum() / 6)


@pytest.mark.parametrize("bulge", [0.18, 0.35, 0.6])
def test_soft_boxes_are_closed_and_fill_their_size(bulge: float) -> None:
    b = MeshBuilder()
    b.rounded_box((0.8, 0.5, 0.2), (0.1, 0.2, 0.3), PLAIN, bulge)
    corners = b.build().triangles.reshape(-1, 3)
    np.testing.assert_allclose(np.ptp(corners, axis=0), (0.8, 0.5, 0.2), atol=1e-9)
    assert open_edges(b) == 0
    assert 0.4 * 0.08 < volume(b) < 0.08


def test_boxes_cylinders_and_lathes_are_closed_with_the_right_volume() -> None:
    b = MeshBuilder()
    b.box((1, 2, 3), (0, 0, 0), PLAIN, rotation("x", 0.4))
    assert open_edges(b) == 0
    assert volume(b) == pytest.approx(6)
    c = MeshBuilder()
    c.cylinder(0.5, 2.0, (1, 1, 1), PLAIN, segments=64)
    assert open_edges(c) == 0
    assert volume(c) == pytest.approx(np.pi * 0.25 * 2, rel=0.01)
    s = MeshBuilder()
    s.ellipsoid((1, 1, 1), (0, 0, 0), PLAIN, segments=48)
    assert open_edges(s) == 0
    assert volume(s) == pytest.approx(4 / 3 * np.pi, rel=0.02)


def test_normals_point_outwards() -> None:
    b = MeshBuilder()
    b.ellipsoid((1, 0.5, 0.7), (0, 0, 0), PLAIN)
    b.box((0.1, 0.1, 0.1), (3, 0, 0), PLAIN)
    b.cylinder(0.2, 0.5, (0, 3, 0), PLAIN)
    mesh = b.build()
    flat = face_normals(mesh.triangles)
    assert (np.einsum("fk,fck->fc", flat, mesh.normals) > 0).all()
    np.testing.assert_allclose(np.linalg.norm(mesh.normals, axis=-1), 1, atol=1e-9)


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__.split(".")[-1])
def test_every_family_makes_a_sound_model(module: ModuleType) -> None:
    for name in families(module):
        for seed in range(3):
            model: ObjectModel = getattr(module, name)(np.random.default_rng(seed), MeshBuilder())
            again: ObjectModel = getattr(module, name)(np.random.default_rng(seed), MeshBuilder())
            assert model.category in ALL_CATEGORIES, name
            low, high = model.bounds()
            np.testing.assert_array_equal(low, again.bounds()[0])
            assert -0.005 < low[2] < 0.03, f"{name} stands at {low[2]}"
            assert ((high - low) > 0.001).all(), name
            assert ((high - low) < 2.6).all(), name
            for surface in model.surfaces:
                x, y, z = surface.center_m
                assert low[0] - 0.01 <= x - surface.half_m[0] <= x + surface.half_m[0] <= high[0] + 0.01, name
                assert low[1] - 0.01 <= y - surface.half_m[1] <= y + surface.half_m[1] <= high[1] + 0.01, name
                assert low[2] <= z <= high[2] + 1e-6, name
            for part in model.joints:
                opened, closed = model.posed_mesh({part: 1.0}), model.posed_mesh()
                assert len(opened) == len(closed)
                assert np.abs(opened.triangles - closed.triangles).max() > 0.02, f"{name}: {part} does not move"


def test_joints_turn_about_their_axis() -> None:
    hinge = Joint("revolute", (0.0, 0.0, -1.0), (1.0, 0.0, 0.0), np.pi / 2)
    T = hinge.transform(1.0)
    np.testing.assert_allclose(T @ [1, 0, 5, 1], [1, 0, 5, 1], atol=1e-12)  # the axis stays
    np.testing.assert_allclose(T @ [2, 0, 0, 1], [1, -1, 0, 1], atol=1e-12)
    slide = Joint("prismatic", (0.0, -1.0, 0.0), (0.0, 0.0, 0.0), 0.4)
    np.testing.assert_allclose(slide.transform(0.5)[:3, 3], [0, -0.2, 0])
    with pytest.raises(ValueError, match=r"1\.5"):
        slide.transform(1.5)
