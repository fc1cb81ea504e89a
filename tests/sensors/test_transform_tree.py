"""TransformTree: chains against products written out by hand, and every way in which a lookup can fail."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_perceptron.geometry.transforms import (
    check_transform,
    invert_transform,
    make_transform,
    quaternion_to_rotation,
)
from embodied_perceptron.sensors.poses import (
    MAX_FRAME_NAME,
    MAX_LINKS,
    CameraPoses,
    Disconnected,
    Found,
    Gap,
    TooEarly,
    TooOld,
    TransformTree,
)

S = 1_000_000_000


def random_transform(rng: np.random.Generator) -> np.ndarray:
    q = rng.normal(size=4)
    return make_transform(quaternion_to_rotation(q / np.linalg.norm(q)), rng.normal(size=3))


def shift(x: float) -> np.ndarray:
    return make_transform(np.eye(3), np.array([x, 0.0, 0.0]))


def robot(rng: np.random.Generator) -> tuple[TransformTree, dict[str, np.ndarray]]:
    """map -> odom -> base -> (camera -> optical, laser)."""
    T = {name: random_transform(rng) for name in ("odom", "base", "camera", "optical", "laser")}
    tree = TransformTree()
    tree.insert("map", "odom", S, T["odom"])
    tree.insert("odom", "base", S, T["base"])
    tree.insert_static("base", "camera", T["camera"])
    tree.insert_static("camera", "optical", T["optical"])
    tree.insert_static("base", "laser", T["laser"])
    return tree, T


def found(answer: object) -> np.ndarray:
    assert isinstance(answer, Found), answer
    return answer.T


def test_chains_up_down_and_across() -> None:
    tree, T = robot(np.random.default_rng(1))
    expected = T["odom"] @ T["base"] @ T["camera"] @ T["optical"]
    np.testing.assert_allclose(found(tree.lookup("map", "optical", S)), expected, atol=1e-12)
    np.testing.assert_allclose(found(tree.lookup("optical", "map", S)), np.linalg.inv(expected), atol=1e-12)
    across = invert_transform(T["laser"]) @ T["camera"] @ T["optical"]
    np.testing.assert_allclose(found(tree.lookup("laser", "optical", S)), across, atol=1e-12)


def test_a_frame_in_itself_is_the_identity() -> None:
    np.testing.assert_array_equal(found(TransformTree().lookup("a", "a", 5)), np.eye(4))


def test_static_links_hold_at_every_time_and_need_no_moving_one() -> None:
    tree, T = robot(np.random.default_rng(2))
    np.testing.assert_allclose(found(tree.lookup("base", "laser", 10**15)), T["laser"])


def test_each_link_is_interpolated_by_itself() -> None:
    tree = TransformTree()
    tree.insert("odom", "base", 0, shift(0.0))
    tree.insert("odom", "base", S, shift(1.0))
    tree.insert("base", "head", 0, shift(0.0))
    tree.insert("base", "head", S // 2, shift(10.0))
    tree.insert("base", "head", S, shift(10.0))
    assert found(tree.lookup("odom", "head", S // 4))[0, 3] == pytest.approx(0.25 + 5.0)


def test_missing_stamps_are_named_with_their_link() -> None:
    tree, _ = robot(np.random.default_rng(3))
    late = tree.lookup("map", "optical", S + 1)
    assert isinstance(late, TooEarly)
    assert late.where == "'odom' -> 'base'"
    assert isinstance(tree.lookup("map", "optical", S - 1), TooOld)


def test_gap() -> None:
    tree = TransformTree(max_gap_s=0.1)
    tree.insert("a", "b", 0, np.eye(4))
    tree.insert("a", "b", S, np.eye(4))
    answer = tree.lookup("a", "b", S // 2)
    assert isinstance(answer, Gap)
    assert "'a' -> 'b'" in str(answer)


def test_disconnected_names_what_is_missing() -> None:
    tree, _ = robot(np.random.default_rng(4))
    unknown = tree.lookup("world", "optical", S)
    assert isinstance(unknown, Disconnected)
    assert "'world' is unknown" in str(unknown)
    assert "known frames: base, camera" in str(unknown)
    tree.insert_static("rig", "arm", np.eye(4))
    apart = tree.lookup("map", "arm", S)
    assert isinstance(apart, Disconnected)
    assert "'arm' is under 'rig', 'map' under 'map'" in str(apart)
    assert "known frames: none" in str(TransformTree().lookup("a", "b", 0))


def test_leading_slashes_are_the_same_frame_and_empty_names_are_refused() -> None:
    tree = TransformTree()
    tree.insert_static("/base", "/camera", shift(1.0))
    assert found(tree.lookup("base", "camera", 0))[0, 3] == 1.0
    with pytest.raises(ValueError, match="must not be empty"):
        tree.insert_static("", "camera", np.eye(4))


def test_loops_are_refused() -> None:
    tree, _ = robot(np.random.default_rng(5))
    with pytest.raises(ValueError, match="'optical' -> 'map' would close a loop"):
        tree.insert("optical", "map", S, np.eye(4))
    with pytest.raises(ValueError, match="loop"):
        tree.insert_static("base", "base", np.eye(4))
    assert tree.links["odom"] == "map"


@pytest.mark.parametrize("static", [False, True])
def test_bad_transforms_are_refused_by_name(static: bool) -> None:
    tree = TransformTree()
    bad = np.eye(4)
    bad[0, 3] = np.nan
    add = tree.insert_static if static else lambda parent, child, T: tree.insert(parent, child, 0, T)
    with pytest.raises(ValueError, match=r"transform 'a' -> 'b' has non-finite"):
        add("a", "b", bad)
    assert tree.frames == ()


def test_a_new_parent_starts_anew_and_is_counted() -> None:
    tree = TransformTree()
    tree.insert("odom", "base", S, shift(1.0))
    tree.insert("map", "base", S, shift(2.0))
    assert tree.reparented == {"base": 1}
    assert found(tree.lookup("map", "base", S))[0, 3] == 2.0
    assert isinstance(tree.lookup("odom", "base", S), Disconnected)


def test_static_replaces_moving_and_back() -> None:
    tree = TransformTree()
    tree.insert("a", "b", S, shift(1.0))
    tree.insert_static("a", "b", shift(2.0))
    assert found(tree.lookup("a", "b", 0))[0, 3] == 2.0
    tree.insert("a", "b", S, shift(3.0))
    assert found(tree.lookup("a", "b", S))[0, 3] == 3.0


def running(
    seconds: int = 2, links: tuple[tuple[str, str], ...] = (("map", "odom"), ("odom", "base"))
) -> TransformTree:
    """Links at 50 Hz from 100 s on; the receiver's clock counts from 0."""
    tree = TransformTree()
    tree.insert_static("base", "optical", shift(0.1))
    for i in range(seconds * 50):
        for parent, child in links:
            tree.insert(parent, child, 100 * S + i * S // 50, shift(1.0), i * S // 50)
    return tree


@pytest.mark.parametrize("off_s", [-2, -60, 60])
def test_one_message_of_another_time_changes_no_lookup(off_s: int) -> None:
    tree = running()
    newest = tree.latest_common_ns("map", "base")
    assert newest is not None
    tree.insert("map", "odom", newest + off_s * S, shift(9.0), 2 * S)
    assert tree.restarts == 0
    for t in range(100 * S, newest, S // 7):
        if abs(t - newest - off_s * S) > S // 50:
            np.testing.assert_allclose(found(tree.lookup("map", "optical", t)), shift(2.1))
    assert tree.latest_common_ns("map", "base") == newest, "a pose of the future is no pose"
    for i in range(100, 110):  # and time goes on
        for link in (("map", "odom"), ("odom", "base")):
            assert tree.insert(*link, 100 * S + i * S // 50, shift(1.0), i * S // 50) == "added"
    assert isinstance(tree.lookup("map", "optical", 102 * S + S // 10), Found)


def test_a_link_that_was_silent_for_minutes_counts_at_once() -> None:
    tree = running()
    assert tree.insert("map", "odom", 200 * S, shift(1.0), 100 * S) == "added"


def test_when_all_links_go_back_time_restarts_and_what_came_of_the_new_time_is_kept() -> None:
    tree = running()
    for i in range(3):
        for parent, child in (("map", "odom"), ("odom", "base")):
            tree.insert(parent, child, 2 * S + i * S // 50, shift(3.0), 3 * S + i * S // 50)
        if i == 0:
            early = tree.lookup("map", "optical", 2 * S)
            assert isinstance(early, TooEarly), f"time may be starting over, wait: {early}"
    assert tree.restarts == 1
    np.testing.assert_allclose(found(tree.lookup("map", "optical", 2 * S)), shift(6.1))
    assert isinstance(tree.lookup("map", "optical", 101 * S), TooEarly), "nothing of the old time is left"


def test_one_link_that_goes_back_alone_leaves_the_others() -> None:
    tree = running()
    for i in range(6):
        tree.insert("map", "odom", 2 * S + i * S // 50, shift(3.0), 3 * S + i * S // 50)
        tree.insert("odom", "base", 102 * S + i * S // 50, shift(1.0), 3 * S + i * S // 50)
    assert tree.restarts == 1
    assert isinstance(tree.lookup("odom", "base", 101 * S), Found)
    assert tree.latest_common_ns("map", "odom") == 2 * S + 5 * S // 50


def test_two_publishers_of_one_link_with_different_clocks_clear_nothing() -> None:
    tree = running()
    for i in range(100, 200):
        tree.insert("odom", "base", 100 * S + i * S // 50, shift(1.0), i * S // 50)
        tree.insert("odom", "base", 50 * S + i * S // 50, shift(7.0), i * S // 50)
    assert tree.restarts == 0
    np.testing.assert_allclose(found(tree.lookup("odom", "base", 103 * S)), shift(1.0))


def test_a_tree_that_starts_late_says_that_waiting_helps() -> None:
    tree = TransformTree()
    assert isinstance(tree.lookup("odom", "base", S), Disconnected)
    tree.insert_static("base", "optical", np.eye(4))
    assert isinstance(tree.lookup("odom", "optical", S), Disconnected)
    tree.insert("odom", "base", S, shift(1.0))
    assert isinstance(tree.lookup("odom", "optical", 2 * S), TooEarly)
    tree.insert("odom", "base", 3 * S, shift(1.0))
    assert isinstance(tree.lookup("odom", "optical", 2 * S), Found)


def test_a_jump_of_the_map_frame_moves_the_chain_at_once() -> None:
    tree = running()
    for i in range(100, 103):
        tree.insert("odom", "base", 100 * S + i * S // 50, shift(1.0), i * S // 50)
    tree.insert("map", "odom", 102 * S, shift(1.0), 2 * S)
    tree.insert("map", "odom", 102 * S + S // 50, shift(51.0), 2 * S + S // 50)
    assert found(tree.lookup("map", "base", 102 * S))[0, 3] == pytest.approx(2.0)
    assert found(tree.lookup("map", "base", 102 * S + S // 50))[0, 3] == pytest.approx(52.0)
    np.testing.assert_allclose(found(tree.lookup("odom", "base", 102 * S)), shift(1.0))


def test_latest_common_stamp() -> None:
    tree, _ = robot(np.random.default_rng(7))
    tree.insert("odom", "base", 3 * S, np.eye(4))
    assert tree.latest_common_ns("map", "base") == S
    assert tree.latest_common_ns("odom", "optical") == 3 * S
    assert tree.latest_common_ns("base", "optical") == 0
    assert tree.latest_common_ns("base", "nowhere") is None
    assert isinstance(tree.lookup_latest("map", "optical"), Found)
    assert isinstance(tree.lookup_latest("base", "laser"), Found)
    tree.clear_moving()
    assert tree.latest_common_ns("map", "base") is None
    assert isinstance(tree.lookup_latest("map", "optical"), TooEarly)


def test_camera_poses_uses_the_frame_of_each_camera() -> None:
    tree, T = robot(np.random.default_rng(8))
    poses = CameraPoses(tree, "odom", {"front": "optical", "laser": "laser"})
    np.testing.assert_allclose(found(poses.lookup("front", S)), T["base"] @ T["camera"] @ T["optical"], atol=1e-12)
    np.testing.assert_allclose(found(poses.lookup("laser", S)), T["base"] @ T["laser"], atol=1e-12)
    assert "images of camera 'rear' carry no frame_id" in str(poses.lookup("rear", S))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1e-6, 3e-5, 1e-3, 0.3]), st.booleans())
def test_what_is_rigid_agrees_with_matrix_algebra(seed: int, noise: float, mirrored: bool) -> None:
    """``check_transform`` is written out in plain floats; this is what it means."""
    rng = np.random.default_rng(seed)
    T = random_transform(rng)
    T[:3, :3] += rng.uniform(-noise, noise, (3, 3))
    if mirrored:
        T[:3, 0] *= -1
    R = T[:3, :3]
    off = np.abs(R @ R.T - np.eye(3)).max()
    if abs(off - 1e-4) < 1e-9:
        return  # on the edge, rounding decides
    if off > 1e-4 or np.linalg.det(R) < 0:
        with pytest.raises(ValueError, match="not a rigid transform"):
            check_transform(T)
    else:
        np.testing.assert_array_equal(check_transform(T), T)


def test_names_without_end_do_not_fill_the_memory() -> None:
    """The tree grew with every name that somebody made up."""
    tree = TransformTree()
    for i in range(MAX_LINKS):
        tree.insert_static("odom", f"frame{i}", np.eye(4))
    for insert in (tree.insert_static, lambda parent, child, T: tree.insert(parent, child, 5, T)):
        with pytest.raises(ValueError, match=r"one_more.*more than"):
            insert("odom", "one_more", np.eye(4))
    tree.insert("frame1", "frame0", 5, np.eye(4))  # known ones go on
    assert len(tree.links) == MAX_LINKS


def test_names_of_frames_have_a_limit():
    """Whoever invents frames with long names fills the memory although their number is bounded."""
    tree = TransformTree()
    longest = "x" * MAX_FRAME_NAME
    tree.insert("odom", longest, 0, np.eye(4))
    tree.insert_static("/" + "y" * MAX_FRAME_NAME, "sensor", np.eye(4))
    before = tree.frames
    for parent, child in (("odom", longest + "x"), ("y" * 3000, "arm"), ("z" * 3000, "z" * 3000)):
        with pytest.raises(
            ValueError, match=r"at most 256 characters, got (x|y|z){40}\.\.\. of \d+ characters$"
        ) as told:
            tree.insert(parent, child, 0, np.eye(4))
        assert len(str(told.value)) < 200
        with pytest.raises(ValueError, match="at most 256 characters"):
            tree.insert_static(parent, child, np.eye(4))
    assert tree.frames == before
    assert isinstance(tree.lookup("odom", "q" * 3000, 0), Disconnected)  # asking is not inventing
