"""The bridge from a map to results, with random weights: shapes, names, frames, and what is refused."""

from __future__ import annotations

import dataclasses
import math
import resource
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from support.small_networks import small_config, small_network
from support.volume_frames import R_WORLD_CAMERA, posed, wall

from embodied_perceptron.config import VolumeConfig
from embodied_perceptron.geometry.transforms import make_transform
from embodied_perceptron.inference.loading import load_network, save_network
from embodied_perceptron.inference.predictor import UNSEEN_COLOR, Predictor, viewpoint_of
from embodied_perceptron.mapping.volume import FeatureVolume
from embodied_perceptron.nn.grounding import DetectedObjects
from embodied_perceptron.nn.input_features import occupancy_origin, rgb_grid, sites_of_voxels, thin
from embodied_perceptron.nn.network import PerceptionNetwork
from embodied_perceptron.nn.presets import DECODING, Modality, network_config, with_current_decoding
from embodied_perceptron.nn.text_encoder import TextFeatures
from embodied_perceptron.sparse.tensor import SparseTensor
from embodied_perceptron.weights.checkpoint import CheckpointError, load_checkpoint, save_checkpoint

CLASSES = ("chair", "table", "lamp")
CELLS = ("floor", "wall")


class WordEncoder:
    """One token per word, its features drawn from its letters; a marker at each end."""

    channels = 384

    def encode(self, texts: Sequence[str]) -> TextFeatures:
        each = [self._spans(text[:200]) for text in texts]
        length = max(len(spans) for spans in each)
        tokens = torch.zeros(len(texts), length, 384)
        pad = torch.ones(len(texts), length, dtype=torch.bool)
        spans = torch.zeros(len(texts), length, 2, dtype=torch.int64)
        for row, (text, found) in enumerate(zip(texts, each, strict=True)):
            for k, (a, b) in enumerate(found):
                tokens[row, k] = torch.randn(384, generator=torch.Generator().manual_seed(sum(map(ord, text[a:b])) + 1))
            pad[row, : len(found)] = False
            spans[row, : len(found)] = torch.tensor(found)
        return TextFeatures(tokens, pad, tokens.mean(1), spans, tuple(max(len(text) - 200, 0) for text in texts))

    @staticmethod
    def _spans(text: str) -> list[tuple[int, int]]:
        spans, start = [(0, 0)], 0
        for word in text.split():
            start = text.index(word, start)
            spans.append((start, start + len(word)))
            start += len(word)
        return [*spans, (0, 0)]


def network(modality: Modality = "depth", task: str = "all") -> PerceptionNetwork:
    torch.manual_seed(0)
    config = network_config("tiny", task, modality=modality, num_classes=3)
    backbone = dataclasses.replace(config.backbone, stem_channels=8, channels=(8, 8, 16, 16), blocks=(1, 1, 1, 1))
    occupancy = config.occupancy and dataclasses.replace(
        config.occupancy, cells=(8, 8, 8), in_channels=8, channels=8, num_classes=2, origin_m=(-0.64, -0.64, -0.16)
    )
    detection = config.detection and dataclasses.replace(config.detection, channels=16, lateral_channels=8, keep=64)
    image = dataclasses.replace(config.image, size=(64, 64))
    config = dataclasses.replace(config, backbone=backbone, occupancy=occupancy, detection=detection, image=image)
    net = PerceptionNetwork(config)
    for name, p in net.named_parameters():  # random heads answer something; the decoder of sentences does anyway
        if p.ndim > 1 and not name.startswith("grounding."):
            torch.nn.init.normal_(p, std=0.3)
    if net.detection is not None:
        assert net.detection.classify.bias is not None
        torch.nn.init.zeros_(net.detection.classify.bias)
        net.detection.regression.kernel.data *= 0.05
    return net


def inference(modality: Modality = "depth") -> Predictor:
    return Predictor(network(modality), CLASSES, CELLS, WordEncoder())


@pytest.fixture(scope="module")
def volume() -> FeatureVolume:
    v = FeatureVolume(VolumeConfig(voxel_size_m=0.02, min_hits=1))
    for i, distance in enumerate((1.0, 1.3, 0.8)):
        v.integrate(wall(distance, 1_000_000_000 * (i + 1), x=0.05 * i))
    return v


