"""Detection lift: runs 2-D detectors on keyframes and fuses what they find with the boxes of the network.

:meth:`DetectionLift.with_evidence` is called with the network's boxes and a copy of the map. The detectors run in that
call (replays, tests) or in their own thread (:meth:`DetectionLift.start`); :meth:`DetectionLift.add` takes detections
of other programs. Several detectors take turns, each on the newest keyframe that it has not processed; one that fails
or exceeds its time limit does not stop the others. Detections are kept as long as their keyframe.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.config import require_at_least, require_within
from embodied_perceptron.detection2d.association import Candidate, FitCache, LiftedView, find_candidates, sightings
from embodied_perceptron.detection2d.detections2d import Detections2d
from embodied_perceptron.detection2d.detectors import Detector, UnknownImageError
from embodied_perceptron.detection2d.extents import complete_box, grow_to_views
from embodied_perceptron.detection2d.fusion import (
    FusionContext,
    Hypothesis,
    LiftedObject,
    MapSurface,
    evidence_of,
    find_hypotheses,
    fuse,
    plausibilities,
)
from embodied_perceptron.detection2d.lifting import LiftedDetection, VoxelIndex, lift_view
from embodied_perceptron.detection2d.open_vocabulary import OpenVocabularyLabels, RegionEncoder, mean_embedding
from embodied_perceptron.detection2d.persons import PersonMask, PersonStatistics
from embodied_perceptron.detection2d.scheduler import DetectorSlot, LiftWorker, SchedulerRules, TooLateError, masks_fit
from embodied_perceptron.geometry.suppression import distinct_lifted
from embodied_perceptron.inference.class_priors import detector_priors
from embodied_perceptron.inference.posterior import ANY_DETECTOR, DetectorModel, shipped_detector_model
from embodied_perceptron.mapping.keyframes import Keyframe
from embodied_perceptron.results import UNNAMED, Detections, SceneObject, VoxelSnapshot
from embodied_perceptron.scene.live_map import MapCopy
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame

_LOG = logging.getLogger(__name__)

UNKNOWN_CAMERA = "unknown_camera"
NO_KEYFRAME = "no_keyframe"
TOO_LATE = "too_late"  # older than the oldest retained keyframe of its camera
WAITING_TOO_MANY = "too_many_waiting"
TOO_SLOW = "detector_too_slow"  # images that exceeded the time limit
NO_DETECTIONS = "images_without_detections"  # that a file of detections does not list
OTHER_SIZE = "masks_of_another_size"  # than their image

_MAX_WANTED = 32  # words of queries
_MAX_WAITING = 256  # detections of other programs whose keyframe may still arrive
_MAX_WAIT_NS = 5_000_000_000
_FLOOR_MOVED_M = 0.03
_SHAPES_EVERY, _SHAPES_GROWTH = 16, 0.6  # new keyframes, or share of voxels, after which shapes are recomputed
_SAME_VOXELS = 0.02
_COMPLETION_PROBES = 200


@dataclass
class LiftStatistics:
    """Counts and times since the start.

    Attributes:
        pictures: images processed by a detector here or by another program.
        found: accepted 2-D detections.
        lifted: of them, lifted to 3-D.
        dropped: 2-D detections by reason, of all stages.
        state: of the detector: ``running``, ``retrying``, ``disabled``, or ``none``.
        failures: of the detectors; ``last_error``: the last message.
        detector_ms, lift_ms, join_ms: total wall time of the detector, of lifting, and of the rest (joining views,
            shapes of the map, fusing with the network).
        persons: counts of masking; None = people are mapped.
    """

    pictures: int = 0
    found: int = 0
    lifted: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    state: str = "none"
    failures: int = 0
    last_error: str = ""
    detector_ms: float = 0.0
    lift_ms: float = 0.0
    join_ms: float = 0.0
    persons: PersonStatistics | None = None


@dataclass(frozen=True)
class LiftSettings:
    """Settings of the lift.

    Attributes:
        min_probability: least probability of an object from detectors alone.
        stamp_tolerance_s: largest stamp difference of detections of other programs and their keyframe.
        schedule: of the detectors.
        detector_model: likelihoods of detections; None = the shipped model.
    """

    min_probability: float = 0.4
    stamp_tolerance_s: float = 0.005
    schedule: SchedulerRules = field(default_factory=SchedulerRules)
    detector_model: DetectorModel | None = None

    def __post_init__(self) -> None:
        require_within(self, 0, 1, "min_probability")
        require_at_least(self, 0, "stamp_tolerance_s")


class DetectionLift:
    """See the module docstring. ``with_evidence`` is called by one thread, ``add`` by any.

    Args:
        make_detector: builds the 2-D detector, and builds it again after a failure; or several by name,
            which share the rate; None = other programs detect.
        settings: see :class:`LiftSettings`.
        encoder: makes embeddings of detections; None = none.
        names: vocabulary of other programs, if known.
        persons: masks people; None = they are mapped.

    Attributes:
        priors: size priors of names.
        detector_model: likelihoods of detections.
        views: keyframes with lifted detections.
        lifted_objects: objects that the views agree on; ``objects``: those that are probable from detectors alone.
        hypotheses: of the last :meth:`with_evidence`; ``can_name``: whether the network had names then.

    Raises what ``make_detector`` raises: a detector that cannot be built is an error at the start.
    """

    def __init__(
        self,
        make_detector: Callable[[], Detector] | Mapping[str, Callable[[], Detector]] | None = None,
        settings: LiftSettings | None = None,
        encoder: RegionEncoder | None = None,
        names: Sequence[str] = (),
        persons: PersonMask | None = None,
    ) -> None:
        self.persons = persons
        self.settings = settings if settings is not None else LiftSettings()
        self.priors = detector_priors()
        self.encoder = encoder
        self.looks = None if encoder is None else OpenVocabularyLabels(encoder)
        self._words: tuple[str, ...] | None = None  # of queries
        self._asked = 0  # number of changes of the words
        makers = make_detector if isinstance(make_detector, Mapping) else {ANY_DETECTOR: make_detector}
        named = {source: make for source, make in makers.items() if make is not None}
        schedule = replace(self.settings.schedule, max_rate_hz=self.settings.schedule.max_rate_hz / max(len(named), 1))
        self._slots = tuple(DetectorSlot(source, make, schedule) for source, make in named.items())
        self._takes_words = any(slot.takes_words for slot in self._slots)
        self._turn = 0
        self._wanted: OrderedDict[str, None] = OrderedDict()  # words of queries, the newest last
        self._names = frozenset(names)  # of other programs
        given = self.settings.detector_model
        self.detector_model = shipped_detector_model() if given is None else given
        self._worker: LiftWorker | None = None
        self._lock = threading.Lock()  # of state shared by the detector's thread, add() and detect()
        self._statistics = LiftStatistics(state="running" if self._slots else "none")
        self._floor_z_m: float | None = None
        self._surface: MapSurface | None = None  # of the map at the last renewal
        self._yaw_rad = 0.0
        self._fits = FitCache()
        self.can_name = True
        self.forget()

    # ----------------------------------------------------------------------------------------------- sources of boxes

    def add(self, found: Detections2d, stamp_ns: int | None = None) -> None:
        """Add detections of another program, to be used with the keyframe of that camera and stamp. Never blocks.

        Args:
            found: the detections.
            stamp_ns: their stamp in the map's time; None = their own.
        """
        if stamp_ns not in (None, found.stamp_ns):
            found = replace(found, stamp_ns=stamp_ns)
        with self._lock:
            self._waiting[(found.camera, found.stamp_ns)] = found
            while len(self._waiting) > _MAX_WAITING:
                _, oldest = self._waiting.popitem(last=False)
                self._statistics.dropped[WAITING_TOO_MANY] += max(1, len(oldest))

    def count_drops(self, drops: Counter[str]) -> None:
        """Count detections of another program that were dropped before :meth:`add`."""
        with self._lock:
            self._statistics.dropped.update(drops)

    def asked_for(self, words: Sequence[str]) -> None:
        """Make open-vocabulary detectors look for words of a query too; of all queries the newest words are kept.

        They rerun on the newest keyframes first. Earlier detections are used until a detector has run again.
        """
        if not self._takes_words:
            return
        with self._lock:
            for word in words:
                if word and not any(word in slot.own_words for slot in self._slots):
                    self._wanted[word] = None
                    self._wanted.move_to_end(word)
            while len(self._wanted) > _MAX_WANTED:
                self._wanted.popitem(last=False)
            wanted = tuple(sorted(self._wanted))
            if wanted and wanted != self._words:
                self._words = wanted
                self._asked += 1
                for slot in self._slots:
                    slot.set_words(wanted)

    def without_persons(self, posed: PosedFrame) -> PosedFrame:
        """Return the frame with people masked; called by the fusion thread."""
        return posed if self.persons is None else self.persons.applied(posed)

    def start(self) -> None:
        """Run detectors and encoder in their own thread from now on; :meth:`with_evidence` then never waits."""
        if self.persons is not None:
            self.persons.live = True
        if not self._slots and self.encoder is None:
            return
        self._worker = LiftWorker(lambda: self._detect_one(time.monotonic_ns()) or self._embed_one())
        self._worker.start()

    def stop(self) -> bool:
        """Stop that thread; return False when the detector does not return."""
        worker, self._worker = self._worker, None
        return True if worker is None else worker.stop()

    def forget(self) -> None:
        """Start another map: delete all detections."""
        with self._lock:
            self._found: WeakKeyDictionary[RgbdFrame, dict[str, Detections2d]] = WeakKeyDictionary()  # by detector
            for slot in self._slots:
                slot.asked_of.clear()
            self._waiting: OrderedDict[tuple[str, int], Detections2d] = OrderedDict()
            self._pending: list[Keyframe] = []
            self._unembedded: list[Keyframe] = []
            self._cameras: set[str] = set()
            # detectors whose detections have embeddings
            self._embedded: WeakKeyDictionary[RgbdFrame, set[str]] = WeakKeyDictionary()
        if self.persons is not None:
            self.persons.forget()
        if self.looks is not None:
            self.looks.clear()
        self._lifted: _Lifted = WeakKeyDictionary()
        self._shapes = np.zeros((0, 9))  # of the map at the last renewal
        self._renewed: tuple[int, int] | None = None  # images and voxels at the last renewal
        self._state: tuple[tuple[int, ...], int] | None = None  # images and voxels of the last result
        self._completed: dict[int, LiftedObject] = {}  # of the last call
        self.views: tuple[LiftedView, ...] = ()
        self.lifted_objects: tuple[LiftedObject, ...] = ()
        self.objects: tuple[LiftedObject, ...] = ()
        self.hypotheses: list[Hypothesis] = []

    @property
    def floor_z_m(self) -> float:
        """Return the height of the floor used for lifting; 0 before the first."""
        return 0.0 if self._floor_z_m is None else self._floor_z_m

    def fusion_context(self, snapshot: VoxelSnapshot, floor_z_m: float) -> FusionContext:
        """Return the context in which hypotheses are fused."""
        return FusionContext(self.views, snapshot, floor_z_m, self.priors)

    @property
    def vocabulary(self) -> frozenset[str]:
        """Return the canonical names that the detectors know."""
        known = (slot.vocabulary for slot in self._slots) if self._slots else (self._names,)
        return frozenset(map(self.priors.canonical, frozenset().union(*known)))

    def statistics(self) -> LiftStatistics:
        """Return a copy of the counts."""
        with self._lock:
            s = self._statistics
            persons = None if self.persons is None else self.persons.statistics()
            return replace(s, dropped=Counter(s.dropped), persons=persons)

    @property
    def busy_s(self) -> float:
        """Return the time that a detector has spent on one image."""
        return max(0.0 if self._worker is None else self._worker.busy_s, *(slot.busy_s for slot in self._slots), 0.0)

    # ------------------------------------------------------------------------------------------------------ detecting

    def with_evidence(self, network: Detections, scene: MapCopy, can_name: bool = True) -> Detections:
        """Fuse the boxes of the network (or shapes alone) with the lifted detections.

        Without a thread the detector's rate is bounded by the stamps of the keyframes.

        Args:
            network: its boxes; scores keep their certainty.
            scene: the map.
            can_name: the network gives names (shapes do not).
        """
        self._lift_all(scene)
        began = time.perf_counter()
        around = self.fusion_context(scene.voxels, scene.floor_z_m)
        self.hypotheses, self.can_name = find_hypotheses(network, self.lifted_objects, around), can_name
        least = self.settings.min_probability
        fused = fuse(network, self.lifted_objects, self.hypotheses, self.detector_model, least, can_name)
        with self._lock:
            self._statistics.join_ms += (time.perf_counter() - began) * 1e3
        return fused

    # -------------------------------------------------------------------------------------------------------- private

    def _lift_all(self, scene: MapCopy) -> None:
        """Bring :attr:`views`, and the objects to the map as it is now."""
        keyframes, snapshot, floor_z_m = scene.volume.keyframes, scene.voxels, scene.floor_z_m
        self._match_waiting(keyframes)
        with self._lock:
            self._pending = list(keyframes) if self._slots else []
            self._unembedded = [] if self.encoder is None else [k for k in keyframes if k.frame in self._found]
        if self._worker is not None:
            self._worker.wake()
        elif keyframes:
            stamp_ns = max(k.frame.stamp_ns for k in keyframes)
            while self._detect_one(stamp_ns) or self._embed_one():
                pass
        with self._lock:
            known = [
                (k, source, found) for k in keyframes for source, found in sorted(self._found.get(k.frame, {}).items())
            ]
        if self._floor_z_m is None or abs(floor_z_m - self._floor_z_m) > _FLOOR_MOVED_M:
            self._floor_z_m = floor_z_m
            self._lifted.clear()
        state = tuple(id(part) for keyframe, _, found in known for part in (keyframe, found)), len(snapshot)
        last = self._state
        if last is not None and state[0] == last[0] and abs(state[1] - last[1]) <= _SAME_VOXELS * last[1]:
            return
        self._state = state
        began, lifting_ms = time.perf_counter(), self._statistics.lift_ms
        index = VoxelIndex(snapshot)
        if self._map_changed(len(known), len(snapshot)):
            self._yaw_rad, self._surface = scene.manhattan.yaw_rad, None
        self._lift(known, index)
        self.views = tuple(
            LiftedView(source, k.id, k.frame, k.T_world_camera, self._lifted[k][source][1], found)
            for k, source, found in known
        )
        candidates = find_candidates(self.views, index, self._yaw_rad, self._fits)
        if candidates and self._surface is None:  # a map without detections needs no shapes
            self._shapes, self._surface, self._completed = scene.shapes.boxes, MapSurface(snapshot), {}
        order = sorted(self._complete_all(candidates), key=lambda o: -o.probability)  # of overlapping ones the first
        boxes = np.array([o.box for o in order]).reshape(-1, 9)
        self.lifted_objects = tuple(order[i] for i in distinct_lifted(boxes, [o.label for o in order]))
        self.objects = tuple(o for o in self.lifted_objects if o.probability >= self.settings.min_probability)
        with self._lock:
            whole_ms = (time.perf_counter() - began) * 1e3
            self._statistics.join_ms += whole_ms - (self._statistics.lift_ms - lifting_ms)

    def _detect_one(self, now_ns: int) -> bool:
        """Run the next detector on its newest unprocessed image; return False if none could run."""
        with self._lock:
            asked = self._asked
            for _ in self._slots:
                slot = self._slots[self._turn % len(self._slots)]
                self._turn += 1
                if slot.busy_s > 0:
                    continue
                waiting = [k for k in self._pending if slot.asked_of.get(k.frame, -1) < asked]
                keyframe = slot.scheduler.next(waiting, now_ns)
                if keyframe is not None:
                    break
            else:
                return False
        began = time.perf_counter()
        try:
            found, drops = slot.detect(keyframe.frame, self._words, limited=self._worker is not None)
            if self.encoder is not None:
                found = self.encoder.with_embeddings(found, keyframe.frame)
        except Exception as error:  # a failing detector must not stop perception
            self._note_failure(slot, error, (keyframe.frame, asked), now_ns)
            return True
        with self._lock:
            slot.scheduler.succeeded()
            self._found.setdefault(keyframe.frame, {})[slot.source] = found
            slot.asked_of[keyframe.frame] = asked
            self._count(found, drops)
            self._statistics.detector_ms += (time.perf_counter() - began) * 1e3
            self._note_detectors()
        return True

    def _note_failure(self, slot: DetectorSlot, error: Exception, asked: tuple[RgbdFrame, int], now_ns: int) -> None:
        """Record why a detector has no answer about an image; only after an unexpected error is the image retried.

        ``asked``: the image, and the number of the words that the detector ran with.
        """
        reason = {UnknownImageError: NO_DETECTIONS, TooLateError: TOO_SLOW}.get(type(error))
        if reason == TOO_SLOW:  # it may be in time for the next image
            _LOG.warning("detector %s: %s; the image is skipped", slot.source, error)
        with self._lock:
            if reason == NO_DETECTIONS:  # no view of the image
                slot.scheduler.passed_over(error)
            else:
                slot.scheduler.failed_with(error, now_ns)
            if reason is None:
                slot.detector = None  # rebuilt before the next try
            else:
                slot.asked_of[asked[0]] = asked[1]
                self._statistics.dropped[reason] += 1
            self._note_detectors()

    def _embed_one(self) -> bool:
        """Add embeddings to the newest detections of another program; return False if none lacks them."""
        with self._lock:
            waiting = [
                (k.id, source, k.frame, found)
                for k in self._unembedded
                for source, found in self._found.get(k.frame, {}).items()
                if found.embeddings is None and source not in self._embedded.get(k.frame, set())
            ]
        if not waiting or self.encoder is None:
            return False
        _, source, frame, found = max(waiting, key=lambda entry: entry[:2])
        try:
            embedded = self.encoder.with_embeddings(found, frame)
        except Exception as error:  # as for a detector
            embedded = found
            with self._lock:
                self._statistics.last_error = f"{type(error).__name__}: {error}"
        with self._lock:
            if self._found.get(frame, {}).get(source) is found:
                self._found[frame][source] = embedded
            self._embedded.setdefault(frame, set()).add(source)
        return True

    def update_embeddings(self, objects: Sequence[SceneObject]) -> None:
        """Update the embeddings of the map's objects after the last :meth:`with_evidence`."""
        if self.looks is not None:
            boxes = np.array([o.box for o in self.objects]).reshape(-1, 9)
            self.looks.update(objects, boxes, [self._embedding(o.candidate) for o in self.objects])

    def _note_detectors(self) -> None:
        states = {slot.scheduler.state for slot in self._slots}
        self._statistics.state = next(s for s in ("running", "retrying", "disabled") if s in states)
        self._statistics.failures = sum(slot.scheduler.failed for slot in self._slots)
        errors = [slot.scheduler.last_error for slot in self._slots if slot.scheduler.last_error]
        self._statistics.last_error = errors[-1] if errors else ""

    def _count(self, found: Detections2d, drops: Counter[str]) -> None:
        self._statistics.pictures += 1
        self._statistics.found += len(found)
        self._statistics.dropped.update(drops)

    def _match_waiting(self, keyframes: Sequence[Keyframe]) -> None:
        """Match detections of other programs with their keyframe; others wait or are dropped with a reason."""
        with self._lock:
            self._cameras.update(k.frame.camera for k in keyframes)
            newest_ns = max((k.frame.stamp_ns for k in keyframes), default=0)
            tolerance_ns = int(self.settings.stamp_tolerance_s * 1e9)
            for (camera, stamp_ns), found in list(self._waiting.items()):
                frames = [k.frame for k in keyframes if k.frame.camera == camera]
                stamps = [frame.stamp_ns for frame in frames] or [stamp_ns]
                frame = min(frames, key=lambda f: abs(f.stamp_ns - stamp_ns), default=None)
                reason = None
                if frame is not None and abs(frame.stamp_ns - stamp_ns) <= tolerance_ns:
                    if masks_fit(found, frame):
                        own = replace(found, camera=camera, stamp_ns=frame.stamp_ns)
                        self._found.setdefault(frame, {})[ANY_DETECTOR] = own
                        self._count(found, Counter())
                    else:
                        reason = OTHER_SIZE
                elif camera not in self._cameras and keyframes:
                    reason = UNKNOWN_CAMERA
                elif stamp_ns < min(stamps):
                    reason = TOO_LATE
                elif stamp_ns < max(stamps) or abs(newest_ns - stamp_ns) > _MAX_WAIT_NS:
                    reason = NO_KEYFRAME  # keyframes of a camera arrive in order
                else:
                    continue
                del self._waiting[camera, stamp_ns]
                if reason is not None:
                    self._statistics.dropped[reason] += max(1, len(found))

    def _lift(self, known: Sequence[tuple[Keyframe, str, Detections2d]], index: VoxelIndex) -> None:
        for keyframe, source, found in known:
            of_keyframe = self._lifted.setdefault(keyframe, {})
            if source in of_keyframe and of_keyframe[source][0] is found:
                continue
            began = time.perf_counter()
            pose = keyframe.T_world_camera
            lifted, drops = lift_view(found, keyframe.frame, pose, self.floor_z_m, self.priors, index, self._yaw_rad)
            of_keyframe[source] = found, lifted
            with self._lock:
                self._statistics.lifted += len(lifted)
                self._statistics.dropped.update(drops)
                self._statistics.lift_ms += (time.perf_counter() - began) * 1e3

    def _map_changed(self, pictures: int, voxels: int) -> bool:
        """True when the map changed so much that walls and shapes are recomputed."""
        if self._renewed is not None:
            since, growth = abs(pictures - self._renewed[0]), abs(voxels - self._renewed[1])
            if since < _SHAPES_EVERY and growth <= _SHAPES_GROWTH * self._renewed[1]:
                return False
        self._renewed = (pictures, voxels)
        return True

    def _complete_all(self, candidates: Sequence[Candidate]) -> tuple[LiftedObject, ...]:
        """Complete candidates; of unchanged ones (the same points) only the view numbers change."""
        done: dict[int, LiftedObject] = {}
        for candidate in candidates:
            known = self._completed.get(id(candidate.points_m))
            new = self._complete(candidate) if known is None else replace(known, candidate=candidate)
            done[id(candidate.points_m)] = new  # keeps the points alive
        self._completed = done
        return tuple(done.values())

    def _complete(self, candidate: Candidate) -> LiftedObject:
        """Complete the box of a candidate, and infer its name and probability from detectors alone."""
        floor_z_m, evidence = self.floor_z_m, evidence_of([candidate])

        def alone(box: NDArray[np.float64]) -> tuple[str, float]:
            plausibility = plausibilities(evidence, box, floor_z_m, self.priors)
            names = self.detector_model.posterior(None, evidence, plausibility)
            named = sorted(pair for pair in names.items() if pair[0] != UNNAMED)
            return max(named or names.items(), key=lambda pair: pair[1])

        label, probability = alone(candidate.box)
        prior = self.priors.get(label)
        members = [self.views[v].lifted[i] for v, i in candidate.members]
        of = [self.views[v] for v, _ in candidate.members]
        cameras = [view.camera for view in of]
        box = grow_to_views(candidate.box, members, cameras, prior, floor_z_m)
        assert self._surface is not None
        within = partial(self._surface.within, limit=_COMPLETION_PROBES)
        views = (within, lambda points: sightings(points, members, of))
        directions = np.stack([T[2, :3] for T, _ in cameras])
        uncut = np.array([not d.cut for d in members])
        directions = directions[uncut] if uncut.any() else directions
        points_m = candidate.points_m
        box = complete_box(box, points_m, label, self._shapes, floor_z_m, self.priors, views, directions)
        if box is not candidate.box:
            _, probability = alone(box)
        return LiftedObject(candidate, box, label, probability)

    def _embedding(self, candidate: Candidate) -> NDArray[np.float32] | None:
        """Return the mean embedding of a candidate's views, weighted by scores."""
        vectors, weights = [], []
        for v, i in candidate.members:
            row, found = self.views[v].lifted[i].row, self.views[v].found
            if found.embeddings is not None:
                vectors.append(found.embeddings[row])
                weights.append(found.scores[row])
        return mean_embedding(np.stack(vectors), np.array(weights)) if vectors else None


_Lifted = WeakKeyDictionary[Keyframe, dict[str, tuple[Detections2d, list[LiftedDetection]]]]
