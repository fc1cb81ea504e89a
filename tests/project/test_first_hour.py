"""What annoyed new users in their first hour, and the tests that hold its mending: each of them exists and can fail.

The fifteen points are those of a trial with the real ``ros2 launch`` before the first release. A point without a test,
and a test that has gone, fail here.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent

# number -> what annoyed, tests by file
POINTS: dict[int, tuple[str, dict[str, tuple[str, ...]]]] = {
    1: (
        "simulate.launch.py does not start beside a ROS installation",
        {
            "ros/players/test_launch.py": ("test_what_launch_files_import_loads_nothing_heavy",),
            "ros/players/test_launch_arguments.py": (
                "test_launch_files_run_where_only_the_systems_python_is",
                "test_simulate_asks_the_active_environment_for_its_recording",
            ),
        },
    ),
    2: (
        "the occupancy grid is rotated with the output frame",
        {
            "ros/conversion/test_ros_conversions.py": (
                "test_grid_in_a_turned_frame_lies_along_its_axes",
                "test_what_blocks_never_shrinks_when_a_grid_is_turned",
            )
        },
    ),
    3: (
        "the first replay fails while kernels compile",
        {
            "ros/players/test_players.py": ("test_player_waits_for_a_node_that_configures",),
            "apps/test_warm_up.py": ("test_what_it_compiles_is_there_for_the_next_process",),
            "project/test_packaging.py": ("test_setup_compiles_once_and_again_when_a_kernel_changes",),
        },
    ),
    4: (
        "a viewer that is not installed leaves an orphaned node",
        {"ros/players/test_launch_arguments.py": ("test_packages_are_checked_before_anything_starts",)},
    ),
    5: (
        "the Rerun viewer ends the node beside NumPy 1",
        {"project/test_docker.py": ("test_python_and_numpy_fit_a_distribution",)},
    ),
    6: (
        "an interrupt during configuration is not obeyed",
        {
            "ros/node/test_ros_start.py": ("test_it_stops_while_it_compiles", "test_it_stops_while_it_imports"),
            "ros/node/test_ros_node.py": ("test_a_configuration_gives_up_when_the_process_shall_end",),
        },
    ),
    7: (
        "deaf and mute while configuring",
        {
            "ros/node/test_ros_start.py": (
                "test_it_answers_while_it_compiles",
                "test_nothing_heavy_is_imported_before_the_node_is_there",
            )
        },
    ),
    8: (
        "typos pass silently",
        {
            "ros/node/test_ros_parameters.py": ("test_unknown_parameters_are_refused_by_name",),
            "ros/players/test_launch.py": ("test_parameter_file_that_would_mean_defaults_is_refused",),
            "ros/test_ros_commands.py": ("test_typos_in_a_parameter_file_are_named",),
        },
    ),
    9: (
        "integers are refused for doubles",
        {"ros/node/test_ros_parameters.py": ("test_integers_serve_for_doubles",)},
    ),
    10: (
        "a namespace does not move the player; robots share one diagnostics name",
        {
            "ros/players/test_launch_arguments.py": ("test_the_player_is_in_the_nodes_namespace",),
            "ros/players/test_players.py": ("test_a_bag_is_played_into_the_players_namespace",),
            "ros/node/test_ros_health.py": ("test_only_the_named_node_is_read",),
            "ros/node/test_ros_two_robots.py": ("test_each_node_hears_and_answers_its_own_robot_alone",),
            "ros/node/test_live_doctor.py": ("test_each_robots_node_is_examined_by_its_own_words",),
        },
    ),
    11: (
        "the doctor suggests what nobody publishes, looks too briefly, calls a level camera tilted",
        {
            "ros/node/test_live_doctor.py": (
                "test_only_topics_that_a_driver_publishes_are_suggested",
                "test_a_node_that_is_discovered_late_is_found",
            ),
            "apps/test_checks.py": (
                "test_clutter_without_a_floor_says_nothing_about_level",
                "test_no_second_of_the_kitchen_is_called_tilted",
            ),
        },
    ),
    12: (
        "float millimetres and an output frame without transform are not told",
        {
            "ros/node/test_ros_node.py": ("test_float_millimetres_are_named_by_the_node_itself",),
            "ros/node/test_ros_outputs.py": (
                "test_no_grid_is_latched_before_there_is_one",
                "test_an_output_frame_that_nobody_publishes_is_counted_told_and_logged",
            ),
        },
    ),
    13: (
        "RViz shows a frame and topics that are not there; Foxglove cannot follow a namespace",
        {
            "ros/players/test_launch_arguments.py": (
                "test_rviz_shows_the_frame_and_the_image_that_there_are",
                "test_foxgloves_layout_follows_namespace_and_frame",
            ),
            "project/test_packaging.py": (
                "test_rviz_shows_what_the_node_publishes",
                "test_foxglove_shows_what_the_node_publishes",
            ),
        },
    ),
    14: (
        "nothing for Nav2",
        {
            "project/test_packaging.py": ("test_the_example_for_nav2_fits_the_node",),
            "ros/node/test_ros_outputs.py": (
                "test_obstacles_are_points_around_the_base",
                "test_whole_grids_and_updates_make_the_same_costmap",
                "test_a_grid_that_moved_is_sent_whole",
            ),
            "scene/test_obstacles.py": (
                "test_a_costmap_gets_what_stands_there_and_loses_what_was_taken_away",
                "test_floor_ceiling_and_far_things_are_no_obstacles",
            ),
        },
    ),
    15: (
        "arguments that other packages have; values in use; maps of another start; the set-up's last words",
        {
            "ros/players/test_launch_arguments.py": (
                "test_arguments_of_the_node",
                "test_presets_name_three_topics_that_the_node_takes",
                "test_a_missing_layout_is_named",
            ),
            "ros/node/test_ros_parameters.py": (
                "test_values_in_use_can_be_read_and_what_was_given_comes_back",
                "test_heights_of_the_grid_are_parameters",
            ),
            "ros/node/test_bond.py": ("test_a_manager_sees_the_node_live_and_let_go",),
            "scene/test_map_frame.py": ("test_a_map_that_was_put_elsewhere_takes_what_is_seen_from_there",),
            "project/test_packaging.py": ("test_setup_goes_on_from_folders_without_files",),
            "project/test_first_hour.py": ("test_the_set_up_ends_by_saying_how_to_go_on",),
        },
    ),
}


def test_every_point_has_a_number() -> None:
    assert list(POINTS) == list(range(1, 16))


@pytest.mark.parametrize("number", POINTS)
def test_every_point_has_its_tests(number: int) -> None:
    what, files = POINTS[number]
    assert files, what
    for file, names in files.items():
        functions = {
            node.name: node
            for node in ast.parse((TESTS / file).read_text(encoding="utf-8")).body
            if isinstance(node, ast.FunctionDef)
        }
        for name in names:
            assert name in functions, f"point {number} ({what}): {file}::{name} has gone"
            marks = [ast.unparse(mark) for mark in functions[name].decorator_list]
            assert not any("skip" in mark or "xfail" in mark for mark in marks), f"{file}::{name} never runs"
            assert _can_fail(functions[name]), f"{file}::{name} asserts nothing"


def _can_fail(function: ast.FunctionDef) -> bool:
    """Whether it asserts, expects an error, or waits for something, itself or by a helper."""
    waits = {"raises", "wait_until", "wait_for"}
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        name = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
        if name in waits or name.startswith("assert_"):
            return True
    return False


def test_tests_that_cannot_fail_are_seen() -> None:
    empty, real = ast.parse("def a():\n    run()\ndef b():\n    assert run()\n").body
    assert not _can_fail(empty)  # type: ignore[arg-type]
    assert _can_fail(real)  # type: ignore[arg-type]


@pytest.mark.parametrize("fits", [True, False])
def test_the_set_up_ends_by_saying_how_to_go_on(
    fits: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Point 15: an environment that is ready is of no use to who is not told to activate it."""
    spec = importlib.util.spec_from_file_location("setup_script", ROOT / ".ci" / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    setup = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(setup)
    venv = tmp_path / ".venv"
    for name in ("check_machine", "make_venv", "install_packages", "compile_kernels"):
        monkeypatch.setattr(setup, name, lambda *_: None)
    monkeypatch.setattr(setup, "wheels_fit", lambda: fits)
    monkeypatch.setattr(setup, "ros_distribution", lambda: "" if fits else "jazzy")
    monkeypatch.setattr(setup.subprocess, "run", lambda *_, **__: type("Done", (), {"returncode": 0}))
    monkeypatch.setattr(sys, "argv", ["setup.py", "--venv", str(venv)])
    monkeypatch.chdir(tmp_path)
    assert setup.main() == 0
    said = capsys.readouterr().out
    lines = said.strip().splitlines()
    first = next(i for i, line in enumerate(lines) if line.endswith("source .venv/bin/activate"))
    rest = lines[first + 1 :]  # beside a ROS installation colcon follows, in that environment
    assert all("rosdep" in line or "colcon" in line for line in rest)
    assert bool(rest) is not fits
    assert ("colcon build" in said) == (not fits)