def ground(i: Predictor, scene, text: str, phrases=(None,), viewpoint=None):
    (candidates,) = i.ground_many(scene, [(text, phrases)], viewpoint)
    return candidates


def sites_of(i: Predictor, volume: FeatureVolume, floor_z_m: float) -> SparseTensor:
    sites = volume.as_sparse_tensor(i.site_voxels(0.02), features=i.site_features, floor_z_m=floor_z_m)
    return thin(sites, i.network.config.max_sites)


def test_voxels_of_training_and_volume_give_the_same_sites(volume: FeatureVolume) -> None:
    i, s = inference(), volume.snapshot()
    c = i.network.config
    points = s.mean_point_m.astype(np.float64)
    a = sites_of_voxels(points, s.mean_color, s.hits, c.voxel_size_m, c.inputs, 0.1, c.max_sites)
    b = sites_of(i, volume, floor_z_m=0.1)
    assert torch.equal(a.keys, b.keys)
    torch.testing.assert_close(a.feats, b.feats, atol=0.51 / 255, rtol=0)
    torch.testing.assert_close(a.feats[:, 0], b.feats[:, 0], atol=2e-5, rtol=0)


def test_maps_that_do_not_fit_are_refused() -> None:
    i = inference()
    assert i.site_voxels(0.04) == 1
    with pytest.raises(ValueError, match=r"no multiple of the map's voxels of 0\.03 m"):
        i.site_voxels(0.03)
    with pytest.raises(ValueError, match="no multiple"):
        i.site_voxels(0.08)
    paper = network_config("paper", "detection", modality="depth", num_classes=3)
    paper = dataclasses.replace(
        paper, backbone=dataclasses.replace(paper.backbone, stem_channels=4, channels=(4, 4, 4, 4), blocks=(1, 1, 1, 1))
    )
    with pytest.raises(ValueError, match="paper network reads sampled points"):
        Predictor(PerceptionNetwork(paper), CLASSES).site_voxels(0.01)


def test_all_heads(volume: FeatureVolume) -> None:
    i = inference("rgbd")
    frame = wall(1.0, 1_000_000_000)
    scene = i.encode(sites_of(i, volume, 0.0), [i.view(frame)])
    found = i.detections(scene)
    assert len(found) > 0
    assert set(found.labels) <= set(CLASSES)
    assert (np.diff(found.scores) <= 0).all()
    cells = i.occupancy(scene, (0.9, 0.0, 0.0))
    assert len(cells.centers_m) > 0
    assert cells.cell_size_m == pytest.approx(0.16)
    assert cells.labels.min() >= 0
    assert cells.labels.max() < len(CELLS)
    assert ((cells.confidence > 1 / 3) & (cells.confidence <= 1)).all()  # the best of three
    np.testing.assert_allclose(cells.centers_m / 0.16 % 1.0, 0.5, atol=1e-3)
    # where something was seen it has its colour, elsewhere none
    seen = {tuple(c) for c in np.floor(volume.snapshot().mean_point_m / 0.16).astype(int).tolist()}
    of_cell = [tuple(c) in seen for c in np.floor(cells.centers_m / 0.16).astype(int).tolist()]
    assert any(of_cell)
    assert (cells.color[~np.array(of_cell)] == UNSEEN_COLOR).all()
    viewpoint = viewpoint_of(frame.T_world_camera, 0.0)
    sentence = "the lamp by the table"
    whole, lamp, table = ground(i, scene, sentence, [None, (4, 8), (16, 21)], viewpoint)
    for candidates in (whole, lamp, table):
        assert 0 < len(candidates.boxes) <= 10
        assert candidates.boxes.shape == (len(candidates.scores), 9)
        assert (np.diff(candidates.scores) <= 0).all()
        assert ((candidates.scores >= 0) & (candidates.scores <= 1)).all()
    assert not np.array_equal(lamp.scores, table.scores)
    assert whole.scores[0] >= max(lamp.scores[0], table.scores[0])  # the best of all words


