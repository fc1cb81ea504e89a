"""The whole online algorithm: three verbs around one volume and one object map.

    integrate(posed)   sensor rate       one frame into the volume; cost of one frame
    perceive(now)      perception rate   objects, occupancy and grid from a copy of the volume
    ground(text)       on a query        which objects a sentence means

Threads: ``integrate`` belongs to one thread, ``perceive`` may run in another and ``ground`` in any. Perceiving never
blocks fusing: the volume is locked only while it is copied (:mod:`embodied_perceptron.scene.live_map`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.config import EVERY_SCORE, PerceptronConfig
from embodied_perceptron.detection2d.detections2d import Detections2d
from embodied_perceptron.detection2d.loading import lift_from_options
from embodied_perceptron.detection2d.pipeline import DetectionLift
from embodied_perceptron.geometry.transforms import MAX_SITE_COORDINATE
from embodied_perceptron.inference.box_extents import refine_extents
from embodied_perceptron.inference.class_priors import shipped_priors
from embodied_perceptron.inference.confidence_calibration import ConfidenceCalibration
from embodied_perceptron.inference.loading import inference_from_options
from embodied_perceptron.inference.map_predictor import MapPredictor, ScenePrediction, image_features
from embodied_perceptron.inference.predictor import PhraseCandidates, Predictor
from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.language.candidates import QueryContext, all_nouns, propose_targets
from embodied_perceptron.language.class_list import ClassList, check_names
from embodied_perceptron.language.colors import mean_colors
from embodied_perceptron.language.lexicon import lexicon
from embodied_perceptron.language.query import Query
from embodied_perceptron.language.reader import sentence_reader
from embodied_perceptron.language.user_names import check_label, check_no_kind, with_user_names
from embodied_perceptron.mapping.export import VolumeCopy
from embodied_perceptron.mapping.volume import FeatureVolume, StageClock
from embodied_perceptron.nn.text_encoder import TextEncoder, text_encoder
from embodied_perceptron.results import (
    Detections,
    FusionReport,
    Grounding,
    ObjectState,
    OccupancyGrid2d,
    Perception,
    SceneObject,
    VoxelSnapshot,
)
from embodied_perceptron.scene.approach import ApproachOptions, approach_pose
from embodied_perceptron.scene.corrections import check_words
from embodied_perceptron.scene.live_map import LiveMap
from embodied_perceptron.scene.navigation import navigation_grid, semantic_voxels
from embodied_perceptron.scene.segmentation.components import find_boxes
from embodied_perceptron.scene.segmentation.layers import separate_layers
from embodied_perceptron.scene.tracks import published_score
from embodied_perceptron.sensors.camera_rig import LatestCameraPoses
from embodied_perceptron.sensors.frame import PosedFrame


class Perceptron(LiveMap):
    """Online perception of one robot: a live map, which it inherits the care for, and the three verbs.

    Args:
        config: everything tunable.
        volume: the map to work on; None builds an empty one from ``config``.
        inference: the trained network; None = none, whatever ``config.network`` says: class-agnostic boxes.
            :meth:`from_config` builds it.
        lift: detections of a 2-D detector, lifted into the map; None = none.
        classes: the names that are published; None = all that network and detector know. :meth:`from_config` makes it
            of ``config.network.classes``.

    Raises ``ValueError`` for a network whose sites are no multiple of the voxels or whose calibration cannot be read,
    or a given volume without the features that it reads.
    """

    def __init__(
        self,
        config: PerceptronConfig | None = None,
        volume: FeatureVolume | None = None,
        inference: Predictor | None = None,
        lift: DetectionLift | None = None,
        classes: ClassList | None = None,
    ) -> None:
        config = config if config is not None else PerceptronConfig()
        if volume is None:
            features = None if inference is None else image_features(inference)
            volume = FeatureVolume(config.volume, config.keyframes, features=features)
        cells = None if inference is None else inference.occupancy_classes
        super().__init__(config, volume, cells, None if classes is None else classes.name_of)
        self.inference = inference
        self.classes = classes
        self._known = QueryContext()
        self._voxels: VoxelSnapshot | None = None  # of the last perception, for the colours of objects
        self._prediction: ScenePrediction | None = None
        self._grid: OccupancyGrid2d | None = None  # of the last perception
        self._map_predictor: MapPredictor | None = None
        self._scores = EVERY_SCORE
        self._reliability = None if inference is None else ConfidenceCalibration.of_calibration(inference.calibration)
        self.lift = lift
        if inference is not None:
            options = config.network
            self._scores = replace(inference.scores, all_boxes=options.all_boxes)
            voxel_m, ahead = volume.config.voxel_size_m, options.window_ahead
            sites_m = inference.network.config.voxel_size_m * MAX_SITE_COORDINATE - self.config.volume.radius_m
            self._frame.reach_m = min(self._frame.reach_m, sites_m)
            self._map_predictor = MapPredictor(
                inference, volume.features, voxel_m, options.window_m, self._scores, ahead
            )

    @classmethod
    def from_config(cls, config: PerceptronConfig | None = None) -> Perceptron:
        """With the network that ``config.network`` names, if any. Raises as ``load_inference`` and ``ClassList``."""
        config = config if config is not None else PerceptronConfig()
        names = config.network.classes
        if names:
            check_names(names)  # before networks are read
        lift = lift_from_options(config.lift, config.objects, names)
        inference = inference_from_options(config.network)
        classes = None
        if names:
            known = (*(() if inference is None else inference.classes), *(() if lift is None else lift.vocabulary))
            classes = ClassList(names, known, lambda: _names_encoder(inference))
        return cls(config, inference=inference, lift=lift, classes=classes)

    # ---------------------------------------------------------------------------------------------------- three verbs

    def integrate(self, posed: PosedFrame) -> FusionReport:
        """Fuse one frame into the volume. Work and memory do not grow with the length of the run.

        With a network, the image of a new keyframe is encoded here, once, while nobody has to wait for the volume.
        Raises ``ValueError`` for a frame that is not newer than its camera's newest, and
        :class:`~embodied_perceptron.scene.map_frame.MapLimitError` for a
        camera too far from the map's origin; nothing has changed then.
        """
        with self._volume_lock:
            in_map = self._frame.enter(posed, fresh=len(self.volume) == 0)
            report = self.volume.integrate(in_map)
            self._frame.entered(posed, in_map)
            if report.fused:
                self._cameras = self._cameras.after(in_map)
            keyframe = self.volume.keyframes.newest if report.keyframe else None
        report = replace(report, stamp_ns=posed.frame.stamp_ns)
        if self.inference is not None and keyframe is not None:
            clock = StageClock(report.stage_ms)
            if self.volume.features is not None:
                self.volume.features.prefetch(keyframe)
            clock.lap("encode")
        return report

    def perceive(self, now_ns: int | None = None, window_m: float | None = None) -> Perception:
        """Objects with persistent ids, labelled voxels and the navigation grid of the map as it is now.

        With a network, objects and labels before the cameras are predicted anew and the rest of the map keeps its own;
        without, the whole map is cut into class-agnostic boxes.

        Args:
            now_ns: the time on the clock of the frames, by which objects not found any more grow stale; None means
                the newest frame's stamp.
            window_m: edge of the network's window instead of ``config.network.window_m``; infinite = everything, in
                overlapping windows of that size where the map is larger.
        """
        with self._scene_lock:
            clock = StageClock()
            copy, cameras = self._copy()
            clock.lap("copy")
            snapshot = copy.snapshot()
            clock.lap("snapshot")
            floor_z_m = self._floor.of(snapshot.mean_point_m)
            clock.lap("floor")
            if self.lift is not None:
                self.lift.detect(copy.keyframes, snapshot, floor_z_m)
                clock.lap("lift")
            now = cameras.stamp_ns if now_ns is None else self._frame.now(now_ns)
            place = cameras.camera_m, self.config.volume.radius_m
            prediction: ScenePrediction | None = None
            found: Detections | None
            if self._map_predictor is None:
                layers = separate_layers(snapshot, floor_z_m, self.config.objects)
                clock.lap("layers")
                found = find_boxes(snapshot, layers, self.config.objects)
                clock.lap("boxes")
                if self.lift is not None:
                    found = self.lift.fuse(found, snapshot)
                if self.classes is not None:
                    found = self.classes.joined(found)
                self._objects.update(found, snapshot, now, *place)
                clock.lap("objects")
                semantic = semantic_voxels(snapshot, layers, self.config.objects.cell_size_m)
            else:
                prediction = self._look(self._map_predictor, copy, snapshot, cameras, floor_z_m, window_m)
                clock.lap("network")
                found = prediction.detections
                if found is not None:
                    found = refine_extents(found, snapshot, floor_z_m, shipped_priors(), self._scores.keep)
                    clock.lap("extents")
                if found is not None and self.lift is not None:
                    doubts = None if self._reliability is None else self._reliability.doubts(found.labels)
                    found = self.lift.fuse(found, snapshot, self._even, doubts)
                if found is not None and self.classes is not None:
                    found = self.classes.joined(found)
                if found is not None:
                    self._objects.update(found, snapshot, now, *place, prediction.region, self._scores)
                clock.lap("objects")
                if prediction.semantic is not None:
                    semantic = self._semantic.update(prediction.semantic, prediction.answered, *place)
                else:
                    known = self._semantic.cells()
                    semantic = self._map_predictor.no_cells if known is None else known
            clock.lap("semantic")
            self._prediction, self._voxels = prediction, snapshot
            objects = self._publish(None if prediction is None else prediction.detections)
            stamp_ns, T_world_map = self._stamp_of(cameras), self.T_world_map
            if self.lift is not None:
                self.lift.remember_looks(objects)
            source = None if cameras.newest is None else self._frame.leave_time(cameras.newest)
            clock.lap("objects")
        grid = navigation_grid(snapshot, floor_z_m, self.config.grid, None if prediction is None else semantic)
        self._grid = grid
        clock.lap("grid")
        return Perception.of(
            objects,
            stamp_ns=stamp_ns,
            semantic=semantic,
            grid=grid,
            voxels=snapshot,
            stage_ms=clock.stage_ms,
            diagnostics=(*self.device_faults, *(() if prediction is None else prediction.diagnostics)),
            source=source,
            T_world_map=T_world_map,
        )

    def recall(self) -> Perception:
        """What the map holds, without looking anew: of a map from a file, for example. Changes nothing.

        Without labelled cells of a network, cells are those of floor, walls and things.
        """
        with self._scene_lock:
            copy, cameras = self._copy()
            snapshot = copy.snapshot()
            floor_z_m = self._floor.of(snapshot.mean_point_m)
            cells = self._semantic.cells()
            self._voxels = snapshot
            objects, stamp_ns, T_world_map = self._publish(), self._stamp_of(cameras), self.T_world_map
            source = None if cameras.newest is None else self._frame.leave_time(cameras.newest)
        grid = navigation_grid(snapshot, floor_z_m, self.config.grid, cells)
        self._grid = grid
        if cells is None:
            layers = separate_layers(snapshot, floor_z_m, self.config.objects)
            cells = semantic_voxels(snapshot, layers, self.config.objects.cell_size_m)
        return Perception.of(
            objects,
            stamp_ns=stamp_ns,
            semantic=cells,
            grid=grid,
            voxels=snapshot,
            source=source,
            T_world_map=T_world_map,
        )

    def ground(self, query: Query | str, viewpoint: NDArray[np.float64] | None = None) -> Grounding:
        """Answer a query about objects; ``viewpoint``: (4, 4) pose of the speaker, if the query carries none. Never
        raises for any text."""
        return self.ground_many([query], viewpoint)[0]

    def ground_many(
        self,
        queries: Sequence[Query | str],
        viewpoint: NDArray[np.float64] | None = None,
        *,
        neural: bool = True,
        own_sides: bool = False,
    ) -> list[Grounding]:
        """:meth:`ground` for many queries; the network reads those of one speaker together.

        ``neural=False``: without the network's grounding; categories, colours and relations of objects alone decide.
        ``own_sides``: see :func:`~.language.answer.ground_objects`.
        """
        context, voxels, prediction = self._known, self._voxels, self._prediction
        asked = [Query.of(query, viewpoint) for query in queries]
        called = [with_user_names(query, context.objects) for query in asked]
        labels = {o.label for o in (*context.objects, *context.shown)}
        parsed = [query.parsed(labels) for query in asked]
        if self.lift is not None:
            self.lift.asked_for([n for query in parsed if query.meaning is not None for n in all_nouns(query.meaning)])

        def colors(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
            return mean_colors(voxels, boxes) if voxels is not None else np.full((len(boxes), 3), np.nan)

        candidates: list[PhraseCandidates | None] = [None] * len(parsed)
        if neural and self.inference is not None and prediction is not None:
            candidates = propose_targets(self.inference, prediction, parsed)
        things = [self._named_by_looks(self._named_by_list(context, query), query) for query in parsed]
        answers = [
            ground_objects(
                query,
                objects,
                colors=colors,
                candidates=found,
                named=self._map_predictor is not None,
                low_confidence=context.low_confidence if objects is context.objects else None,
                own_sides=own_sides,
            )
            if by_name is None
            else by_name.restored(ground_objects(by_name.query, by_name.objects, colors=colors, own_sides=own_sides))
            for query, found, objects, by_name in zip(parsed, candidates, things, called, strict=True)
        ]
        classes = self.classes
        return answers if classes is None else [classes.restored(answer, context.shown) for answer in answers]

    def _named_by_list(self, context: QueryContext, query: Query) -> tuple[SceneObject, ...]:
        """The objects, under names of the class list that the query uses and that no lexicon has."""
        if self.classes is None or query.meaning is None or query.meaning.problem:
            return context.objects
        named = self.classes.in_own_words(context.shown, all_nouns(query.meaning))
        changed = any(a.label != b.label for a, b in zip(named, context.objects, strict=True))
        return named if changed else context.objects

    def _named_by_looks(self, objects: tuple[SceneObject, ...], query: Query) -> tuple[SceneObject, ...]:
        """The objects, under names that no label has where they look so; themselves where labels answer."""
        if self.lift is None or self.lift.looks is None or query.meaning is None or query.meaning.problem:
            return objects
        named = self.lift.looks.renamed(objects, all_nouns(query.meaning), lexicon().similarity)
        return objects if named == objects else named

    def add_detections(self, found: Detections2d, drops: Counter[str] | None = None) -> None:
        """2-D detections of another program, stamped as the camera's images are; used by the next perceptions once
        there is a keyframe of that camera and stamp. From any thread.

        ``drops``: what was dropped of them before, by reason. Raises ``ValueError`` where nothing is lifted.
        """
        if self.lift is None:
            raise ValueError("detections of other programs need lift.from_topics (or a lift)")
        if drops:
            self.lift.count_drops(drops)
        with self._volume_lock:
            stamp_ns = self._frame.time_in_map(found.camera, found.stamp_ns)
        self.lift.add(found if stamp_ns == found.stamp_ns else replace(found, stamp_ns=stamp_ns))

    def approach(
        self, thing: SceneObject, robot_m: NDArray[np.float64] | None = None, robot_radius_m: float = 0.3
    ) -> NDArray[np.float64] | None:
        """(4, 4) pose on the floor to be at an object, in the map, by the last perception's grid; None = there is none.

        ``robot_m``: (2,) or (3,) where the robot is now; see :func:`~.scene.approach.approach_pose`.
        """
        grid = self._grid
        if grid is None:
            return None
        return approach_pose(thing.box, grid, robot_m, ApproachOptions(robot_radius_m))

    def name_object(self, number: int, name: str) -> SceneObject:
        """As :meth:`LiveMap.name_object`; ``ValueError`` also for words that sentences are made of, whatever they mean:
        "the", "red", "sofas"."""
        if name.strip():
            check_no_kind(check_words(name, "name"))
        return super().name_object(number, name)

    def correct_object(self, number: int, label: str = "", not_there: bool = False) -> SceneObject:
        """As :meth:`LiveMap.correct_object`; ``ValueError`` also for words that are never a thing."""
        if label.strip():
            check_label(check_words(label, "label"))
        return super().correct_object(number, label, not_there)

    def prepare_language(self) -> None:
        """Read what reads sentences now, so that the first one does not wait for it; from any thread.

        The text encoder only where the network reads sentences, and nothing where no network gives things names. Raises
        what reading it raises (a package that is not installed, for example); the first sentence then tries again.
        """
        inference = self.inference
        if inference is not None:
            sentence_reader()
        if inference is not None and inference.network.grounding is not None and inference.text_encoder is not None:
            inference.text_encoder.encode(["a chair"])

    # ---------------------------------------------------------------------------------------------------------- reads

    @property
    def objects(self) -> tuple[SceneObject, ...]:
        """Confirmed objects of the last perception, file or correction; never waits for the one in flight."""
        return self._known.shown

    @property
    def prediction(self) -> ScenePrediction | None:
        """Of the network at the last :meth:`perceive`, with boxes of any score; None before the first."""
        return self._prediction

    def predict(self, window_m: float | None = None) -> ScenePrediction:
        """Prediction of the network for the map as it is now, with boxes of any score; changes no object or label.

        ``window_m`` as for :meth:`perceive`. Raises ``ValueError`` without a network.
        """
        if self._map_predictor is None:
            raise ValueError("predicting needs a network")
        with self._scene_lock:
            copy, cameras = self._copy()
            snapshot = copy.snapshot()
            floor_z_m = self._floor.of(snapshot.mean_point_m)
            return self._look(self._map_predictor, copy, snapshot, cameras, floor_z_m, window_m)

    def release_accelerator(self) -> None:
        """Give the memory of the accelerator back, after the perception in flight; the next one takes it again.

        The map stays: image features are computed anew from the keyframes.
        """
        if self._map_predictor is not None:
            with self._scene_lock:
                self._map_predictor.release()

    @property
    def devices(self) -> dict[str, str]:
        """Where what is computed now: "network" (where there is one) and "volume"."""
        found = {} if self.inference is None else {"network": str(self.inference.device)}
        return {**found, "volume": str(self.volume.device)}

    @property
    def device_faults(self) -> tuple[str, ...]:
        """What a device failed by, in words, since when the CPU does its work."""
        faults = self.volume.fault, "" if self._map_predictor is None else self._map_predictor.fault
        return tuple(fault for fault in faults if fault)

    # -------------------------------------------------------------------------------------------------------- private

    @property
    def _even(self) -> float:
        """The network's score at which a box is as likely right as wrong, in one look."""
        return self._scores.even or self._scores.publish or 0.5

    def _look(
        self,
        predictor: MapPredictor,
        copy: VolumeCopy,
        snapshot: VoxelSnapshot,
        cameras: LatestCameraPoses,
        floor_z_m: float,
        window_m: float | None,
    ) -> ScenePrediction:
        """What the network sees, its scores made probabilities where the weights say how the map bears them out; by
        them it is told which things go without a name."""
        prediction = predictor.predict(copy, cameras.view_direction, floor_z_m, window_m)
        found = prediction.detections
        if found is None:
            return prediction
        if self._reliability is not None:
            found = self._reliability(found, snapshot, floor_z_m)
        return replace(prediction, detections=predictor.inference.told(found))

    def _copy(self) -> tuple[VolumeCopy, LatestCameraPoses]:
        with self._volume_lock:
            return self.volume.copy(), self._cameras

    def _stamp_of(self, cameras: LatestCameraPoses) -> int:
        """Stamp of the newest frame of all cameras; 0 before the first."""
        if not cameras.poses:
            return 0
        camera, (map_ns, _) = max(cameras.poses.items(), key=lambda item: item[1][0])
        return self._frame.stamp_of(camera, map_ns)

    def _publish(self, detections: Detections | None = None) -> tuple[SceneObject, ...]:
        """Replace what queries are answered from: the objects, and the ``detections`` that lie in the same world."""
        objects = super()._publish()
        confirmed = tuple(o for o in objects if o.state == ObjectState.CONFIRMED)
        tentative = tuple(o for o in objects if o.state == ObjectState.TENTATIVE)
        known = confirmed
        published: tuple[SceneObject, ...] | None = None
        if self.classes is not None:  # sentences may use all words
            known, published = self.classes.in_own_words(confirmed), confirmed
            tentative = self.classes.in_own_words(tentative)
        # no bound method: it would hold the perceptron, and the perceptron it
        first_score = partial(published_score, looks=1, scores=self._scores, config=self.config.objects)
        self._known = QueryContext(known, tentative, detections, self._scores, first_score, published)
        return objects

    def _forget(self) -> None:
        super()._forget()
        self._known, self._voxels, self._prediction, self._grid = QueryContext(), None, None, None
        if self.lift is not None:
            self.lift.forget()


def _names_encoder(inference: Predictor | None) -> TextEncoder:
    """MiniLM, whose sentence features compare names: the network's own where it reads sentences by it.

    Raises as :func:`~.nn.text_encoder.text_encoder`.
    """
    grounding = None if inference is None else inference.network.config.grounding
    if inference is not None and grounding is not None and grounding.text_encoder == "minilm":
        own = inference.text_encoder
        if own is not None:
            return own
    return text_encoder("minilm")
