"""Pictures: what stands where in the map must stand there in them."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from support.scene_builder import box_surface, plane, room, snapshot_of

from embodied_perceptron.config import GridConfig, SegmentationConfig
from embodied_perceptron.geometry.transforms import Intrinsics, make_transform
from embodied_perceptron.results import Grounding, GroundingStatus, Perception, SceneObject
from embodied_perceptron.scene.navigation import navigation_grid, semantic_voxels
from embodied_perceptron.scene.segmentation.layers import separate_layers
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame
from embodied_perceptron.visualization.drawing import Tags, clip_to_near_plane, color_of_id, draw_boxes_on_image
from embodied_perceptron.visualization.rerun import RerunRecorder, write_rrd
from embodied_perceptron.visualization.top_view import render_top_view

RED, GREEN, BLUE, GREY = (220, 30, 30), (30, 200, 40), (40, 60, 220), (120, 120, 120)
K = Intrinsics(300.0, 300.0, 159.5, 119.5, 320, 240)


def perception_of(parts, objects=()):
    points = np.concatenate([p for p, _ in parts]) if parts else np.zeros((0, 3))
    colors = np.concatenate([np.broadcast_to(c, (len(p), 3)) for p, c in parts]) if parts else None
    snapshot = snapshot_of(points, colors)
    layers = separate_layers(snapshot, 0.0, SegmentationConfig())
    return Perception(
        0,
        tuple(objects),
        (),
        semantic_voxels(snapshot, layers, 0.06),
        navigation_grid(snapshot, 0.0, GridConfig()),
        snapshot,
    )


def thing(number, box):
    return SceneObject(number, "crate", 0.9, np.array(box, dtype=np.float64))


@pytest.fixture(scope="module")
def furnished():
    """A grey room with a red crate at x > 0 and a green one at y > 0."""
    return perception_of(
        [
            (room(), GREY),
            (box_surface((1.4, 0.0, 0.3), (0.6, 0.6, 0.6)), RED),
            (box_surface((0.0, 1.2, 0.3), (0.6, 0.6, 0.6)), GREEN),
        ]
    )


def where(image, color, tolerance=70):
    """(row, column) of the middle of the pixels of a colour, and their number; lighting keeps the hue."""
    distance = np.abs(image.astype(int) - color).sum(axis=2)
    rows, columns = np.nonzero(distance < tolerance)
    return (rows.mean() if len(rows) else np.nan), (columns.mean() if len(columns) else np.nan), len(rows)


# ---------------------------------------------------------------------------------------------------------- top view


def test_top_view_has_x_to_the_right_and_y_up(furnished):
    image = render_top_view(furnished, max_pixels=600)
    assert image.dtype == np.uint8
    assert max(image.shape[:2]) == pytest.approx(600, abs=10)
    red_row, red_column, red = where(image, RED)
    green_row, green_column, green = where(image, GREEN)
    per_m = 600 / (5.0 + 0.7)
    assert red_column - green_column == pytest.approx(1.4 * per_m, rel=0.05)
    assert red_row - green_row == pytest.approx(1.2 * per_m, rel=0.05)
    assert red == pytest.approx((0.6 * per_m) ** 2, rel=0.15)
    assert green == pytest.approx(red, rel=0.1)


def test_top_view_cuts_the_ceiling():
    floor, lid = plane((0, 0, 0), (2, 0, 0), (0, 2, 0)), plane((0, 0, 2.3), (2, 0, 0), (0, 2, 0))
    image = render_top_view(perception_of([(floor, GREEN), (lid, RED)]), max_pixels=200)
    assert where(image, GREEN)[2] > 10_000
    assert where(image, RED)[2] == 0


def test_top_view_draws_boxes_path_and_scale(furnished):
    box = thing(3, [1.4, 0, 0.3, 0.6, 0.6, 0.6, 0, 0, 0])
    bare = render_top_view(furnished, objects=[], max_pixels=600)
    assert not np.array_equal(render_top_view(furnished, objects=[box], max_pixels=600), bare)
    boxed = render_top_view(furnished, objects=[box], max_pixels=600)
    row, column, _ = where(bare, RED)
    around = boxed[int(row) - 50 : int(row) + 50, int(column) - 50 : int(column) + 50]
    assert where(around, color_of_id(3), 40)[2] > 100  # outline
    path = np.array([[-1.5, -1.5, 1.0], [1.5, -1.5, 1.0]])
    walked = render_top_view(furnished, objects=[], trajectory_m=path, max_pixels=600)
    changed = np.abs(walked.astype(int) - bare).sum(axis=2) > 60
    columns = np.nonzero(changed.any(axis=0))[0]
    assert columns.max() - columns.min() == pytest.approx(3.0 * 600 / 5.7, abs=20)
    poses = np.stack([make_transform(np.eye(3), p) for p in path])
    assert np.array_equal(render_top_view(furnished, objects=[], trajectory_m=poses, max_pixels=600), walked)
    ink = (boxed[-40:, :260] > 230).all(axis=2)
    bar = max(np.flatnonzero(r)[-1] - np.flatnonzero(r)[0] for r in ink if r.sum() > 20)
    assert bar == pytest.approx(1.0 * 600 / 5.7, abs=6)  # "1 m"


def test_top_view_of_nothing_and_of_one_voxel():
    empty = render_top_view(perception_of([]))
    assert empty.ndim == 3
    assert empty.shape[2] == 3
    one = render_top_view(perception_of([(np.array([[3.0, 4.0, 0.5]]), RED)]), max_pixels=300)
    assert where(one, RED)[2] > 4


def test_top_view_refuses_odd_paths(furnished):
    with pytest.raises(ValueError, match=r"trajectory must be .* got \(3, 2\)"):
        render_top_view(furnished, trajectory_m=np.zeros((3, 2)))


# ----------------------------------------------------------------------------------------------------------- overlay


def ahead(z=3.0, yaw=0.0):
    """A unit cube before a camera that looks along +x of the world."""
    return thing(1, [z, 0, 0, 1, 1, 1, yaw, 0, 0])


FORWARD = make_transform(np.array([[0.0, 0, 1], [-1, 0, 0], [0, -1, 0]]), np.zeros(3))


def test_overlay_draws_edges_where_they_project():
    image = np.zeros((240, 320, 3), np.uint8)
    out = draw_boxes_on_image(image, [ahead()], FORWARD, K)
    assert not image.any()
    drawn = np.abs(out.astype(int) - color_of_id(1)).sum(axis=2) < 60
    half = 300 * 0.5 / 2.5  # nearest face at 2.5 m
    for column in (159.5 - half, 159.5 + half):
        assert drawn[100:140, round(column) - 2 : round(column) + 3].any(axis=1).mean() > 0.95
    _, columns = np.nonzero(out.any(axis=2))
    assert columns.min() == pytest.approx(159.5 - half, abs=5)
    assert columns.max() == pytest.approx(159.5 + half, abs=5)


def test_overlay_ignores_what_is_behind_and_cuts_at_the_near_plane():
    image = np.full((240, 320, 3), 77, np.uint8)
    assert np.array_equal(draw_boxes_on_image(image, [ahead(-3.0)], FORWARD, K), image)
    inside = thing(1, [0.3, 0, 0, 0.6, 0.6, 0.6, 0, 0, 0])  # reaches behind the camera
    around = draw_boxes_on_image(image, [inside], FORWARD, K)
    drawn = np.abs(around.astype(int) - color_of_id(1)).sum(axis=2) < 60
    half = 300 * 0.3 / 0.6  # the far face
    for column in (159.5 - half, 159.5 + half):
        assert drawn[60:180, round(column) - 2 : round(column) + 3].any(axis=1).mean() > 0.95
    assert not drawn[60:180, 30:290].any()  # nothing smeared over the middle


def test_overlay_of_no_objects_is_the_image():
    image = np.full((240, 320, 3), 9, np.uint8)
    assert np.array_equal(draw_boxes_on_image(image, [], FORWARD, K), image)


def test_overlay_refuses_another_size():
    with pytest.raises(ValueError, match=r"\(10, 10, 3\) uint8, intrinsics say \(240, 320, 3\)"):
        draw_boxes_on_image(np.zeros((10, 10, 3), np.uint8), [], FORWARD, K)


def test_clip_to_near_plane():
    p, q = np.array([0.0, 0, -1]), np.array([2.0, 0, 1])
    a, b = clip_to_near_plane(p, q, 0.5)
    assert a == pytest.approx([1.5, 0, 0.5])
    assert b == pytest.approx(q)
    a, b = clip_to_near_plane(q, p, 0.5)
    assert a == pytest.approx(q)
    assert b == pytest.approx([1.5, 0, 0.5])
    assert clip_to_near_plane(p, p, 0.5) is None


def test_tags_keep_off_each_other_and_inside():
    image = np.zeros((400, 300, 3), np.uint8)
    tags = Tags(image)
    for place in (*[(150, 200)] * 10, (152, 203), (-50, -50), (999, 999)):
        tags.add("chair 7", *place, RED)
    plates = tags._plates[: tags._count]
    assert (plates[:, :2] >= 0).all()
    assert (plates[:, 2] < 300).all()
    assert (plates[:, 3] < 400).all()
    for i in range(len(plates)):
        for j in range(i):
            a, b = plates[i], plates[j]
            assert a[0] > b[2] or b[0] > a[2] or a[1] > b[3] or b[1] > a[3]


def test_colors_of_neighbouring_ids_differ():
    colors = np.array([color_of_id(i) for i in range(1, 30)])
    assert np.abs(np.diff(colors, axis=0)).sum(axis=1).min() > 100
    assert color_of_id(5) == color_of_id(5)


# ------------------------------------------------------------------------------------------------------------- rerun


def printed(path):
    """The contents of a sound recording, as the Rerun command prints them."""

    def command(*args):
        done = subprocess.run(
            [sys.executable, "-m", "rerun", "rrd", *args], capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    command("verify", str(path))
    return command("print", "-vvv", str(path))


@pytest.mark.parametrize("finished", [False, True])
def test_recording_holds_everything(tmp_path, furnished, finished):
    pytest.importorskip("rerun")
    path = tmp_path / "run.rrd"
    crate = thing(4, [1.4, 0, 0.3, 0.6, 0.6, 0.6, 0, 0, 0])
    perception = Perception(2, (crate,), (), furnished.semantic, furnished.grid, furnished.voxels)
    images = np.zeros((240, 320, 3), np.uint8), np.ones((240, 320), np.float32)
    frames = [PosedFrame(RgbdFrame(i, "front left", *images, K), FORWARD) for i in range(2)]
    answers = [
        Grounding("the crate", GroundingStatus.FOUND, (crate,)),
        Grounding("a cow", GroundingStatus.INVALID, reason="no language model loaded"),
    ]
    if finished:
        path_m = np.zeros((2, 3))
        sightings = [(1, (crate,))]
        write_rrd(path, perception, path_m, frames, sightings=sightings, answers=[(2, a) for a in answers])
    else:
        with RerunRecorder(path) as recorder:
            for posed in frames:
                recorder.log_frame(posed)
            recorder.log_perception(perception)
            for answer in answers:
                recorder.log_grounding(answer)
    assert path.stat().st_size > 10_000
    text = printed(path)
    for entity in ("camera/front_left", "camera/front_left/color", "voxels", "semantic", "objects", "answer", "grid"):
        assert f"/world/{entity}" in text, entity
    assert "/world/path" in text
    assert "/queries" in text
    for words in ("crate 4 (0.90)", "'the crate': FOUND crate 4", "no language model loaded"):
        assert words in text, words


def test_recording_without_the_sdk_names_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(ImportError, match="rerun-sdk"):
        RerunRecorder(tmp_path / "run.rrd")


def test_recording_into_a_missing_folder_is_refused(tmp_path):
    pytest.importorskip("rerun")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        RerunRecorder(tmp_path / "nowhere" / "run.rrd")