def test_many_sentences_in_one_pass_are_each_answered_as_alone(volume: FeatureVolume) -> None:
    i = inference()
    scene = i.encode(sites_of(i, volume, 0.0))
    viewpoint = viewpoint_of(make_transform(R_WORLD_CAMERA, np.array([0.5, 0.2, 1.2])), 0.0)
    asked = [("the lamp beside the old table", [None, (4, 8)]), ("a chair", [(2, 7)]), ("find the small lamp", [None])]
    together = i.ground_many(scene, asked, viewpoint)
    assert [len(found) for found in together] == [2, 1, 1]
    for (text, phrases), found in zip(asked, together, strict=True):
        for one, other in zip(ground(i, scene, text, phrases, viewpoint), found, strict=True):
            assert len(one.boxes) > 0
            np.testing.assert_allclose(other.boxes, one.boxes, atol=1e-4)
            np.testing.assert_allclose(other.scores, one.scores, atol=1e-5)
    assert i.ground_many(scene, [], viewpoint) == []


def test_occupancy_colors_are_those_of_the_map() -> None:
    v = FeatureVolume(VolumeConfig(voxel_size_m=0.02, min_hits=1))
    red = np.zeros((48, 64, 3), np.uint8)
    red[..., 0] = 200
    v.integrate(posed(np.full((48, 64), 1.0, np.float32), 1_000_000_000, color=red))
    i = inference()
    scene = i.encode(sites_of(i, v, 0.0))
    cells = i.occupancy(scene, (1.0, 0.0, 0.6))
    colored = (cells.color != UNSEEN_COLOR).any(axis=1)
    assert colored.any()
    assert (cells.color[colored] == (200, 0, 0)).all()


@pytest.mark.parametrize("modality", ["depth", "rgbd", "painting"])
def test_an_empty_scene_gives_empty_results(modality: Modality) -> None:
    i = inference(modality)
    scene = i.encode(SparseTensor.from_coords(torch.zeros(0, 3, dtype=torch.long), torch.zeros(0, 8)))
    assert len(i.detections(scene)) == 0
    assert i.detections(scene).boxes.shape == (0, 9)
    i.occupancy(scene, (0.0, 0.0, 0.0))  # whatever an empty grid means to the network, it is computed
    (candidates,) = ground(i, scene, "a chair", [None], viewpoint_of(make_transform(R_WORLD_CAMERA, np.zeros(3)), 0.0))
    assert candidates.boxes.shape == (0, 9)


def test_views_that_show_nothing_change_nothing(volume: FeatureVolume) -> None:
    i = inference("rgbd")
    sites = sites_of(i, volume, 0.0)
    away = make_transform(R_WORLD_CAMERA @ np.diag([-1.0, 1.0, -1.0]), np.array([0.0, 0.0, 1.0]))
    behind = posed(np.full((48, 64), 1.0, np.float32), 1, R=away[:3, :3])
    a, b = i.encode(sites, []), i.encode(sites, [i.view(behind)])
    seen = i.encode(sites, [i.view(wall(1.0, 1))])
    for x, y in zip(a.levels, b.levels, strict=True):
        assert torch.equal(x.feats, y.feats)
    assert not torch.equal(a.levels[0].feats, seen.levels[0].feats)


def test_images_alone() -> None:
    i = inference("rgb")
    config = i.network.config
    grid = rgb_grid(config, (0.4, 0.0, 0.0))
    assert len(grid) == 8 * 8 * 8 * 8  # two sites per cell and axis
    scene = i.encode(grid, [i.view(wall(1.0, 1))])
    assert len(i.detections(scene).boxes) > 0
    cells = i.occupancy(scene, (0.0, 0.0, 0.0))
    assert (cells.color == UNSEEN_COLOR).all()
    with pytest.raises(ValueError, match="modality must be rgb for a dense grid, got depth"):
        rgb_grid(network("depth").config)


def test_windows_move_in_whole_steps() -> None:
    config = network().config
    assert occupancy_origin(config, (0.0, 0.0, 0.0)) == (-16, -16, -4)
    assert occupancy_origin(config, (0.07, -0.07, 0.08)) == (-16, -16, 0)  # halves go up
    assert occupancy_origin(config, (1.6, 0.0, 0.0)) == (24, -16, -4)
    tiny = network_config("tiny", "detection", modality="rgb")
    grid, moved = rgb_grid(tiny), rgb_grid(tiny, (1.28, 0.0, -1.28))
    assert len(grid) == tiny.max_sites == 80 * 80 * 32
    assert (moved.coords - grid.coords).unique(dim=0).tolist() == [[16, 0, -16]]
    assert (grid.coords.double().amin(0) * tiny.voxel_size_m).tolist() == pytest.approx([-3.2, -3.2, -0.8])
    for bad in ((0.0, 0.0), (math.nan, 0.0, 0.0)):
        with pytest.raises(ValueError, match="3 finite numbers"):
            occupancy_origin(config, bad)


