"""What the paper's tables compare with: each variant answers, learns in all of its parts, and is what it says."""

from __future__ import annotations

import pytest
import torch
from support.small_networks import hash_lookup, sentence, small_config, small_network, small_scene, viewer

from embodied_perceptron.nn.baselines import ScanReferHead, UNetDecoder, VotingHead
from embodied_perceptron.nn.detection import decode_detections
from embodied_perceptron.nn.network import PerceptionNetwork
from embodied_perceptron.nn.presets import NetworkConfig, compared, network_config


def config_of(variant: str, preset: str = "tiny") -> NetworkConfig:
    modality = {"imvoxelnet": "rgb", "minkunet": "rgbd"}.get(variant, "depth")
    return compared(small_config("detection", modality, preset), variant)  # type: ignore[arg-type]


@pytest.mark.parametrize("preset", ["tiny", "paper"])
@pytest.mark.parametrize("variant", ["votenet", "imvoxelnet", "fcaf3d", "minkunet"])
def test_a_detector_answers_and_learns_everywhere(variant: str, preset: str) -> None:
    config = config_of(variant, preset)
    network = small_network(config).train()
    channels = network.image_channels[0] if config.modality == "rgb" else network.backbone.config.in_channels
    scene = small_scene(channels=channels, count=3000, extent=60 if preset == "tiny" else 120)
    lookup = hash_lookup(network) if config.uses_images else None
    out = network.detect(network.encode(scene, lookup))
    (found,) = decode_detections(out.levels, min_score=0.0)
    assert len(found.boxes) > 0
    assert bool(torch.isfinite(found.boxes).all())
    said = [x.sum() for level in out.levels for x in (level.geometry, level.class_logits)]
    votes = [level.votes.offsets_m.sum() for level in out.levels if level.votes is not None]
    assert bool(votes) == (variant == "votenet")
    torch.stack([*said, *votes]).sum().backward()
    idle = [n for n, p in network.named_parameters() if p.grad is None and not n.startswith("image")]
    assert not idle, idle


