"""The online algorithm: three verbs around one live map.

    integrate(posed)   sensor rate       fuse one frame into the volume; cost of one frame
    perceive(now)      perception rate   objects, occupancy and grid from a copy of the map
    ground(text)       on a query        objects that a sentence refers to

Threads: ``integrate`` belongs to one thread, ``perceive`` may run in another, ``encode_keyframes`` in a third and
``ground`` in any. Perceiving never blocks fusing, and queries wait for neither: they read the last published scene
(:mod:`.scene.live_map`).
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.config import EVERY_SCORE, PerceptronConfig
from embodied_perceptron.detection2d.detections2d import Detections2d
from embodied_perceptron.detection2d.loading import lift_from_options
from embodied_perceptron.detection2d.pipeline import DetectionLift
from embodied_perceptron.geometry.transforms import F64, MAX_SITE_COORDINATE
from embodied_perceptron.inference.class_priors import refine_extents, shipped_priors
from embodied_perceptron.inference.confidence_calibration import ConfidenceCalibration
from embodied_perceptron.inference.loading import inference_from_options
from embodied_perceptron.inference.naming import joined_by_name
from embodied_perceptron.inference.predictor import MapWindow, Predictor, ScenePrediction
from embodied_perceptron.language.answer import Grounder
from embodied_perceptron.language.class_list import ClassList, check_names, class_list
from embodied_perceptron.language.endpoint import reader_of
from embodied_perceptron.language.object_states import with_conditions
from embodied_perceptron.language.query import Query, check_label, check_no_kind
from embodied_perceptron.language.time_questions import answer_about_past, with_past
from embodied_perceptron.mapping.correction import Correction
from embodied_perceptron.mapping.keyframes import Keyframe
from embodied_perceptron.mapping.spill import BlockSpill
from embodied_perceptron.mapping.volume import FeatureVolume, VolumeStatistics
from embodied_perceptron.mapping.voxels import StageClock
from embodied_perceptron.nn.text_encoder import minilm_folder
from embodied_perceptron.relocalisation.search import PlaceEstimate
from embodied_perceptron.results import Detections, FusionReport, Grounding, Perception, SceneObject
from embodied_perceptron.scene.live_map import LiveMap, MapCopy, PublishedScene
from embodied_perceptron.scene.object_map import check_words
from embodied_perceptron.sensors.frame import PosedFrame

# Name (key of its time in :attr:`Perception.stage_ms`) and function of one step from boxes to boxes.
Stage: TypeAlias = tuple[str, Callable[[Detections, MapCopy], Detections]]


class Perceptron:
    """Online perception of one robot; :meth:`from_config` builds all parts.

    Args:
        config: all settings.
        volume: the map; None builds an empty one from ``config``.
        inference: the trained network; None = no network, whatever ``config.network`` says: class-agnostic boxes.
        lift: detections of a 2-D detector, lifted into the map; None = none.
        classes: list of published names; None = all names of network and detector.

    Attributes:
        map: the live map: files, corrections, clearing, statistics. volume: its voxels and keyframes.
        trace: boxes of the last perception after each stage, by its name: ``proposal`` first; the last ones updated the
            object map.
        grounder: answers sentences about the published scene.

    Raises ``ValueError`` for a network whose sites are no multiple of the voxels or whose calibration is invalid, and
    for a given volume without the image features that the network reads.
    """

    def __init__(
        self,
        config: PerceptronConfig | None = None,
        volume: FeatureVolume | None = None,
        inference: Predictor | None = None,
        lift: DetectionLift | None = None,
        classes: ClassList | None = None,
    ) -> None:
        self.config = config = PerceptronConfig() if config is None else config
        if volume is None:
            features = None if inference is None else inference.image_features()
            device = None if inference is None else inference.device
            folder, max_bytes = config.spill.folder, round(config.spill.max_gib * 2**30)
            spill = BlockSpill(folder, max_bytes) if folder else None
            volume = FeatureVolume(
                config.volume, config.keyframes, features=features, network_device=device, spill=spill
            )
        self.volume, self.inference, self.lift, self.classes = volume, inference, lift, classes
        self.trace: dict[str, Detections] = {}
        self._to_encode: deque[Keyframe] = deque(maxlen=config.keyframes.max_count)
        self._window: MapWindow | None = None
        self._calibration: ConfidenceCalibration | None = None
        no_cells, scores, reach_m = None, EVERY_SCORE, math.inf
        if inference is not None:
            self._window = inference.open_window(volume, config.network)
            self._calibration = ConfidenceCalibration.of_calibration(inference.calibration)
            no_cells, scores = inference.no_cells, self._window.scores
            reach_m = inference.network.config.voxel_size_m * MAX_SITE_COORDINATE - volume.config.radius_m
        name_of = None if classes is None else classes.name_of
        self._stages = _map_stages(self._window, lift, name_of)
        on_forget = [part.forget for part in (self._window, lift) if part is not None]
        self.map = LiveMap(config, volume, no_cells, scores, name_of, reach_m, on_forget, with_conditions)
        named, reader = inference is not None, reader_of(config.language)
        self.grounder = Grounder(inference, lift, classes, scores, config.objects.tracking, named, reader)

    @classmethod
    def from_config(
        cls, config: PerceptronConfig | None = None, image_stamps: Mapping[str, int] | None = None
    ) -> Perceptron:
        """Build a perceptron with the network that ``config.network`` names, if any.

        ``image_stamps``: see :func:`.lift_from_options`.
        Raises as ``minilm_folder``, ``load_inference`` and ``ClassList``.
        """
        config = PerceptronConfig() if config is None else config
        minilm_folder()  # a missing package is an error now, not at the first sentence
        names = config.network.classes
        if names:
            check_names(names)  # before networks are read
        lift = lift_from_options(config.lift, names, image_stamps)
        inference = inference_from_options(config.network)
        return cls(config, None, inference, lift, class_list(names, inference, lift) if names else None)

    # ---------------------------------------------------------------------------------------------------- three verbs

    def integrate(self, posed: PosedFrame, encode: bool = True) -> FusionReport:
        """Fuse one frame into the volume. Time and memory do not grow with the length of the run.

        The image of a new keyframe is encoded here, outside of the volume's lock: for the network and for
        relocalisation. Without ``encode`` that is left to :meth:`encode_keyframes`, so that the next frame does not
        wait.

        Raises ``ValueError`` for a frame that is not newer than its camera's newest, and :class:`.MapLimitError` for a
        camera too far from the map's origin; the map is then unchanged.
        """
        if self.lift is not None:
            posed = self.lift.without_persons(posed)
        report, keyframe = self.map.integrate(posed)
        if keyframe is not None:
            self._to_encode.append(keyframe)
            if encode:
                report.stage_ms.update(self.encode_keyframes())
        return report

    def encode_keyframes(self) -> dict[str, float]:
        """Encode images of keyframes that :meth:`integrate` left; from any thread. Returns ``stage_ms``.

        A perception encodes missing ones itself; a map that is saved before lacks their views for relocalisation.
        """
        clock = StageClock()
        while True:
            try:
                keyframe = self._to_encode.popleft()
            except IndexError:
                break
            if self._window is not None:
                if self._window.features is not None:
                    self._window.features.prefetch(keyframe)
                clock.lap("encode")
            self.map.remember(keyframe, clock)
        return clock.stage_ms

    def perceive(
        self, now_ns: int | None = None, window_m: float | None = None, *, confirm: bool = False
    ) -> Perception:
        """Update and return objects with persistent ids, labelled voxels and the navigation grid of the present map.

        With a network, objects and labels in the window before the cameras are predicted and the rest of the map keeps
        its own; without one, the whole map is cut into class-agnostic boxes.

        Args:
            now_ns: time on the clock of the frames, by which missed objects become stale; None = the newest frame's
                stamp.
            window_m: edge of the network's window instead of ``config.network.window_m``; infinite = the whole map, in
                overlapping windows where it is larger.
            confirm: confirm objects at their first detection, for a single perception after all frames. By default
                they need ``config.objects.tracking.existence.confirm_count`` perceptions.
        """
        with self.map.perceiving() as (scene, clock):
            prediction: ScenePrediction | None = None
            if self._window is None:  # class-agnostic boxes of the whole map
                _ = scene.layers
                clock.lap("layers")
                found: Detections | None = scene.shapes
                clock.lap("boxes")
            else:
                prediction = self._predict(self._window, scene, window_m, clock, keep=True)
                found = prediction.detections
            trace: dict[str, Detections] = {}
            if found is not None:
                trace["proposal"] = found
                for name, stage in self._stages:
                    found = trace[name] = stage(found, scene)
                    clock.lap(name)
            self.trace = trace
            perception = self.map.update(scene, found, prediction, now_ns, clock, confirm)
            if self.lift is not None:
                self.lift.update_embeddings((*perception.objects, *perception.tentative, *perception.stale))
        return perception

    def recall(self) -> Perception:
        """The present state of the map without a new perception, for example of a map from a file.

        Without labelled cells of a network, cells are labelled floor, structure and object.
        """
        return self.map.recall()

    def ground(self, query: Query | str, viewpoint: F64 | None = None) -> Grounding:
        """Answer a query about objects; ``viewpoint``: (4, 4) pose of the speaker, if the query has none. Accepts any
        text."""
        return self.ground_many([query], viewpoint)[0]

    def ground_many(
        self,
        queries: Sequence[Query | str],
        viewpoint: F64 | None = None,
        scene: PublishedScene | None = None,
    ) -> list[Grounding]:
        """:meth:`ground` for many queries about the same scene; those of one speaker share a pass of the network.

        ``scene``: :attr:`.LiveMap.published` at some time; None = now.
        """
        scene = scene or self.map.published
        lookup = partial(self.grounder.answer_among, scene)
        asked = [Query.of(query, viewpoint) for query in queries]
        past = [answer_about_past(query, scene, lookup) for query in asked]
        others = [query for query, answer in zip(asked, past, strict=True) if answer is None]
        now = iter(self.grounder.answer(scene, others, viewpoint) if others else ())
        return [with_past(next(now), scene, lookup) if answer is None else answer for answer in past]

    # -------------------------------------------------------------------------------------- what was perceived last

    @property
    def objects(self) -> tuple[SceneObject, ...]:
        """Confirmed objects of the last perception, file or correction; never waits for a perception in flight."""
        return self.map.published.objects

    def conditioned(self) -> tuple[SceneObject, ...]:
        """:attr:`objects` with their condition (open, closed, empty, ...) where the map shows it."""
        return with_conditions(self.map.published.objects, self.map.published.voxels)

    @property
    def prediction(self) -> ScenePrediction | None:
        """Prediction of the network at the last :meth:`perceive`; None before it, and after a change of the map."""
        return self.map.published.prediction

    def predict(self, window_m: float | None = None) -> ScenePrediction:
        """Prediction of the network for the present map, boxes of any score; objects and labels do not change.

        ``window_m`` as for :meth:`perceive`. Raises ``ValueError`` without a network.
        """
        if self._window is None:
            raise ValueError("predicting needs a network")
        with self.map.perceiving() as (scene, clock):
            return self._predict(self._window, scene, window_m, clock)

    def _predict(
        self, window: MapWindow, scene: MapCopy, window_m: float | None, clock: StageClock, keep: bool = False
    ) -> ScenePrediction:
        """Prediction of the network, its boxes calibrated and named."""
        assert self.inference is not None
        manhattan = scene.manhattan if self.inference.network.config.reads_map else None
        prediction = self.inference.predict(
            window, scene.volume, scene.cameras.view_direction, scene.floor_z_m, window_m, manhattan, keep
        )
        clock.lap("network")
        found = prediction.detections
        if found is None:
            return prediction
        if self._calibration is not None:  # probabilities, from the map in a box and the objects around it
            found = self._calibration(found, scene.voxels, scene.floor_z_m)
            clock.lap("confidence")
        found = self.inference.select(found)
        clock.lap("naming")
        return replace(prediction, detections=found)

    def features_at(self, points_m: F64, level: int = 0) -> NDArray[np.float32]:
        """Image features of the network at points: means over the keyframes that see them.

        Args:
            points_m: (N, 3) in the map, as ``perception.voxels.mean_point_m`` is.
            level: of the encoder's pyramid, 0 = finest.

        Returns:
            (N, C) float32; NaN where no keyframe sees the point.

        Raises ``ValueError`` without a network that sees images, for points of another shape, and an unknown level.
        """
        features = self.volume.features
        if features is None:
            raise ValueError("features need a network that sees images: config.network.weights")
        return features.at(points_m, self.map.keyframes(), level)

    def approach(self, thing: SceneObject, robot_m: F64 | None = None, robot_radius_m: float = 0.3) -> F64 | None:
        """(4, 4) approach pose on the floor before ``thing``, in the map; None = there is none. ``robot_m``: (2,) or
        (3,) position of the robot."""
        return self.map.published.approach(thing, robot_m, robot_radius_m)

    # ------------------------------------------------------------------------------------------------ care for the map

    @property
    def T_world_map(self) -> F64:  # noqa: N802  frames in names
        """(4, 4) pose of the map in the world: the identity, unless the map began far from the world's origin or
        :meth:`load` placed it elsewhere.
        """
        return self.map.T_world_map

    @property
    def newest_frame(self) -> PosedFrame | None:
        """The last fused frame, in the world; None for an empty map and a map from a file."""
        return self.map.newest_frame

    @property
    def place_estimate(self) -> PlaceEstimate | None:
        """Estimate of the robot's place in the loaded map while the search for it runs; None otherwise."""
        return self.map.place_estimate

    def save(self, path: str | Path) -> None:
        """Write voxels, keyframes, objects and labelled cells to one file, atomically; fusion continues meanwhile.

        User corrections are also written as labels, see :func:`~.live_map.labels_path`. Raises ``OSError`` when the
        file cannot be written, and :class:`~embodied_perceptron.mapping.storage.MapChangedError` when another program
        changed it since it was loaded or saved here.
        """
        self.map.save(path)

    def load(self, path: str | Path, T_world_saved: F64 | None = None, *, find_place: bool = False) -> str:
        """Replace the map by a saved one; images are encoded again at the next perception.

        Stamps that precede the newest of the map continue after it. Labelled cells of a network with other classes are
        dropped.

        Args:
            path: the map file.
            T_world_saved: (4, 4) pose of the saved world in the present one, rotated about the vertical only, when the
                world has another origin (odometry starts anew with the robot).
            find_place: find that pose from the next frames. They are fused once it is found; until then
                ``T_world_saved`` holds and :attr:`place_estimate` reports the search.

        Returns the reason why the place cannot be searched, "" otherwise. Raises ``MapFileError`` for a file that is no
        map, ``OSError`` for an unreadable one, ``ValueError`` for an invalid pose; the map is then unchanged.
        """
        return self.map.load(path, T_world_saved, find_place=find_place)

    def reset(self) -> None:
        """Remove all voxels, keyframes, objects and cells."""
        self.map.reset()

    def forget_stamps(self, camera: str | None = None) -> None:
        """Accept any stamp from one camera or all, after a clock was set or a recording loops; the map stays."""
        self.map.forget_stamps(camera)

    def statistics(self) -> VolumeStatistics:
        """Size and history of the volume."""
        return self.map.statistics()

    def keyframe_poses(self) -> dict[tuple[str, int], F64]:
        """(camera, stamp_ns) -> (4, 4) T_world_camera of the retained keyframes, oldest first."""
        return self.map.keyframe_poses()

    def correct_keyframes(self, poses: Mapping[tuple[str, int], F64]) -> Correction:
        """Apply corrected keyframe poses of a SLAM system; object ids stay. Blocks fusion, about 10 ms a keyframe.

        Voxels and image features are recomputed from the retained keyframes at their new poses; no image is encoded
        again. Voxels last seen before the oldest keyframe move rigidly with it, an object with the keyframe nearest in
        time to its last sighting, labelled cells with the newest keyframe. Prediction and grid return with the next
        perception.

        Args:
            poses: (camera, stamp_ns) -> (4, 4) T_world_camera. Where two keyframes share a name (a recording that
                loops), the newer one.

        Returns the motions and the unknown names. Raises ``ValueError`` for a pose that is not rigid; the map is then
        unchanged.
        """
        return self.map.correct_keyframes(poses)

    def clear_box(self, box: F64) -> int:
        """Remove voxels and objects inside the (9,) ``box``, in map coordinates; returns the number of voxels.

        Prediction and grid return with the next perception.
        """
        return self.map.clear_box(box)

    # ------------------------------------------------------------------------ users, other detectors, accelerators

    def name_object(self, number: int, name: str) -> SceneObject:
        """Set a user's name for object ``number``, which is saved with the map; empty removes the name.

        Raises ``ValueError`` for an invalid name, a class name, a name in use, or a word of the grammar ("the", "red"),
        and ``LookupError`` for an unknown id; the map is then unchanged.
        """
        if name.strip():
            check_no_kind(check_words(name, "name"))
        return self.map.name_object(number, name)

    def correct_object(self, number: int, label: str = "", not_there: bool = False) -> SceneObject:
        """Set the label of object ``number`` for good, or remove it (``not_there``); returns the object.

        Raises ``ValueError`` for a label that is invalid, names no object, or comes with ``not_there``, and
        ``LookupError`` for an unknown id; the map is then unchanged.
        """
        if label.strip():
            label = check_label(check_words(label, "label"))
        return self.map.correct_object(number, label, not_there)

    def add_detections(self, found: Detections2d, drops: Counter[str] | None = None) -> None:
        """Add 2-D detections of another program, with the stamp of the camera's image; ``drops``: number that it
        dropped, by reason. From any thread; see :meth:`.DetectionLift.add`. Raises ``ValueError`` without lifting."""
        if self.lift is None:
            raise ValueError("detections of other programs need lift.from_topics (or a lift)")
        self.lift.count_drops(drops or Counter())
        self.lift.add(found, self.map.time_in_map(found.camera, found.stamp_ns))

    def prepare_language(self) -> None:
        """Load the language models before the first query."""
        self.grounder.prepare()

    def release_accelerator(self) -> None:
        """Free the accelerator's memory after the perception in flight; the next one takes it again and recomputes
        image features from the keyframes."""
        if self.inference is not None and self._window is not None:
            with self.map.scene_lock:
                self.inference.release(self._window)

    @property
    def devices(self) -> dict[str, str]:
        """Present devices: "network" (if there is one) and "volume"."""
        found = {} if self.inference is None else {"network": str(self.inference.device)}
        return {**found, "volume": str(self.volume.device)}

    @property
    def device_faults(self) -> tuple[str, ...]:
        """Errors of failed devices, whose work the CPU does since."""
        faults = self.volume.fault, "" if self.inference is None else self.inference.fault
        return tuple(fault for fault in faults if fault)


def _map_stages(
    window: MapWindow | None, lift: DetectionLift | None, name_of: Callable[[str], str] | None
) -> tuple[Stage, ...]:
    """Stages from the boxes of a network, or from shapes (``window`` None), to those that update the object map.

    A stage raises ``ValueError`` for scores of another certainty than it needs (:meth:`Detections.require`).
    """
    stages: list[Stage] = []
    named = window is not None
    if window is not None:
        priors, keep = shipped_priors(), window.scores.keep
        stages.append(
            ("extents", lambda found, scene: refine_extents(found, scene.voxels, scene.floor_z_m, priors, keep))
        )
    if lift is not None:
        stages.append(("lift", lambda found, scene: lift.with_evidence(found, scene, named)))
    if name_of is not None:
        stages.append(("classes", lambda found, _: joined_by_name(found, name_of)))
    return tuple(stages)