def test_names_must_fit() -> None:
    with pytest.raises(ValueError, match="has 3 classes, but 2 names"):
        Predictor(network(), CLASSES[:2], CELLS)
    with pytest.raises(ValueError, match="given twice: chair"):
        Predictor(network(), ("chair", "lamp", "chair"), CELLS)
    with pytest.raises(ValueError, match="has 2 occupancy classes, but 0 names"):
        Predictor(network(), CLASSES)
    wide = WordEncoder()
    wide.channels = 768
    with pytest.raises(ValueError, match="reads 384 text channels, the encoder gives 768"):
        Predictor(network(), CLASSES, CELLS, wide)


def test_questions_that_cannot_be_answered(volume: FeatureVolume) -> None:
    i = inference()
    scene = i.encode(sites_of(i, volume, 0.0))
    viewpoint = viewpoint_of(make_transform(R_WORLD_CAMERA, np.zeros(3)), 0.0)
    with pytest.raises(ValueError, match="needs a viewpoint"):
        ground(i, scene, "a chair")
    with pytest.raises(ValueError, match="outside of the text of 7"):
        ground(i, scene, "a chair", [(2, 9)], viewpoint)
    with pytest.raises(ValueError, match="has no token"):
        ground(i, scene, "a chair", [(1, 2)], viewpoint)
    with pytest.raises(ValueError, match="has no token"):
        ground(i, scene, "   ", [None], viewpoint)
    with pytest.raises(ValueError, match=r"\(9000, 9005\) .* has no token; the encoder read up to 200"):
        ground(i, scene, "chair " * 2000, [(9000, 9005)], viewpoint)
    with pytest.raises(ValueError, match="has no image encoder"):
        i.view(wall(1.0, 1))
    with pytest.raises(ValueError, match="grounding head and a text encoder"):
        ground(Predictor(network(), CLASSES, CELLS), scene, "a chair")
    detector = Predictor(network(task="detection"), CLASSES)
    none = DetectedObjects(*(torch.zeros(1, 0, n) for n in (9, 1, 1)), torch.zeros(1, 0), torch.zeros(1, 0).bool())
    with pytest.raises(ValueError, match="grounds sentences among voxels"):
        detector.ground_among(none, [("a chair", [None])], viewpoint)
    with pytest.raises(ValueError, match="no occupancy"):
        detector.occupancy(scene, (0.0, 0.0, 0.0))
    with pytest.raises(ValueError, match="one scene at a time"):
        i.encode(SparseTensor.from_coords(torch.zeros(2, 3).long(), torch.zeros(2, 8), torch.tensor([0, 1])))


def test_large_inputs_are_thinned_the_same_way_every_time() -> None:
    i = inference()
    i.network.config = dataclasses.replace(i.network.config, max_sites=50)
    generator = torch.Generator().manual_seed(0)
    coords = torch.unique(torch.randint(0, 40, (300, 3), generator=generator), dim=0)
    x = SparseTensor.from_coords(coords, torch.rand(len(coords), 8, generator=generator))
    scene = i.encode(x)
    assert torch.equal(scene.sites.keys, thin(x, 50).keys)
    assert len(scene.sites) == 50


def pitched(angle_rad: float, yaw_rad: float) -> np.ndarray:
    """A camera with this heading, its view raised by an angle."""
    c, s = math.cos(angle_rad), math.sin(angle_rad)
    cy, sy = math.cos(yaw_rad), math.sin(yaw_rad)
    lift = np.array([[c, 0, -s], [0, 1, 0], [s, 0, c]])
    turn = np.array([[cy, -sy, 0], [sy, cy, 0], [0, 0, 1]])
    return np.asarray(turn @ lift @ R_WORLD_CAMERA)


@pytest.mark.parametrize("yaw", [0.0, 1.2, -3.0])
@pytest.mark.parametrize("pitch", [0.0, 0.7, -1.2, math.pi / 2, -math.pi / 2])
def test_viewpoint_is_gravity_aligned(pitch: float, yaw: float) -> None:
    """The heading goes through looking straight up or down without a jump."""
    v = viewpoint_of(make_transform(pitched(pitch, yaw), np.array([1.0, 2.0, 1.5])), 0.25)
    assert v.origin_m.tolist() == [[1.0, 2.0, 0.25]]
    assert v.yaw_rad.item() == pytest.approx(yaw, abs=1e-5)


