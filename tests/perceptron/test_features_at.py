"""Image features at any point of the map, for who builds on them."""

from __future__ import annotations

import numpy as np
import pytest
from support.small_recording import write_recording

from embodied_perceptron import Perceptron, PerceptronConfig, PosedFrameStream, open_recording
from embodied_perceptron.geometry.transforms import invert_transform, transform_points


@pytest.fixture(scope="module")
def perceptron(tmp_path_factory: pytest.TempPathFactory) -> Perceptron:
    one = Perceptron.from_config(PerceptronConfig())
    folder = write_recording(tmp_path_factory.mktemp("drive") / "room", 12)
    for posed in PosedFrameStream(open_recording(folder)):
        one.integrate(posed)
    return one


@pytest.mark.parametrize("level", [0, 1])
def test_a_point_has_the_mean_of_what_the_keyframes_see_there(perceptron: Perceptron, level: int) -> None:
    points = perceptron.recall().voxels.mean_point_m.astype(np.float64)[::400]
    found = perceptron.features_at(points, level)
    assert found.dtype == np.float32
    sums, counts = np.zeros(found.shape), np.zeros(len(points))
    features, keyframes = perceptron.volume.features, perceptron.map.keyframes()
    assert features is not None
    assert len(keyframes) > 1
    for keyframe in keyframes:
        view = features.view(keyframe)
        cells = view.levels[level].float().numpy()
        k, depth_m = keyframe.frame.intrinsics, keyframe.frame.depth_m
        p = transform_points(invert_transform(keyframe.T_world_camera), points)
        with np.errstate(divide="ignore", invalid="ignore"):
            u, v = k.fx * p[:, 0] / p[:, 2] + k.cx, k.fy * p[:, 1] / p[:, 2] + k.cy
        at_edge = (np.abs(u - k.width / 2) - k.width / 2 < 1) & (np.abs(v - k.height / 2) - k.height / 2 < 1)
        inside = (u > 0) & (v > 0) & (u < k.width - 1) & (v < k.height - 1)
        counts[(p[:, 2] > 0) & at_edge & ~inside] = -1000
        for i in np.flatnonzero((p[:, 2] > 0.2) & inside):
            measured = depth_m[round(v[i]), round(u[i])]
            if abs(measured - p[i, 2]) < 0.02:  # surely seen; what is hidden or at an edge is left out of the test
                row, column = (
                    int((x + 0.5) * n / s)
                    for x, n, s in ((v[i], cells.shape[0], k.height), (u[i], cells.shape[1], k.width))
                )
                sums[i] += cells[row, column]
                counts[i] += 1
            elif measured == 0 or abs(measured - p[i, 2]) < 0.2:
                counts[i] = -1000
    sure = counts > 0
    assert sure.sum() > 20
    assert np.allclose(found[sure], sums[sure] / counts[sure, None], atol=1e-3)


def test_where_nothing_looked_there_is_none(perceptron: Perceptron) -> None:
    assert np.isnan(perceptron.features_at(np.array([[500.0, 0.0, 0.0]]))).all()


def test_what_cannot_be_asked_for_is_named(perceptron: Perceptron) -> None:
    with pytest.raises(ValueError, match=r"points_m must be \(N, 3\), got \(3,\)"):
        perceptron.features_at(np.zeros(3))
    with pytest.raises(ValueError, match=r"level must be in \[0, \d+\], got 9"):
        perceptron.features_at(np.zeros((1, 3)), level=9)
    with pytest.raises(ValueError, match="need a network that sees images"):
        Perceptron().features_at(np.zeros((1, 3)))
