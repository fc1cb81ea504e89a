"""From a map to named results: one trained network with its vocabulary. No ROS, no training code.

    predictor = Predictor(network, classes, text_encoder=...)
    scene = predictor.encode(sites, [predictor.view(frame) for frame in frames])
    predictor.detections(scene)                   boxes with names, all nine degrees
    predictor.occupancy(scene, anchor_m)          labelled cells
    predictor.ground(scene, sentence, phrases)    candidates per phrase

All arithmetic is the network's (:class:`~embodied_perceptron.nn.network.PerceptionNetwork`); names, numpy and the
wall-aligned frame are added here. Everything runs without gradients; one instance serves one thread.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embodied_perceptron.config import EVERY_SCORE, ScorePolicy
from embodied_perceptron.geometry.boxes import canonical_boxes
from embodied_perceptron.geometry.manhattan import WORLD, ManhattanFrame, Region
from embodied_perceptron.geometry.suppression import PHRASE_NMS_IOU, nms
from embodied_perceptron.geometry.transforms import check_transform
from embodied_perceptron.inference.naming import USUAL, Naming
from embodied_perceptron.nn.grounding import DetectedObjects, GroundingOutput
from embodied_perceptron.nn.input_features import SITE_FEATURES, SiteFeature, occupancy_origin, thin
from embodied_perceptron.nn.network import (
    ImageLookup,
    ObjectGroundingBranch,
    PerceptionNetwork,
    PreparedEncoder,
    SharedFeatures,
    Viewpoint,
)
from embodied_perceptron.nn.occupancy import color_sums, decode_cells, decode_filled
from embodied_perceptron.nn.presets import NetworkConfig
from embodied_perceptron.nn.text_encoder import TextEncoder, TextFeatures, tokens_between
from embodied_perceptron.nn.view_fusion import View, view_projection
from embodied_perceptron.results import UNNAMED, Detections, SemanticVoxels
from embodied_perceptron.sensors.frame import PosedFrame
from embodied_perceptron.sparse.tensor import SparseTensor

UNSEEN_COLOR = 128  # of cells that the network fills in where nothing was seen


@dataclass(frozen=True, eq=False)
class SceneFeatures(SharedFeatures):
    """What the heads share about one scene.

    Attributes:
        manhattan: the wall-aligned frame that the sites stand on; results are in the world again.
    """

    manhattan: ManhattanFrame = WORLD


class Predictor:
    """A network with its vocabulary.

    Args:
        network: any modality; switched to evaluation mode.
        classes: names of the detection classes, in the order of the logits.
        occupancy_classes: names of the occupancy classes, label 1 first; needed where there is an occupancy head.
        text_encoder: needed for grounding.
        image_encoder: runs in place of the network's own (ONNX Runtime); its maps are still projected by the network.
        feature_dtype: of the image features that :meth:`view` gives.
        calibration: what the weights file says about its scores.
        scores: which scores count for what, for those who keep objects; :meth:`detections` gives all boxes.
        naming: which things go without a name, for a network that knows presence; None keeps the boxes of both kinds.
        spare: the same network on the CPU, for the day on which its device is lost with all that it holds.

    Raises ``ValueError`` when names do not fit the network.
    """

    def __init__(
        self,
        network: PerceptionNetwork,
        classes: Sequence[str],
        occupancy_classes: Sequence[str] = (),
        text_encoder: TextEncoder | None = None,
        *,
        image_encoder: PreparedEncoder | None = None,
        feature_dtype: torch.dtype = torch.float16,
        calibration: Mapping[str, Any] | None = None,
        scores: ScorePolicy = EVERY_SCORE,
        naming: Naming | None = USUAL,
        spare: PerceptionNetwork | None = None,
    ) -> None:
        config = network.config
        check_classes(config, tuple(classes))
        if config.occupancy is not None and len(occupancy_classes) != config.occupancy.num_classes:
            raise ValueError(
                f"the network has {config.occupancy.num_classes} occupancy classes, but {len(occupancy_classes)} names "
                "are given"
            )
        wanted = config.grounding.text_channels if config.grounding is not None else 0
        if wanted and text_encoder is not None and text_encoder.channels != wanted:
            raise ValueError(f"the network reads {wanted} text channels, the encoder gives {text_encoder.channels}")
        self.network = network.eval()
        self.classes = tuple(classes)
        self.occupancy_classes = tuple(occupancy_classes)
        self.text_encoder = text_encoder
        self.feature_dtype = feature_dtype
        self.calibration = dict(calibration or {})
        self.scores = scores
        self.naming = naming
        self._spare = spare
        self._image_encoder = image_encoder

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.network.parameters()).device

    def use_cpu(self) -> None:
        """Go on on the CPU: the device has failed."""
        self.network = self.network.cpu() if self._spare is None else self._spare.eval()
        use_cpu = getattr(self.text_encoder, "use_cpu", None)
        if use_cpu is not None:
            use_cpu()

    # --------------------------------------------------------------------------------------------------------- inputs

    def site_voxels(self, voxel_size_m: float) -> int:
        """How many map voxels make the edge of an input site; for ``FeatureVolume.as_sparse_tensor``.

        Raises ``ValueError`` when that is no whole number, or the network does not read maps (``paper``: sampled
        points, see :func:`~embodied_perceptron.nn.input_features.input_from_points`).
        """
        config = self.network.config
        if config.inputs == "xyz":
            raise ValueError(f"a {config.name} network reads sampled points ({config.inputs}), not the map")
        ratio = config.voxel_size_m / voxel_size_m
        if round(ratio) < 1 or abs(ratio - round(ratio)) > 1e-6:
            raise ValueError(
                f"sites of {config.voxel_size_m} m are no multiple of the map's voxels of {voxel_size_m} m: choose "
                "another volume.voxel_size_m, or no network (network.weights: '')"
            )
        return round(ratio)

    @property
    def site_features(self) -> tuple[SiteFeature, ...]:
        """Names of the input columns; for ``FeatureVolume.as_sparse_tensor``."""
        return SITE_FEATURES[self.network.config.inputs]

    @torch.inference_mode()
    def view(self, posed: PosedFrame, dtype: torch.dtype | None = None) -> View:
        """The image features of one frame, to be kept as long as the frame counts; ``dtype``: default the instance's.

        Features and depth are on the network's device. Raises ``ValueError`` for a network that sees no images.
        """
        dtype = self.feature_dtype if dtype is None else dtype
        size, frame = self.network.config.image.size, posed.frame
        colors = torch.from_numpy(np.ascontiguousarray(frame.color))[None]
        half = dtype == torch.float16 and self.device.type == "cuda"  # no more precision than will be kept
        maps = self.network.encode_images(colors, size, self._image_encoder, half)
        return View(
            projection=view_projection(posed.T_world_camera, frame.intrinsics, size),
            image_size=size,
            levels=tuple(m[0].permute(1, 2, 0).contiguous().to(dtype) for m in maps),
            depth_m=torch.from_numpy(np.array(frame.depth_m, dtype=np.float32)).to(self.device),
        )

    # ---------------------------------------------------------------------------------------------------------- heads

    @torch.inference_mode()
    def encode(
        self,
        sites: SparseTensor,
        views: Sequence[View] | ImageLookup = (),
        manhattan: ManhattanFrame = WORLD,
        on_levels: Callable[[SceneFeatures], None] | None = None,
    ) -> SceneFeatures:
        """Backbone, fusion and detection neck over one scene.

        Args:
            sites: one sample at stride 1; thinned to the preset's ``max_sites``.
            views: what the images show; none is allowed (features are then zero). Or a lookup over a live map
                (:class:`~embodied_perceptron.mapping.image_features.StreamingLookup`). Projections are of the
                ``manhattan``
                frame.
            manhattan: the wall-aligned frame of the sites.
            on_levels: called as soon as all is there that :meth:`occupancy` reads, before the neck.
        """
        if sites.batch_size != 1:
            raise ValueError(f"inference is for one scene at a time, got {sites.batch_size}")
        config = self.network.config
        if config.modality != "rgb":
            sites = thin(sites, config.max_sites)
        lookup: ImageLookup | None = None
        if config.uses_images:
            lookup = views if callable(views) else self.network.lookup([views])

        def scene(shared: SharedFeatures) -> SceneFeatures:
            return SceneFeatures(**vars(shared), manhattan=manhattan)

        hook = None if on_levels is None else lambda shared: on_levels(scene(shared))
        return scene(self.network(sites, lookup, on_levels=hook))

    @torch.inference_mode()
    def detections(self, scene: SceneFeatures, min_score: float = 0.0) -> Detections:
        """Boxes that score more than ``min_score``, best first, with their names; of a network that knows presence also
        things without one, by the name :data:`~embodied_perceptron.results.UNNAMED`.

        Raises ``ValueError`` for a network without detection.
        """
        return self.select(self.boxes(scene, min_score))

    def select(self, found: Detections) -> Detections:
        """Of :meth:`boxes`, those that :meth:`detections` gives."""
        return found if self.naming is None else self.naming.select(found)

    @torch.inference_mode()
    def boxes(self, scene: SceneFeatures, min_score: float = 0.0) -> Detections:
        """As :meth:`detections`, before it is told which things go without a name: a box of every name that a thing may
        have, and one of the thing as such."""
        (found,) = self.network.boxes(scene, min_score)
        names = (*self.classes, UNNAMED)
        return Detections(
            scene.manhattan.boxes_to_world(found.boxes.double().numpy()),
            np.clip(found.scores.double().numpy(), 0.0, 1.0),
            tuple(names[i] for i in found.labels.numpy()),
        )

    @torch.inference_mode()
    def occupancy(self, scene: SceneFeatures, anchor_m: Sequence[float]) -> SemanticVoxels:
        """Cells that are not empty, with label and confidence; ``anchor_m`` in the wall-aligned frame: see
        :func:`occupancy_origin`. A cell of the world has the label of the wall-aligned cell at its centre.

        Raises ``ValueError`` for a network without occupancy.
        """
        config = self.network.config
        origin = occupancy_origin(config, anchor_m)
        assert config.occupancy is not None
        (logits,) = self.network.occupy(scene.levels, origin, scene.lookup, scales=1)
        level = scene.levels[config.occupancy_level()]
        where = level.stride, origin, config.occupancy.cells
        if level.sites.compiled:
            filled, labels, confidence = decode_filled(logits[0])
            colors = self._colors(scene.sites, *where)[tuple(filled.unbind(1))]
        else:  # all cells, by one copy
            label, sure = decode_cells(logits[0])
            every = torch.cat([label[..., None], sure[..., None], self._colors(scene.sites, *where)], -1).cpu()
            filled = torch.from_numpy(np.argwhere(every[..., 0].numpy() > 0))
            labels, confidence, *rgb = every[tuple(filled.unbind(1))].unbind(1)
            colors = torch.stack(rgb, 1)
        size_m, first = config.occupancy.cell_size_m, np.array(origin) // level.stride
        cells, rows = scene.manhattan.world_cells(filled.numpy() + first, size_m)
        return SemanticVoxels(
            cell_size_m=size_m,
            centers_m=((cells + 0.5) * size_m).astype(np.float32),
            color=colors.to(torch.uint8).numpy()[rows],
            labels=(labels - 1).int().numpy()[rows],
            confidence=confidence.float().numpy()[rows],
            classes=self.occupancy_classes,
        )

    def _colors(self, sites: SparseTensor, stride: int, origin: Sequence[int], cells: Sequence[int]) -> Tensor:
        """(X, Y, Z, 3) mean colour of the input sites in each cell of the grid, whole numbers up to 255."""
        if not self.network.config.reads_map:
            return sites.feats.new_full((*cells, 3), UNSEEN_COLOR)
        total = color_sums(sites.sites, sites.feats[:, 1:4], stride, origin, cells).view(*cells, 4)
        colors = (total[..., :3] / total[..., 3:].clamp(min=1.0) * 255.0).round_().clamp_(0, 255)
        return colors.masked_fill_(total[..., 3:] == 0, UNSEEN_COLOR)

    @torch.inference_mode()
    def ground(
        self,
        scene: SceneFeatures,
        text: str,
        phrases: Sequence[tuple[int, int] | None] = (None,),
        viewpoint: Viewpoint | None = None,
        limit: int = 10,
        iou_threshold: float = PHRASE_NMS_IOU,
    ) -> list[PhraseCandidates]:
        """Candidates for each phrase of a sentence.

        Args:
            scene: of :meth:`encode`.
            text: the sentence.
            phrases: [start, end) characters of an object phrase each; a query scores by the mean probability of the
                phrase's tokens. None = the sentence as a whole, by the best of all tokens.
            viewpoint: who speaks, in the world (:func:`viewpoint_of`); unless the preset reads world coordinates.
            limit: candidates per phrase.
            iou_threshold: of two candidates that overlap more, the better stays.

        A scene without any voxel has no candidates. Raises ``ValueError`` for a phrase outside of the text or without
        any token (blank, or behind the end of what the encoder reads), for a blank text, and when the network has no
        grounding or no text encoder is given.
        """
        (found,) = self.ground_many(scene, [(text, phrases)], viewpoint, limit, iou_threshold)
        return found

    @torch.inference_mode()
    def ground_many(
        self,
        scene: SceneFeatures,
        sentences: Sentences,
        viewpoint: Viewpoint | None = None,
        limit: int = 10,
        iou_threshold: float = PHRASE_NMS_IOU,
    ) -> list[list[PhraseCandidates]]:
        """:meth:`ground` for many sentences of one speaker in one pass: (text, phrases) -> candidates per phrase."""
        if not sentences:
            return []
        features, named = self._read(sentences)
        if sum(len(level) for level in scene.levels) == 0:
            return no_candidates(sentences)
        device = scene.sites.device
        if viewpoint is not None:
            viewpoint = _from_world(viewpoint, scene.manhattan)
        candidates = self.network.candidates(scene.levels, scene.detection)
        out = self.network.ground(candidates, features.tokens.to(device), features.pad.to(device), viewpoint)
        return ranked(out, sentences, named, limit, iou_threshold, scene.manhattan)

    @property
    def grounds_objects(self) -> bool:
        """Whether sentences choose among detected objects: then those of several windows can be joined."""
        return isinstance(self.network.grounding, ObjectGroundingBranch)

    @torch.inference_mode()
    def objects(self, scene: SceneFeatures, within: Region | None = None) -> DetectedObjects:
        """Objects that sentences choose among, in the world; only those centred ``within`` a region are valid.

        Raises ``ValueError`` unless :attr:`grounds_objects`.
        """
        found = self.network.candidates(scene.levels, scene.detection)
        if not isinstance(found, DetectedObjects):
            raise ValueError("this network grounds sentences among voxels")
        boxes = scene.manhattan.boxes_to_world(found.boxes[0].double().cpu().numpy())
        valid = found.valid
        if within is not None:
            valid = valid & torch.from_numpy(within.contains(boxes[:, :3])).to(valid.device)
        return dataclasses.replace(found, boxes=torch.from_numpy(boxes[None]).to(found.boxes), valid=valid)

    @torch.inference_mode()
    def ground_among(
        self,
        objects: DetectedObjects,
        sentences: Sentences,
        viewpoint: Viewpoint,
        limit: int = 10,
        iou_threshold: float = PHRASE_NMS_IOU,
    ) -> list[list[PhraseCandidates]]:
        """:meth:`ground_many` among objects of :meth:`objects`, of one scene. Raises alike."""
        if not self.grounds_objects:
            raise ValueError("this network grounds sentences among voxels")
        if not sentences:
            return []
        features, named = self._read(sentences)
        if not bool(objects.valid.any()):
            return no_candidates(sentences)
        device = objects.boxes.device
        speaker = Viewpoint(viewpoint.origin_m.to(device), viewpoint.yaw_rad.to(device))
        out = self.network.ground(objects, features.tokens.to(device), features.pad.to(device), speaker)
        return ranked(out, sentences, named, limit, iou_threshold, WORLD)

    def _read(self, sentences: Sentences) -> tuple[TextFeatures, list[list[Tensor]]]:
        """Tokens of each sentence, and which of them name each of its phrases."""
        if self.network.grounding is None or self.text_encoder is None:
            raise ValueError("grounding needs a grounding head and a text encoder")
        features = self.text_encoder.encode([text for text, _ in sentences])
        return features, phrase_tokens(features.spans, sentences)


def _from_world(viewpoint: Viewpoint, manhattan: ManhattanFrame) -> Viewpoint:
    """World -> manhattan."""
    R = torch.from_numpy(manhattan.T_world_manhattan[:3, :3]).to(viewpoint.origin_m)
    return Viewpoint(viewpoint.origin_m @ R, viewpoint.yaw_rad - manhattan.yaw_rad)


def viewpoint_of(T_world_camera: NDArray[np.floating[Any]], floor_z_m: float) -> Viewpoint:
    """The gravity-aligned frame of who looks through a camera (optical frame: z forward, y down).

    On the floor below the camera, x along the heading. When the camera looks straight down, the heading is where the
    upper edge of its image points to; straight up, the lower edge.
    """
    T = check_transform(T_world_camera, "T_world_camera")
    forward, up = T[:3, 2], -T[:3, 1]
    level = forward if math.hypot(forward[0], forward[1]) > 1e-3 else up * (-1.0 if forward[2] > 0 else 1.0)
    yaw = math.atan2(level[1], level[0])
    origin = torch.tensor([[T[0, 3], T[1, 3], floor_z_m]], dtype=torch.float32)
    return Viewpoint(origin, torch.tensor([yaw], dtype=torch.float32))


def check_classes(config: NetworkConfig, classes: tuple[str, ...]) -> None:
    """Raise ``ValueError`` unless there is one distinct name per class of the network."""
    if len(classes) != config.num_classes:
        raise ValueError(f"the network has {config.num_classes} classes, but {len(classes)} names are given")
    twice = sorted({name for name in classes if classes.count(name) > 1})
    if twice:
        raise ValueError(f"class names must differ, given twice: {', '.join(twice)}")


# --------------------------------------------------------------------------------------------------------------------
# Phrases of sentences: the tokens that name them, and their candidates from the grounding decoder's output.

Phrase: TypeAlias = "tuple[int, int] | None"  # [start, end) characters; None = the sentence as a whole
Sentences: TypeAlias = Sequence[tuple[str, Sequence[Phrase]]]  # each with its phrases


@dataclass(frozen=True, eq=False)
class PhraseCandidates:
    """Where one phrase of a sentence may be, best first.

    Attributes:
        phrase: of the sentence.
        boxes: (K, 9) float64, world frame, in canonical form (:func:`~..geometry.boxes.upright_boxes`).
        scores: (K,) float64 in [0, 1].
    """

    phrase: Phrase
    boxes: NDArray[np.float64]
    scores: NDArray[np.float64]

    def __post_init__(self) -> None:
        object.__setattr__(self, "boxes", canonical_boxes(self.boxes))


def phrase_tokens(spans: Sequence[Tensor] | Tensor, sentences: Sentences) -> list[list[Tensor]]:
    """(T,) bool for each phrase of each sentence: the tokens that name it; ``spans`` (S, T, 2) characters of tokens.

    Raises ``ValueError`` for a phrase outside of its text or without any token.
    """
    return [
        [_tokens(own, phrase, text) for phrase in phrases]
        for own, (text, phrases) in zip(spans, sentences, strict=True)
    ]


def _tokens(spans: Tensor, phrase: Phrase, text: str) -> Tensor:
    """(T,) bool tokens of a phrase; ``spans`` (T, 2)."""
    start, end = (0, len(text)) if phrase is None else phrase
    if not 0 <= start <= end <= len(text):
        raise ValueError(f"phrase {phrase} is outside of the text of {len(text)} characters")
    tokens = tokens_between(spans, start, end)
    if not bool(tokens.any()):
        shown = text[start : min(end, start + 40)]
        raise ValueError(f"phrase {(start, end)} {shown!r} has no token; the encoder read up to {int(spans.max())}")
    return tokens


def no_candidates(sentences: Sentences) -> list[list[PhraseCandidates]]:
    """For a scene that holds nothing."""
    return [[PhraseCandidates(p, np.zeros((0, 9)), np.zeros(0)) for p in phrases] for _, phrases in sentences]


def ranked(
    out: GroundingOutput,
    sentences: Sentences,
    named: Sequence[Sequence[Tensor]],
    limit: int,
    iou_threshold: float,
    manhattan: ManhattanFrame,
) -> list[list[PhraseCandidates]]:
    """The decoder's output as candidates for each phrase of each sentence, best first; boxes from ``manhattan`` to the
    world.

    Args:
        out: of the decoder, one row per sentence.
        sentences, named: with their phrases, and the tokens of each (:func:`phrase_tokens`).
        limit: candidates per phrase.
        iou_threshold: of two candidates that overlap more, the better stays.
        manhattan: wall-aligned frame of the decoder's boxes.
    """
    results = []
    for row, ((_, phrases), tokens) in enumerate(zip(sentences, named, strict=True)):
        valid = out.query_valid[row]
        boxes, probability = out.boxes[-1, row][valid], out.logits[-1, row][valid].sigmoid()  # (Q, 9), (Q, T)
        results.append(
            [
                _candidates(phrase, boxes, probability[:, words.to(boxes.device)], limit, iou_threshold, manhattan)
                for phrase, words in zip(phrases, tokens, strict=True)
            ]
        )
    return results


def _candidates(
    phrase: Phrase, boxes: Tensor, words: Tensor, limit: int, iou_threshold: float, manhattan: ManhattanFrame
) -> PhraseCandidates:
    """(Q, 9) boxes and (Q, W) probabilities of the phrase's tokens -> what remains, best first."""
    scores = words.amax(1) if phrase is None else words.mean(1)
    keep = nms(boxes, scores, torch.zeros_like(scores, dtype=torch.int64), iou_threshold)[:limit]
    there = manhattan.boxes_to_world(boxes[keep].double().cpu().numpy())
    return PhraseCandidates(phrase, there, scores[keep].double().cpu().numpy())
