"""Samples of a training step: a window of a scene under a random motion, with everything known inside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embodied_perceptron.geometry.occupancy_grid import BENCHMARK_GRID, WINDOW_M
from embodied_perceptron.nn.input_features import input_from_points, occupancy_origin, rgb_grid, sites_of_voxels, thin
from embodied_perceptron.nn.presets import NetworkConfig
from embodied_perceptron.nn.text_encoder import tokens_between
from embodied_perceptron.results import UNNAMED
from embodied_perceptron.sparse.tensor import SparseTensor
from embodied_perceptron.weights.categories import OCCUPANCY_IGNORED, STRUCTURE_CLASSES
from embodied_perceptron_training.datasets.embodiedscan import DatasetError, Prompt
from embodied_perceptron_training.evaluation.runner.scenes import POINTS_PER_VIEW, choose_views
from embodied_perceptron_training.homes.prompts import is_view_dependent
from embodied_perceptron_training.training.augment import Motion, MotionRange
from embodied_perceptron_training.training.domain_randomisation import SiteNoise, randomised_image
from embodied_perceptron_training.training.paper import MAX_POINTS
from embodied_perceptron_training.training.prepared_scenes import (
    PreparedScene,
    SceneCache,
    flipped_projections,
    resize_projections,
    sample_points,
)
from embodied_perceptron_training.training.task import SampleError

ViewChoice = Literal["all", "prefix", "one"]
_SURFACES = frozenset(STRUCTURE_CLASSES) - {UNNAMED}  # are no objects
_WINDOWS = 8  # drawn before a scene counts as empty: some are behind a wall
_FIRST_VIEWS = 3  # make the smallest map of some first views


@dataclass(frozen=True, eq=False)
class Sentences:
    """K sentences about one scene."""

    tokens: Tensor  # (K, T, C) float32
    pad: Tensor  # (K, T) True at padding
    boxes: list[Tensor]  # per sentence the (G, 9) targets; none outside of the window
    named: Tensor  # (K, T) bool, the tokens that name the target
    viewpoint_m: Tensor  # (3,) on the floor below a viewer
    viewpoint_yaw_rad: float  # its heading


@dataclass(frozen=True, eq=False)
class SceneSample:
    """One window of one scene. Label ``num_classes`` stands for an object without a class, if the network has presence
    or a refinement head."""

    name: str  # of the scene
    coords: Tensor  # (N, 3) int64 sites at stride 1, sorted as keys are
    feats: Tensor  # (N, F) float32
    boxes: Tensor  # (G, 9) float32
    labels: Tensor  # (G,) int64 class indices
    projections: Tensor  # (V, 3, 4) float64 to pixels of ``image_size``
    image_size: tuple[int, int]  # (h, w)
    features: tuple[Tensor, ...]  # per level (V, h, w, C), or empty
    depth_mm: Tensor  # (V, H, W) int32; empty if it shares views
    colors: Tensor | None  # (V, H, W, 3) uint8, if the encoder is trained too
    occupancy: Tensor | None  # (X, Y, Z) int64
    occupancy_origin: tuple[int, int, int]  # of the grid, in input sites
    sentences: Sentences | None

    @property
    def shares_views(self) -> bool:
        """Whether its images are the first ones of the sample before it in a batch."""
        return self.colors is None and not self.features and len(self.projections) > 0


@dataclass(frozen=True)
class WindowSpec:
    """How scenes become samples.

    Attributes:
        window_m: edge of the horizontal window; inf = the whole scene.
        motion: drawn for each sample; None = no motion, and the window is around the scene's origin.
        choice: the views of a map: ``all``; every ``prefix`` of them, each a map (continuous perception); or ``one``,
            where every view of a scene is a sample (monocular). Truth is what the views of a map show.
        views: with ``all``, show only this many evenly spaced views, with the truth of all of them, so that figures
            over different numbers of views compare. 0 = all.
        min_views: with ``all``, images of at least this many views are shown (of the others only the geometry).
        floor_sigma_m: error of the estimated floor.
        sentences: at most this many per sample; 0 = none.
        absent_share: largest share of sentences about objects outside of the window.
        sentence_share, occupancy_share: shares of the samples with sentences and with occupancy.
        prefix_share: of the samples that are maps of the first n views, as while a robot explores.
        site_noise: domain randomisation of the sites.
        pictures: number of sets of randomised images; samples show each as often as the original. An encoder that is
            trained too sees new ones each time.
        random_views: draw this many of a scene's views for each sample, before ``choice``; 0 = all.
        flip_images: in a mirrored world images are mirrored too, where samples have them.
        blind_views: share of the views whose image features are zero or in random order, so that geometry alone still
            suffices.
    """

    window_m: float = WINDOW_M
    motion: MotionRange | None = None
    choice: ViewChoice = "all"
    views: int = 0
    min_views: int = 12
    floor_sigma_m: float = 0.01
    sentences: int = 0
    absent_share: float = 0.0
    sentence_share: float = 1.0
    occupancy_share: float = 1.0
    prefix_share: float = 0.0
    site_noise: SiteNoise = field(default_factory=SiteNoise)
    pictures: int = 0
    # not in the repr, which is part of the key of kept windows (SceneSource.name): none of those uses them
    flip_images: bool = field(default=False, repr=False)
    random_views: int = field(default=0, repr=False)
    blind_views: float = field(default=0.0, repr=False)


class SampleMaker:
    """Make samples of scenes for one network.

    Args:
        config: of the network.
        classes: detection classes in the order of the logits; other instances are not learned.
        spec: how.
        scenes: cache of the scenes, used for parts that depend on the chosen views.
        colors: samples have images, for an encoder that is trained too; otherwise the scenes' features.
    """

    def __init__(
        self,
        config: NetworkConfig,
        classes: tuple[str, ...],
        spec: WindowSpec,
        scenes: SceneCache,
        colors: bool = False,
    ) -> None:
        self.config = config
        self.spec = spec
        self._scenes = scenes
        self._colors = colors
        self._class_index = {name: i for i, name in enumerate(classes)}

    def make(self, scene: PreparedScene, rng: np.random.Generator, view: int | None = None) -> list[SceneSample]:
        """The maps of one sample under one motion, the one of most views first; ``rng`` is the only source of
        randomness.

        ``view``: the only one, of a monocular sample. Maps of fewer views have no images of their own, see
        :attr:`SceneSample.shares_views`. Those without input sites are left out, except the first.
        """
        chosen = self._choose_views(len(scene.cameras), rng) if view is None else [view]
        placed = self._place(scene, chosen, rng)
        maps = [self._map(scene, chosen, *placed, rng)]
        for count in range(len(chosen) - 1, 0, -1) if self.spec.choice == "prefix" else ():
            part = self._map(scene, chosen[:count], *placed, rng, True)
            maps += [part] if len(part.coords) else []
        return maps

    def _map(
        self,
        scene: PreparedScene,
        chosen: list[int],
        motion: Motion,
        center: NDArray[np.float64],
        rng: np.random.Generator,
        shares: bool = False,
    ) -> SceneSample:
        """The map of the ``chosen`` views, with images of its own unless it ``shares`` them."""
        spec = self.spec
        floor_z = motion.shift_m[2]  # scenes stand on z = 0
        assumed_floor_z = floor_z + float(rng.normal(0.0, spec.floor_sigma_m))
        x = self._sites(scene, chosen, motion, center, assumed_floor_z, rng)
        shown = chosen
        if spec.choice == "all" and spec.motion is not None and not spec.random_views and spec.min_views < len(chosen):
            count = int(rng.integers(spec.min_views, len(chosen) + 1))
            shown = sorted(int(v) for v in rng.choice(chosen, count, replace=False))
        known = list(range(len(scene.cameras))) if spec.views else chosen  # views that determine the truth
        boxes, labels, rows = self._objects(scene, known, motion, center)
        size = self.config.image.size if self._colors else scene.image_size
        projections = resize_projections(scene.projections, scene.image_size, size)
        speaks = spec.sentences > 0 and rng.random() < spec.sentence_share
        occupied = self.config.occupancy is not None and rng.random() < spec.occupancy_share
        occupancy, origin = None, (0, 0, 0)
        if occupied:
            occupancy, origin = self._occupancy(scene, known, motion, (center[0], center[1], floor_z))
        features = () if shares else tuple(level[shown] for level in self._features(scene, rng))
        features = _blinded(features, spec.blind_views, rng)
        depth_mm = scene.depth_mm[[] if shares else shown].to(torch.int32)
        colors = self._pictures(scene, shown, rng) if self._colors and not shares else None
        if spec.flip_images and motion.mirrored and colors is not None:
            projections = flipped_projections(projections, size[1])
            depth_mm, colors = depth_mm.flip(2), colors.flip(2)
        return SceneSample(
            name=f"{scene.name}#{len(chosen):03d}" if spec.choice == "prefix" else scene.name,
            coords=x.coords,
            feats=x.feats,
            boxes=torch.from_numpy(boxes).float(),
            labels=torch.from_numpy(labels),
            projections=torch.from_numpy(np.stack([motion.projection(projections[v]) for v in shown])),
            image_size=size,
            features=features,
            depth_mm=depth_mm,
            colors=colors,
            occupancy=occupancy,
            occupancy_origin=origin,
            sentences=self._sentences(scene, motion, rows, boxes, shown, floor_z, rng) if speaks else None,
        )

    # ------------------------------------------------------------------------------------------------ views, geometry

    def _choose_views(self, count: int, rng: np.random.Generator) -> list[int]:
        if self.spec.random_views:
            return sorted(rng.choice(count, min(self.spec.random_views, count), replace=False).tolist())
        if self.spec.prefix_share and rng.random() < self.spec.prefix_share:
            return list(range(int(rng.integers(min(_FIRST_VIEWS, count), count + 1))))
        return choose_views(count, self.spec.views or count)

    def _sites(
        self,
        scene: PreparedScene,
        chosen: list[int],
        motion: Motion,
        center: NDArray[np.float64],
        floor_z_m: float,
        rng: np.random.Generator,
    ) -> SparseTensor:
        """Input sites of the map of the chosen views as at inference; a regular grid for ``rgb``, sampled points for
        ``paper``."""
        config = self.config
        if config.modality == "rgb":
            return rgb_grid(config, (*center.tolist(), floor_z_m))
        if config.inputs == "xyz":  # points as they were measured, no map
            points = sample_points(scene.projections[chosen], scene.depth_mm[chosen], POINTS_PER_VIEW, MAX_POINTS, rng)
            points = motion.points(points)
            inside = (np.abs(points[:, :2] - center) < self.spec.window_m / 2).all(axis=1)
            return thin(input_from_points(points[inside], None, config.voxel_size_m, "xyz"), config.max_sites)
        # of all views from the cache, of fewer ones by fusing them now
        voxels = scene.voxels if len(chosen) == len(scene.cameras) else self._scenes.fuse(scene, chosen)
        points = motion.points(voxels.points_m.numpy())
        inside = (np.abs(points[:, :2] - center) < self.spec.window_m / 2).all(axis=1)
        points, colors, hits = self.spec.site_noise(
            points[inside], voxels.colors.numpy()[inside], voxels.hits.numpy()[inside], rng
        )
        return sites_of_voxels(points, colors, hits, config.voxel_size_m, config.inputs, floor_z_m, config.max_sites)

    def _features(self, scene: PreparedScene, rng: np.random.Generator) -> tuple[Tensor, ...]:
        variant = int(rng.integers(self.spec.pictures + 1)) if self.spec.pictures and scene.features else 0
        return self._scenes.randomised_features(scene, variant) if variant else scene.features

    def _pictures(self, scene: PreparedScene, shown: list[int], rng: np.random.Generator) -> Tensor:
        """(V, H, W, 3) uint8; randomised ones are new each time."""
        colors = self._scenes.colors(scene, shown, self.config.image.size)
        if not self.spec.pictures or not rng.integers(self.spec.pictures + 1):
            return colors
        kind = float(rng.random())
        return torch.from_numpy(np.stack([randomised_image(color, kind, rng) for color in colors.numpy()]))

    def _place(
        self, scene: PreparedScene, chosen: list[int], rng: np.random.Generator
    ) -> tuple[Motion, NDArray[np.float64]]:
        """Motion of the scene, and the (2,) centre of the window after it."""
        if self.spec.motion is None:
            return Motion(), np.zeros(2)
        motion = self.spec.motion.draw(rng)
        # around a camera, around an object, or around the scene's origin
        anchor = scene.cameras[int(rng.choice(chosen)), :3, 3]
        if rng.random() < 0.5 and len(scene.boxes):
            anchor = scene.boxes[int(rng.integers(len(scene.boxes))), :3]
        elif rng.random() < 0.5:
            anchor = np.zeros(3)
        center = motion.points(anchor[None])[0, :2] + rng.normal(0.0, 0.8, 2)
        if self.config.modality == "rgb":  # the window is the grid, which moves in steps
            step_m = self.config.voxel_size_m * self.config.backbone.strides[-1]
            center = np.floor(center / step_m + 0.5) * step_m
        return motion, center

    # -------------------------------------------------------------------------------------------------------- targets

    def _objects(
        self, scene: PreparedScene, known: list[int], motion: Motion, center: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
        """Boxes in the window that the views ``known`` show, their classes, and their instances."""
        detection = self.config.detection
        nameless = len(self._class_index) if detection is not None and detection.detects_unnamed else -1
        labels = np.array(
            [-1 if name in _SURFACES else self._class_index.get(name, nameless) for name in scene.labels], np.int64
        )
        boxes = motion.boxes(scene.boxes)
        keep = (labels >= 0) & scene.visible[known].any(axis=0)
        keep &= (np.abs(boxes[:, :2] - center) < self.spec.window_m / 2).all(axis=1)
        rows = np.flatnonzero(keep)
        return boxes[rows], labels[rows], rows

    def _occupancy(
        self, scene: PreparedScene, known: list[int], motion: Motion, anchor: tuple[float, float, float]
    ) -> tuple[Tensor | None, tuple[int, int, int]]:
        """The truth that the views ``known`` show, read at the centres of the network's cells; None where the scene has
        none."""
        config = self.config.occupancy
        assert config is not None
        origin = occupancy_origin(self.config, anchor)
        grid = scene.occupancy if len(known) == len(scene.cameras) else self._scenes.occupancy(scene, known)
        if grid is None:
            return None, origin
        lower = np.array(origin) * self.config.voxel_size_m
        axes = [lower[a] + (np.arange(n) + 0.5) * config.cell_size_m for a, n in enumerate(config.cells)]
        centers = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)
        return read_truth(grid, motion.back(centers)).reshape(config.cells), origin

    # ------------------------------------------------------------------------------------------------------ sentences

    def _sentences(
        self,
        scene: PreparedScene,
        motion: Motion,
        rows: NDArray[np.int64],
        boxes: NDArray[np.float64],
        shown: list[int],
        floor_z_m: float,
        rng: np.random.Generator,
    ) -> Sentences | None:
        position = {int(row): i for i, row in enumerate(rows)}
        usable = [
            i
            for i, prompt in enumerate(scene.prompts)
            if prompt.target_ids
            and all(t in position for t in prompt.target_ids)
            and all(a in position for a in prompt.anchor_ids)
            and not (motion.mirrored and is_view_dependent(prompt.text))
        ]
        if not usable or not scene.text:
            return None
        elsewhere: list[int] = []
        if self.spec.absent_share:
            absent = [i for i, p in enumerate(scene.prompts) if p.target_ids and not set(p.target_ids) & set(position)]
            elsewhere = rng.permutation(absent)[: round(self.spec.absent_share * self.spec.sentences)].tolist()
        picked = [*rng.permutation(usable)[: self.spec.sentences - len(elsewhere)].tolist(), *elsewhere]
        tokens = [scene.text[i][0].float() for i in picked]
        length = max(len(t) for t in tokens)
        pad = torch.ones(len(picked), length, dtype=torch.bool)
        padded = torch.zeros(len(picked), length, tokens[0].shape[1])
        named = torch.zeros(len(picked), length, dtype=torch.bool)
        targets = []
        for k, i in enumerate(picked):
            padded[k, : len(tokens[k])] = tokens[k]
            pad[k, : len(tokens[k])] = False
            named[k] = named_tokens(scene.prompts[i], scene.text[i][1], length)
            ids = [position[t] for t in scene.prompts[i].target_ids if t in position]
            targets.append(torch.from_numpy(boxes[ids]).float())
        camera = scene.cameras[int(rng.choice(shown))]
        viewer = motion.points(camera[None, :3, 3])[0]
        ahead = motion.matrix[:3, :3] @ camera[:3, 2]
        return Sentences(
            padded,
            pad,
            targets,
            named,
            torch.tensor([viewer[0], viewer[1], floor_z_m], dtype=torch.float32),
            math.atan2(ahead[1], ahead[0]),
        )


class SceneSource:
    """Samples of a split, each a list of maps (:meth:`SampleMaker.make`): every scene of ``order`` (None = each once),
    or every view of these scenes (monocular), ``repeat`` times per epoch, each time another window. An empty window is
    drawn again, except when ``validating``."""

    def __init__(
        self,
        cache: SceneCache,
        maker: SampleMaker,
        repeat: int,
        order: Sequence[int] | None = None,
        validating: bool = False,
    ) -> None:
        self.cache = cache
        self._validating = validating
        self.maker = maker
        self.repeat = repeat
        self._order = range(len(cache)) if order is None else order
        each = [cache.view_count(i) if maker.spec.choice == "one" else 1 for i in self._order]
        self._ends = np.cumsum(each, dtype=np.int64)  # of the samples of each scene

    def __len__(self) -> int:
        return int(self._ends[-1]) * self.repeat if len(self._ends) else 0

    def _scene(self, index: int) -> tuple[int, int]:
        """Scene of sample ``index``, and the sample's position among those of the scene."""
        index %= int(self._ends[-1])
        place = int(np.searchsorted(self._ends, index, "right"))
        return self._order[place], index - int(self._ends[place - 1] if place else 0)

    def name(self, index: int) -> str:
        """Name of the scene of sample ``index`` and of the window specification."""
        return f"{self.cache.dataset[self._scene(index)[0]].sample_idx} {self.maker.spec}"

    def sample(self, index: int, rng: np.random.Generator) -> list[SceneSample]:
        """See :class:`~embodied_perceptron_training.training.task.SampleSource`."""
        scene, place = self._scene(index)
        view = place if self.maker.spec.choice == "one" else None
        try:
            prepared = self.cache[scene]
            for _ in range(_WINDOWS):
                maps = self.maker.make(prepared, rng, view)
                if len(maps[0].coords) or self._validating:
                    return maps
        except (DatasetError, OSError) as error:
            raise SampleError(self.cache.dataset[scene].sample_idx, str(error)) from error
        raise SampleError(prepared.name, f"{_WINDOWS} windows in a row show nothing")


