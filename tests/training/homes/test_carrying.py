"""Objects that are carried to another place, and the second drive that shows it."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("embreex")

from typer.testing import CliRunner

from embodied_perceptron.apps import cli
from embodied_perceptron.recordings.tum import read_tum_camera
from embodied_perceptron_training.homes.building.floorplan import HomeError
from embodied_perceptron_training.homes.building.freespace import free_space
from embodied_perceptron_training.homes.building.home import HomeSpec, build_home
from embodied_perceptron_training.homes.carrying import carried, carry, is_portable, load_of, second_drive, with_poses
from embodied_perceptron_training.homes.recording import LATER_NS, recorded_home
from embodied_perceptron_training.homes.trajectories import RobotSpec


@pytest.fixture(scope="module")
def home():
    return build_home(700_036, HomeSpec(2))


def alone(home):
    return [o.id for o in home.objects if is_portable(o) and load_of(home, o.id) == {o.id} and o.label == "chair"]


def test_an_object_is_carried_with_everything_on_it(home):
    table = next(o for o in home.objects if o.mounted == "floor" and len(load_of(home, o.id)) > 2)
    later = carried(home, table.id, np.array([1.0, -1.0]), 0.5)
    load = load_of(home, table.id)
    np.testing.assert_allclose(later.objects[table.id].box9()[:2], [1.0, -1.0], atol=1e-9)
    assert later.objects[table.id].room == 1
    for o in home.objects:
        same = np.array_equal(o.T_world_object, later.objects[o.id].T_world_object)
        assert same is (o.id not in load)
        assert later.objects[o.id].box9()[2] == pytest.approx(o.box9()[2])


def test_what_was_out_comes_back(home):
    _, _, out = carry(home, np.random.default_rng(4), out_share=0.9)
    later, moved, still = carry(home, np.random.default_rng(5), out)
    assert out
    assert out <= moved | still
    assert all(is_portable(later.objects[k]) for k in moved if later.objects[k].support is None)


def test_a_second_drive_shows_what_was_carried(home):
    out, moved = alone(home)[:2]
    drive = second_drive(home, [out, moved], 2.0, RobotSpec())
    assert set(drive.poses) == {out, moved}
    assert drive.poses[out][2, 3] < -10.0
    space = free_space(with_poses(home, drive.poses))
    cells = {space.cell_of(T[:2, 3]) for T in drive.T_world_base}
    assert all(space.region[cell] for cell in cells)
    with pytest.raises(HomeError, match="1 objects can be carried alone"):
        second_drive(home, [out], 2.0, RobotSpec())


def test_the_command_renders_a_second_drive(home, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    size = ("--size", "64x48", "--workers", "1")
    common = ("generate", "--drive", *size)
    runner, app = CliRunner(), cli.build_app()
    done = runner.invoke(
        app, [*common, "--out", str(first), "--rooms", "2", "--seed", "700036", "--frames", "120", "--rate", "2"]
    )
    assert done.exit_code == 0, done.output
    refused = runner.invoke(app, [*common, "--out", str(second), "--after", str(first), "--seed", "3"])
    assert refused.exit_code != 0
    assert "--seed: not with --after" in f"{refused.output}{refused.exception}"
    done = runner.invoke(app, [*common, "--out", str(second), "--after", str(first), "--rate", "2"])
    assert done.exit_code == 0, done.output
    assert read_tum_camera(second).poses[0][0] == LATER_NS
    before, after = recorded_home(first), recorded_home(second)
    carried_ids = [
        o.id for o in before.objects if not np.array_equal(o.T_world_object, after.objects[o.id].T_world_object)
    ]
    assert len(carried_ids) == 2
    done = runner.invoke(app, ["dev", "mission-questions", str(second)])
    (question,) = json.loads(done.output.splitlines()[-1])
    assert question["text"] == "what moved?"
    (box,) = question["boxes"]
    assert any(np.allclose(box, after.objects[k].box9(), atol=1e-5) for k in carried_ids)