def test_networks_as_files(tmp_path: Path, volume: FeatureVolume) -> None:
    net = network()
    save_network(tmp_path / "w.safetensors", net, CLASSES, {"steps": 3}, half=False)
    loaded, classes = load_network(tmp_path / "w.safetensors")
    assert classes == CLASSES
    assert loaded.config == net.config
    assert not loaded.training
    i, j = Predictor(net, CLASSES, CELLS), Predictor(loaded, classes, CELLS)
    sites = sites_of(i, volume, 0.0)
    a, b = i.detections(i.encode(sites)), j.detections(j.encode(sites))
    np.testing.assert_array_equal(a.boxes, b.boxes)
    assert a.labels == b.labels
    save_network(tmp_path / "h.safetensors", net, CLASSES)
    assert (tmp_path / "h.safetensors").stat().st_size < 0.65 * (tmp_path / "w.safetensors").stat().st_size
    half, _ = load_network(tmp_path / "h.safetensors")
    for (name, x), y in zip(net.state_dict().items(), half.state_dict().values(), strict=True):
        assert x.dtype == y.dtype
        torch.testing.assert_close(x, y, atol=1e-3, rtol=1e-3, msg=name)


def test_files_whose_parts_do_not_fit(tmp_path: Path) -> None:
    net, path = network(), tmp_path / "w.safetensors"
    with pytest.raises(ValueError, match="3 classes, but 1 names"):
        save_network(path, net, ("chair",))
    save_network(path, net, CLASSES)
    saved = load_checkpoint(path)
    save_checkpoint(path, dataclasses.replace(saved, classes=("chair",)))
    with pytest.raises(CheckpointError, match=r"w\.safetensors: the network has 3 classes, but 1 names"):
        load_network(path)
    save_checkpoint(path, dataclasses.replace(saved, config={**saved.config, "depth": 3}))
    with pytest.raises(CheckpointError, match=r"unknown key.* depth"):
        load_network(path)
    config = {**saved.config, "detection": {**saved.config["detection"], "channels": 24}}
    save_checkpoint(path, dataclasses.replace(saved, config=config))
    with pytest.raises(CheckpointError, match="does not fit this network; of another shape: detection"):
        load_network(path)


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("backbone", {"channels": [10**5] * 4}),
        ("backbone", {"blocks": [10**12, 1, 1, 1]}),
        ("backbone", {"blocks": [10**6, 1, 1, 1]}),
        ("detection", {"channels": 10**8}),
        ("detection", {"channels": 10**5}),
        ("occupancy", {"cell_size_m": float("nan")}),
        ("detection", {"channels": -3}),
        ("occupancy", {"levels": 10**9}),
    ],
)
def test_networks_larger_than_their_weights_take_no_memory(
    tmp_path: Path, part: str, changes: dict[str, object]
) -> None:
    path = tmp_path / "w.safetensors"
    save_network(path, network(), CLASSES)
    saved = load_checkpoint(path)
    config = {**saved.config, part: {**saved.config[part], **changes}}
    save_checkpoint(path, dataclasses.replace(saved, config=config))
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match=r"w\.safetensors"):
        load_network(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 500_000


def test_files_are_decoded_as_their_preset_decodes_today(tmp_path: Path) -> None:
    current = network_config("tiny").detection
    config = small_config("detection")
    assert config.detection is not None
    assert current is not None
    older = dataclasses.replace(
        config, detection=dataclasses.replace(config.detection, iou_threshold=0.9, min_score=0.3)
    )
    save_network(tmp_path / "older.safetensors", small_network(older), tuple("abcd"))
    read, _ = load_network(tmp_path / "older.safetensors")
    decoded = read.config.detection
    assert decoded is not None
    assert [getattr(decoded, name) for name in DECODING] == [getattr(current, name) for name in DECODING]
    assert dataclasses.replace(decoded, **{n: getattr(config.detection, n) for n in DECODING}) == config.detection
    official = dataclasses.replace(older, official=True)
    assert with_current_decoding(official) is official
    nothing = dataclasses.replace(older, detection=None)
    assert with_current_decoding(nothing) is nothing
