"""The whole online algorithm: three verbs around one volume and one object map.

    integrate(posed)   sensor rate       one frame into the volume; cost of one frame
    perceive(now)      perception rate   objects, occupancy and grid from a snapshot of the volume
    ground(text)       on a query        which objects a sentence means

Threads: ``integrate`` belongs to one thread, ``perceive`` may run in another and ``ground`` in any. The volume's lock
is held by ``perceive`` only while the snapshot is copied, so perceiving never blocks fusing. ``reset``, ``load`` and
``clear_box`` wait for a ``perceive`` in flight, so that an old snapshot never speaks about a new map.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.config import PerceptronConfig
from embodied_perceptron.inference.loading import inference_from_options
from embodied_perceptron.inference.map_predictor import MapPredictor, ScenePrediction
from embodied_perceptron.inference.phrases import PhraseCandidates
from embodied_perceptron.inference.predictor import Predictor
from embodied_perceptron.language.answer import DEFAULT_TOP_K, ground_objects
from embodied_perceptron.language.candidates import QueryContext
from embodied_perceptron.language.colors import mean_colors
from embodied_perceptron.language.neural_candidates import propose_targets
from embodied_perceptron.lift.loading import lift_from_options
from embodied_perceptron.lift.pipeline import DetectionLift
from embodied_perceptron.mapping.correction import Correction
from embodied_perceptron.mapping.keyframes import Keyframe
from embodied_perceptron.mapping.storage import MapFileError, read_extra, read_some, write_map
from embodied_perceptron.mapping.volume import FeatureVolume, VolumeStatistics
from embodied_perceptron.results import (
    FusionReport,
    Grounding,
    ObjectState,
    Perception,
    SceneObject,
    SemanticVoxels,
    VoxelSnapshot,
)
from embodied_perceptron.scene.detections import LOW_CONFIDENCE_SHARE, Detections
from embodied_perceptron.scene.navigation import navigation_grid, semantic_voxels
from embodied_perceptron.scene.object_map import ObjectMap
from embodied_perceptron.scene.segmentation.components import find_boxes
from embodied_perceptron.scene.segmentation.floor import FloorHeight
from embodied_perceptron.scene.segmentation.layers import separate_layers
from embodied_perceptron.scene.semantic_map import PREFIX, SemanticMap
from embodied_perceptron.sensors.camera_rig import LatestCameraPoses
from embodied_perceptron.sensors.frame import PosedFrame

_OBJECTS, _SEMANTIC = "objects", "semantic"  # entries of a map file


class Perceptron:
    """Online perception of one robot. See the module docstring for threads.

    Args:
        config: everything tunable.
        volume: the map to work on; None builds an empty one from ``config``.
        inference: the trained network; None = none, whatever ``config.network`` says: class-agnostic boxes.
            :meth:`from_config` builds it.
        lift: detections of a 2-D detector; None = none.
    """

    def __init__(
        self,
        config: PerceptronConfig | None = None,
        volume: FeatureVolume | None = None,
        inference: Predictor | None = None,
        lift: DetectionLift | None = None,
    ) -> None:
        self.config = config if config is not None else PerceptronConfig()
        self._volume = volume if volume is not None else FeatureVolume(self.config.volume, self.config.keyframes)
        self._volume_lock = threading.Lock()
        self._scene_lock = threading.Lock()  # taken before the volume's lock, never after it
        self._objects = ObjectMap(self.config.objects)
        self._known = QueryContext()
        self._voxels: VoxelSnapshot | None = None  # of the last perception, for the colours of objects
        self._semantic = SemanticMap()
        self._seen = LatestCameraPoses()
        self._floor = FloorHeight(max(self.config.objects.min_height_m, self.config.grid.min_obstacle_height_m))
        self._map_predictor: MapPredictor | None = None
        self._prediction: ScenePrediction | None = None
        self.lift = lift
        if inference is not None:
            options = self.config.network
            least_score = 0.0 if options.all_boxes else LOW_CONFIDENCE_SHARE * inference.min_score
            self._map_predictor = MapPredictor(
                inference, self._volume.config.voxel_size_m, options.window_m, least_score, options.window_ahead
            )

    @classmethod
    def from_config(cls, config: PerceptronConfig | None = None) -> Perceptron:
        """With the network that ``config.network`` names, if any. Raises as ``load_inference``."""
        config = config if config is not None else PerceptronConfig()
        lift = lift_from_options(config.lift, config.objects)
        return cls(config, inference=inference_from_options(config.network), lift=lift)

    # ---------------------------------------------------------------------------------------------------- three verbs

    def integrate(self, posed: PosedFrame) -> FusionReport:
        """Fuse one frame into the volume. Work and memory do not grow with the length of the run.

        With a network, the image of a new keyframe is encoded here, once, while nobody has to wait for the volume.
        """
        keyframe: Keyframe | None = None
        with self._volume_lock:
            report = self._volume.integrate(posed)
            if report.fused:
                self._seen = self._seen.after(posed.frame.camera, report.stamp_ns, posed.T_world_camera)
            if report.keyframe:
                keyframe = self._volume.keyframes.newest
        if self._map_predictor is not None and keyframe is not None:
            with _stage(report.stage_ms, "encode"):
                self._map_predictor.remember(keyframe)
        return report

    def perceive(self, now_ns: int | None = None, window_m: float | None = None) -> Perception:
        """Objects with persistent ids, labelled voxels and the navigation grid of the map as it is now.

        With a network, objects and labels before the cameras are looked at anew and the rest of the map keeps
        what is known of it; without, the whole map is cut into class-agnostic boxes.

        Args:
            now_ns: the time on the clock of the frames, by which objects not found any more grow stale; None means
                the newest frame's stamp.
            window_m: edge of what the network looks at instead of ``config.network.window_m``; infinite = everything,
                in overlapping windows of that size where the map is larger.
        """
        ms: dict[str, float] = {}
        with self._scene_lock:
            with _stage(ms, "copy"), self._volume_lock:
                copy, keyframes, seen = self._volume.copy(), tuple(self._volume.keyframes), self._seen
            with _stage(ms, "snapshot"):
                snapshot = copy.snapshot()
            with _stage(ms, "floor"):
                floor_z_m = self._floor.of(snapshot.mean_point_m)
            now = seen.stamp_ns if now_ns is None else now_ns
            if self.lift is not None:
                with _stage(ms, "lift"):
                    self.lift.detect(keyframes, snapshot, floor_z_m)
            diagnostics: tuple[str, ...] = ()
            if self._map_predictor is None:
                semantic = self._perceive_shapes(snapshot, floor_z_m, now, seen, ms)
            else:
                with _stage(ms, "network"):
                    prediction = self._map_predictor.predict(copy, keyframes, seen.view_direction, floor_z_m, window_m)
                self._prediction = prediction
                semantic = self._take_in(prediction, snapshot, now, seen, ms)
                diagnostics = prediction.diagnostics
            objects = self._publish(None if self._prediction is None else self._prediction.detections)
            self._voxels = snapshot
        with _stage(ms, "grid"):
            named = None if self._map_predictor is None else semantic
            grid = navigation_grid(snapshot, floor_z_m, self.config.grid, named)
        by_state = {s: tuple(o for o in objects if o.state == s) for s in ObjectState.ALL}
        return Perception(
            stamp_ns=seen.stamp_ns,
            objects=by_state[ObjectState.CONFIRMED],
            tentative=by_state[ObjectState.TENTATIVE],
            stale=by_state[ObjectState.STALE],
            semantic=semantic,
            grid=grid,
            voxels=snapshot,
            stage_ms=ms,
            diagnostics=diagnostics,
        )

    def ground(self, text: str, viewpoint: NDArray[np.float64] | None = None) -> Grounding:
        """Answer a sentence about objects; ``viewpoint`` is the (4, 4) pose of who asks. Never raises for any text."""
        return self.ground_many([text], viewpoint)[0]

    def ground_many(
        self,
        texts: Sequence[str],
        viewpoint: NDArray[np.float64] | None = None,
        top_k: int = DEFAULT_TOP_K,
        neural: bool = True,
    ) -> list[Grounding]:
        """:meth:`ground` for many sentences of one speaker; the network reads them together.

        Without ``neural`` it does not read them: categories, colours and relations of what it saw decide alone.
        """
        start = time.perf_counter()
        known, voxels, prediction = self._known, self._voxels, self._prediction
        low_confidence = known.low_confidence

        def colors(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
            return mean_colors(voxels, boxes) if voxels is not None else np.full((len(boxes), 3), np.nan)

        proposals: list[PhraseCandidates | None] = [None] * len(texts)
        if neural and self.inference is not None and prediction is not None:
            proposals = propose_targets(self.inference, prediction, texts, {o.label for o in known.objects}, viewpoint)
        reading_ms = (time.perf_counter() - start) * 1e3 / max(len(texts), 1)
        answers = [
            ground_objects(
                text,
                known.objects,
                viewpoint,
                colors=colors,
                candidates=found,
                top_k=top_k,
                named=self._map_predictor is not None,
                low_confidence=low_confidence,
            )
            for text, found in zip(texts, proposals, strict=True)
        ]
        return [replace(answer, latency_ms=answer.latency_ms + reading_ms) for answer in answers]

    def prepare_language(self) -> None:
        """Read the text encoder now, so that the first sentence does not wait for it; from any thread.

        Nothing happens where the network reads no sentences. Raises what reading it raises (a package that is not
        installed, for example); the first sentence then tries again.
        """
        inference = self.inference
        if inference is not None and inference.network.grounding is not None and inference.text_encoder is not None:
            inference.text_encoder.encode(["a chair"])

    # ------------------------------------------------------------------------------------------------ care for the map

    def save(self, path: str | Path) -> None:
        """Write voxels, keyframes, objects and labelled cells to one file; atomic. Fusing goes on while the disk works.

        Image features are not written: they follow from the keyframes and the network that is there when the map is
        loaded, so features of two networks are never mixed. Raises ``OSError`` when it cannot be written.
        """
        with self._scene_lock, self._volume_lock:
            cells, meaning = self._semantic.pack()
            tensors, header = self._volume.pack({_OBJECTS: self._objects.to_json(), _SEMANTIC: meaning})
            tensors |= cells
        write_map(path, tensors, header)

    def load(self, path: str | Path) -> None:
        """Replace the map and what is known of it by a saved one; images are encoded anew at the next perception.

        Labelled cells of a network with other classes are left out. Raises like :meth:`FeatureVolume.load`; then
        nothing has changed.
        """
        objects = ObjectMap(self.config.objects)
        extra = read_extra(path)
        saved = extra.get(_OBJECTS)
        semantic = SemanticMap.unpack(path, read_some(path, PREFIX), extra.get(_SEMANTIC, ""))
        if saved is not None:  # a bare volume may have been saved without objects
            try:
                objects.load_json(saved)
            except ValueError as error:
                raise MapFileError(f"{path}: {error}") from error
        with self._scene_lock, self._volume_lock:
            self._volume.load(path)
            self._forget()
            self._objects = objects
            cells, live = semantic.cells(), self._map_predictor
            if live is not None and cells is not None and cells.classes == live.inference.occupancy_classes:
                self._semantic = semantic
            self._publish()

    def reset(self) -> None:
        """Forget everything."""
        with self._scene_lock, self._volume_lock:
            self._volume.reset()
            self._forget()

    def forget_stamps(self) -> None:
        """Accept frames of any stamp again, for a clock that was set back; map and objects stay."""
        with self._volume_lock:
            self._volume.forget_stamps()
            self._seen = self._seen.without_stamps()

    def correct_keyframes(self, poses: Mapping[tuple[str, int], NDArray[np.float64]]) -> Correction:
        """Bring the map to corrected poses of its keyframes, as a SLAM system gives them; ids of objects stay.

        The rule: voxels and image features are made anew from the retained keyframes at their new poses (no image is
        encoded again); what was last seen before the oldest of them moves rigidly with it. An object moves rigidly as
        the keyframe nearest in time to when it was last seen, labelled cells as the newest keyframe. If all keyframes
        move alike that is exact for everything: the whole world moves.

        Args:
            poses: (camera, stamp_ns) -> (4, 4) T_world_camera; see :meth:`FeatureVolume.correct_keyframes`.

        Waits for a perception in flight, and fusing waits for this (about 10 ms per keyframe). Returns how the world
        moved, and which names were unknown. Raises ``ValueError`` for a pose that is not rigid; nothing has changed
        then.
        """
        with self._scene_lock, self._volume_lock:
            correction = self._volume.correct_keyframes(poses)
            if correction.corrected:
                newest = correction.motions[-1]
                self._objects.move(correction.at)
                self._semantic.move(newest)
                self._publish()
                self._floor.forget()
                self._seen = self._seen.moved(newest)
        return correction

    def keyframe_poses(self) -> dict[tuple[str, int], NDArray[np.float64]]:
        """(camera, stamp_ns) -> (4, 4) T_world_camera of the retained keyframes, oldest first."""
        with self._volume_lock:
            return {(k.frame.camera, k.frame.stamp_ns): k.T_world_camera.copy() for k in self._volume.keyframes}

    def clear_box(self, box: NDArray[np.float64]) -> int:
        """Remove voxels and objects inside of the (9,) ``box``; returns how many voxels."""
        with self._scene_lock, self._volume_lock:
            cleared = self._volume.clear_box(box)
            self._objects.remove_inside(np.asarray(box, dtype=np.float64))
            self._publish()
        return int(cleared)

    def release_accelerator(self) -> None:
        """Give the memory of the accelerator back, after the perception in flight; the next one takes it again.

        What is known stays: image features are computed anew from the keyframes.
        """
        if self._map_predictor is not None:
            with self._scene_lock:
                self._map_predictor.release()

    @property
    def objects(self) -> tuple[SceneObject, ...]:
        """Confirmed objects of the last perception, file or correction; never waits for the one in flight."""
        return self._known.objects

    @property
    def inference(self) -> Predictor | None:
        """The network, if any."""
        return None if self._map_predictor is None else self._map_predictor.inference

    def predict(self, window_m: float | None = None) -> ScenePrediction:
        """What the network sees in the map as it is now, boxes of any score among it; nothing that is known changes.

        ``window_m`` as for :meth:`perceive`. Raises ``ValueError`` without a network.
        """
        if self._map_predictor is None:
            raise ValueError("looking needs a network")
        with self._scene_lock:
            with self._volume_lock:
                copy, keyframes, seen = self._volume.copy(), tuple(self._volume.keyframes), self._seen
            floor_z_m = self._floor.of(copy.snapshot().mean_point_m)
            return self._map_predictor.predict(copy, keyframes, seen.view_direction, floor_z_m, window_m)

    @property
    def prediction(self) -> ScenePrediction | None:
        """What the network saw at the last :meth:`perceive`, boxes of any score among it; None before the first."""
        return self._prediction

    def statistics(self) -> VolumeStatistics:
        """Size and history of the map; its memory includes the image features of the keyframes."""
        with self._volume_lock:
            statistics = self._volume.statistics()
        if self._map_predictor is None or self._map_predictor.memory is None:
            return statistics
        return replace(statistics, memory_bytes=statistics.memory_bytes + self._map_predictor.memory.nbytes)

    # -------------------------------------------------------------------------------------------------------- private

    def _publish(self, seen: Detections | None = None) -> tuple[SceneObject, ...]:
        """All objects as they are now; questions are answered from them and from ``seen``, boxes of this look."""
        objects = self._objects.objects()
        confirmed = tuple(o for o in objects if o.state == ObjectState.CONFIRMED)
        tentative = tuple(o for o in objects if o.state == ObjectState.TENTATIVE)
        min_score = 0.0 if self._map_predictor is None else self._map_predictor.inference.min_score
        self._known = QueryContext(confirmed, tentative, seen, min_score, self.config.objects.score_prior)
        return objects

    def _perceive_shapes(
        self, snapshot: VoxelSnapshot, floor_z_m: float, now_ns: int, seen: LatestCameraPoses, ms: dict[str, float]
    ) -> SemanticVoxels:
        """Objects and labels from geometry alone."""
        with _stage(ms, "layers"):
            layers = separate_layers(snapshot, floor_z_m, self.config.objects)
        with _stage(ms, "boxes"):
            found = self._fused(find_boxes(snapshot, layers, self.config.objects), snapshot)
        with _stage(ms, "objects"):
            self._objects.update(found, snapshot, now_ns, seen.camera_m, self.config.volume.radius_m)
        with _stage(ms, "semantic"):
            return semantic_voxels(snapshot, layers, self.config.objects.cell_size_m)

    def _take_in(
        self,
        prediction: ScenePrediction,
        snapshot: VoxelSnapshot,
        now_ns: int,
        seen: LatestCameraPoses,
        ms: dict[str, float],
    ) -> SemanticVoxels:
        """What the network saw, into what is known."""
        assert self._map_predictor is not None
        inference, reach_m = self._map_predictor.inference, self.config.volume.radius_m
        with _stage(ms, "objects"):
            if prediction.detections is not None:
                self._objects.update(
                    self._fused(prediction.detections, snapshot),
                    snapshot,
                    now_ns,
                    seen.camera_m,
                    reach_m,
                    looked_at=prediction.region,
                    begin_score=inference.min_score,
                )
        with _stage(ms, "semantic"):
            if prediction.semantic is not None:
                return self._semantic.update(prediction.semantic, prediction.answered, seen.camera_m, reach_m)
            known = self._semantic.cells()
            return known if known is not None else _no_cells(inference)

    def _fused(self, found: Detections, snapshot: VoxelSnapshot) -> Detections:
        """With what a 2-D detector saw, where there is one."""
        return found if self.lift is None else self.lift.fuse(found, snapshot)

    def _forget(self) -> None:
        """Start anew with everything that is known beside the volume."""
        self._objects = ObjectMap(self.config.objects)
        self._known = QueryContext()
        self._voxels = None
        self._semantic.clear()
        if self._map_predictor is not None:
            self._map_predictor.forget()
        self._prediction = None
        if self.lift is not None:
            self.lift.forget()
        self._seen = LatestCameraPoses()
        self._floor.forget()


def _no_cells(inference: Predictor) -> SemanticVoxels:
    config = inference.network.config.occupancy
    return SemanticVoxels(
        1.0 if config is None else config.cell_size_m,
        np.zeros((0, 3), np.float32),
        np.zeros((0, 3), np.uint8),
        np.zeros(0, np.int32),
        np.zeros(0, np.float32),
        inference.occupancy_classes,
    )


@contextmanager
def _stage(stage_ms: dict[str, float], name: str) -> Iterator[None]:
    """Add the wall time of the block to ``stage_ms[name]``."""
    start = time.perf_counter()
    yield
    stage_ms[name] = stage_ms.get(name, 0.0) + (time.perf_counter() - start) * 1e3