def test_votes_that_say_nothing_are_the_sites_themselves() -> None:
    network = PerceptionNetwork(config_of("votenet")).eval()
    levels = network.encode(small_scene(count=2000, extent=60))
    assert isinstance(network.detection, VotingHead)
    (level,), (features,) = network.detection(levels)
    assert torch.equal(level.sites.keys, levels[VotingHead.seeds].keys)
    assert len(features) == len(level.points_m)
    # all sites vote for one place: they meet in its cell
    last = network.detection.vote[-1]
    assert level.votes is not None
    middle = level.votes.points_m.mean(0)

    class Middle(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([middle - level.votes.points_m, torch.zeros(len(x), last.out_features - 3)], 1)  # type: ignore[union-attr]

    network.detection.vote = torch.nn.Sequential(Middle())
    (met,), _ = network.detection(levels)
    assert len(met.points_m) == 1
    edge_m = levels[0].stride * network.config.voxel_size_m
    assert bool(((met.points_m[0] - middle).abs() <= edge_m).all())


def test_a_unet_brings_what_coarse_levels_saw_to_fine_ones() -> None:
    torch.manual_seed(0)
    decoder = UNetDecoder((4, 6, 8)).eval()
    network = small_network(small_config("detection"))
    levels = network.backbone(small_scene())[:3]
    levels = [x.replace(torch.rand(len(x), c)) for x, c in zip(levels, (4, 6, 8), strict=True)]
    plain = decoder(levels)
    assert [x.sites is y.sites for x, y in zip(plain, levels, strict=True)] == [True] * 3
    assert plain[2] is levels[2]
    other = decoder([*levels[:2], levels[2].replace(levels[2].feats + 1.0)])
    assert not torch.allclose(other[0].feats, plain[0].feats)


@pytest.mark.parametrize("variant", ["scanrefer", "butd-detr"])
def test_a_matcher_answers_and_learns_everywhere(variant: str) -> None:
    config = compared(small_config("grounding", "depth"), variant)  # type: ignore[arg-type]
    network = small_network(config).train()
    levels = network.encode(small_scene(count=1500, extent=60))
    candidates = network.candidates(levels, network.detect(levels))
    tokens, pad = sentence(2)
    out = network.ground(candidates, tokens, pad, viewer())
    assert out.logits.shape[:2] == ((1, 2) if variant == "scanrefer" else (config.grounding.layers, 2))  # type: ignore[union-attr]
    assert network.grounding is not None
    out.logits[torch.isfinite(out.logits)].sum().backward()
    if variant == "scanrefer":
        assert isinstance(network.grounding.head, ScanReferHead)
        shares = out.log_shares[0, 0, 1:].softmax(0)  # type: ignore[attr-defined]
        assert torch.allclose(shares[:, :1].expand_as(shares), shares, atol=1e-5)  # every word fits a thing alike
        assert network.grounding.head.match[0].weight.grad is not None


def test_matchers_differ_in_what_they_know_of_pairs() -> None:
    """BUTD-DETR's answer does not change when what one thing is to the others does."""
    scores = {}
    for variant in ("ours", "butd-detr"):
        network = small_network(compared(small_config("grounding", "depth"), variant))  # type: ignore[arg-type]
        head = network.grounding.head  # type: ignore[union-attr]
        boxes = torch.tensor([[0.0, 0, 0.5, 1, 1, 1, 0, 0, 0], [2.0, 0, 0.5, 1, 1, 1, 0, 0, 0]])[None]
        scores[variant] = float(head._pairs(boxes).detach().abs().max())
    assert scores["butd-detr"] == 0.0 < scores["ours"]


def test_variants_that_do_not_fit_are_named() -> None:
    depth = small_config("detection")
    with pytest.raises(ValueError, match="imvoxelnet needs modality rgb, got depth"):
        compared(depth, "imvoxelnet")
    with pytest.raises(ValueError, match="scanrefer needs grounding of detected objects"):
        compared(depth, "scanrefer")
    with pytest.raises(ValueError, match="votenet is a detector"):
        compared(small_config("occupancy"), "votenet")
    voxels = small_config("grounding", "rgbd", "paper")
    with pytest.raises(ValueError, match="butd-detr needs grounding of detected objects"):
        compared(voxels, "butd-detr")
    assert compared(depth, "ours") == depth
    with pytest.raises(ValueError, match="no-fpn needs occupancy with an image pyramid"):
        compared(depth, "no-fpn")


@pytest.mark.parametrize("variant", ["votenet", "fcaf3d", "imvoxelnet"])
def test_baselines_predict_euler_angles(variant: str) -> None:
    """Appendix A.2: each starts with an L1 loss on the cosines of Euler angles."""
    detection = config_of(variant, "paper").detection
    assert detection is not None
    assert detection.rotation == "euler"


@pytest.mark.parametrize(
    ("modality", "variant", "width"),
    # Table 12: 512 channels of the last level, 256 of the images at the cells; MinkUNet reads its first level's 64
    [("rgbd", "ours", 768), ("painting", "ours", 512), ("rgbd", "no-fpn", 768), ("rgbd", "minkunet", 320)],
)
def test_dense_fusion_of_the_paper(modality: str, variant: str, width: int) -> None:
    config = compared(network_config("paper", "occupancy", modality), variant)  # type: ignore[arg-type]
    assert config.occupancy is not None
    cell_m = config.backbone.strides[config.occupancy_level()] * config.voxel_size_m
    assert cell_m == pytest.approx(0.16)
    with torch.device("meta"):
        network = PerceptionNetwork(config)
    assert network.occupancy is not None
    assert network.occupancy.pyramid.down[0].conv1.in_channels == 768
    project = network.occupancy.project
    assert (project.in_features if isinstance(project, torch.nn.Linear) else 768) == width
    assert (type(network.image_encoder).__name__ == "PyramidEncoder") == (variant != "no-fpn")
    assert network.backbone.config.in_channels == (3 + 256 if modality == "painting" else 3)