def _blinded(features: tuple[Tensor, ...], share: float, rng: np.random.Generator) -> tuple[Tensor, ...]:
    """(V, h, w, C) features, changed in place: a ``share`` of the views is zero, or has its cells in random order."""
    for view in range(len(features[0]) if features and share else 0):
        if rng.random() >= share:
            continue
        zero = rng.random() < 0.5
        for level in features:  # indexing has copied them
            cells = level[view].flatten(0, 1)
            order = torch.from_numpy(rng.permutation(len(cells)))
            level[view] = 0.0 if zero else cells[order].view_as(level[view])
    return features


def named_tokens(prompt: Prompt, spans: Tensor, length: int) -> Tensor:
    """(length,) bool: the tokens that name the target; all tokens where the sentence does not mark them."""
    mask = torch.zeros(length, dtype=torch.bool)
    for start, end in prompt.tokens_positive or ((0, len(prompt.text)),):
        mask[: len(spans)] |= tokens_between(spans, start, end)
    return mask


def read_truth(grid: NDArray[np.uint8], points_m: NDArray[np.float64]) -> Tensor:
    """(X, Y, Z) labels in the scene's frame, (N, 3) points there -> (N,) int64 labels, 255 outside of the grid."""
    index, inside = BENCHMARK_GRID.locate(points_m)
    labels = np.full(len(points_m), OCCUPANCY_IGNORED, np.int64)
    labels[inside] = grid[tuple(index[inside].T)]
    return torch.from_numpy(labels)
