"""The lift as one object: keyframes in, detections for the object map out.

``DetectionLift.detect(scene)`` is called where a perception has its copy of the map. The detectors run there too
(replays, tests), or in a thread of their own (:meth:`DetectionLift.start`); detections of other programs come in by
:meth:`DetectionLift.add`. Several detectors take turns: each looks at the newest keyframe that it has not seen. One
that fails, or that in the thread takes longer than it may, stops none of the others. What is known of a picture lives
as long as its keyframe.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.detection2d.association import Candidate, FitCache, LiftedView, find_candidates
from embodied_perceptron.detection2d.detections2d import Detections2d, no_detections
from embodied_perceptron.detection2d.detectors import Detector, ToldInWords
from embodied_perceptron.detection2d.fusion import (
    DetectorBelief,
    FusionContext,
    Hypothesis,
    LiftedObject,
    evidence_of,
    find_hypotheses,
    fuse,
    plausibilities,
)
from embodied_perceptron.detection2d.layouts import LayoutError
from embodied_perceptron.detection2d.lifting import LiftedDetection, LiftRules, VoxelIndex, complete_box, lift_view
from embodied_perceptron.detection2d.open_vocabulary import OpenVocabularyLabels, RegionEncoder, mean_embedding
from embodied_perceptron.detection2d.persons import PersonMask, PersonStatistics
from embodied_perceptron.detection2d.scheduler import (
    LiftScheduler,
    LiftWorker,
    LimitedCalls,
    SchedulerRules,
    TooLateError,
)
from embodied_perceptron.geometry.suppression import distinct_lifted
from embodied_perceptron.inference.class_priors import ClassPriors, shipped_priors
from embodied_perceptron.inference.posterior import ANY_DETECTOR, DetectorModel, shipped_detector_model
from embodied_perceptron.mapping.keyframes import Keyframe
from embodied_perceptron.results import UNNAMED, Certainty, Detections, SceneObject, VoxelSnapshot
from embodied_perceptron.scene.live_map import MapCopy
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame

_LOG = logging.getLogger(__name__)

UNKNOWN_CAMERA = "unknown_camera"
NO_KEYFRAME = "no_keyframe"
TOO_LATE = "too_late"  # older than the oldest retained keyframe of its camera
WAITING_TOO_MANY = "too_many_waiting"
TOO_SLOW = "detector_too_slow"  # pictures that a detector had no answer about in time
OTHER_SIZE = "masks_of_another_size"  # than the picture that they come with

_MAX_WANTED = 32  # words that were asked for
_MAX_WAITING = 256  # detections of other programs whose keyframe may still come
_MAX_WAIT_NS = 5_000_000_000
_FLOOR_MOVED_M = 0.03
_SHAPES_EVERY, _SHAPES_GROWTH = 16, 0.6  # keyframes, or share of the voxels, after which shapes are cut anew
_SAME_VOXELS = 0.02
_FITTING = -1.0  # log-plausibility of a box that has all of a thing


@dataclass
class LiftStatistics:
    """What happened so far.

    Attributes:
        pictures: looked at by the detector, or described by another program.
        found: 2-D detections used.
        lifted: of them, with a place in the world.
        dropped: 2-D detections by reason, of any stage.
        state: of the detector: ``running``, ``retrying``, ``disabled``, or ``none``.
        failures: of the detector, ever; ``last_error`` in words.
        detector_ms, lift_ms, join_ms: wall time of the detector, of lifting pictures, and of all the rest (joining
            the views, shapes of the map, fusing with the network), summed up.
        persons: kept out of the map; None = they are mapped.
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
    """How the parts work together.

    Attributes:
        min_probability: what detectors alone see, and is less probable, is no detection.
        stamp_tolerance_s: detections of other programs belong to the keyframe of their camera whose stamp is nearest,
            within this.
        rules, schedule: of the parts.
        detector_model: likelihoods of detections; None = the shipped model on photographs.
    """

    min_probability: float = 0.4
    stamp_tolerance_s: float = 0.005
    rules: LiftRules = field(default_factory=LiftRules)
    schedule: SchedulerRules = field(default_factory=SchedulerRules)
    detector_model: DetectorModel | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.min_probability <= 1:
            raise ValueError(f"min_probability must be in [0, 1], got {self.min_probability}")
        if not self.stamp_tolerance_s >= 0:
            raise ValueError(f"stamp_tolerance_s must not be negative, got {self.stamp_tolerance_s}")


class DetectorSlot:
    """One detector: built, built again after a failure, and what it has looked at. Belongs to the detecting thread.

    Args:
        source: name of the detector.
        make: builds it.
        rules: of its schedule.

    Raises what ``make`` raises.
    """

    def __init__(self, source: str, make: Callable[[], Detector], rules: SchedulerRules) -> None:
        self.source = source
        self._make = make
        self.detector: Detector | None = make()
        self.vocabulary = self.detector.vocabulary
        self.told_in_words = isinstance(self.detector, ToldInWords)
        self.own_words: tuple[str, ...] = tuple(sorted(self.vocabulary))
        self.scheduler = LiftScheduler(rules)
        self._calls = LimitedCalls[tuple[Detections2d, Counter[str]]]()
        self.asked_of: WeakKeyDictionary[RgbdFrame, int] = WeakKeyDictionary()  # number of the words it was shown for

    @property
    def busy_s(self) -> float:
        """For how long it has been at a picture that nobody waits for any more; 0 = it is not."""
        return self._calls.busy_s

    def detect(self, frame: RgbdFrame, words: Sequence[str] | None, limited: bool) -> tuple[Detections2d, Counter[str]]:
        """As :meth:`.Detector.detect`; a detector that died is built first. Raises whatever a detector raises, and
        :class:`.TooLateError` where the time is ``limited`` and it takes longer than its schedule allows."""

        def look() -> tuple[Detections2d, Counter[str]]:
            if self.detector is None:
                self.detector = self._make()
                self.tell(words)
            return self.detector.detect(frame)

        found, drops = self._calls.call(look, self.scheduler.rules.limit_s) if limited else look()
        _check_belongs(found, frame)
        return found, drops

    def tell(self, words: Sequence[str] | None) -> None:
        """What it looks for beside its own words."""
        detector: object = self.detector
        if isinstance(detector, ToldInWords) and words is not None:
            detector.look_for((*self.own_words, *words))
            self.vocabulary = detector.vocabulary


class DetectionLift:
    """See the module docstring. ``detect`` and ``with_evidence`` belong to one thread; ``add`` may be called from any.

    Args:
        make_detector: builds the 2-D detector, and builds it again after a failure; or several by name,
            which share the rate; None = other programs detect.
        settings: of all parts.
        priors: of names.
        encoder: gives what is detected embeddings; None = none.
        names: all that other programs can say, where that is known.
        persons: keeps people out of the map; None = they are mapped.

    Attributes:
        priors: of names.
        detector_model: likelihoods of detections.
        views: pictures that detectors have seen, as they were lifted last.
        lifted_objects: objects that the views agree on; ``objects``: those that are probable from detectors alone.
        hypotheses: of the last :meth:`with_evidence`; ``can_name``: whether the network had names then.

    Raises what ``make_detector`` raises: a detector that cannot be built at all is an error at the start.
    """

    def __init__(
        self,
        make_detector: Callable[[], Detector] | Mapping[str, Callable[[], Detector]] | None = None,
        settings: LiftSettings | None = None,
        priors: ClassPriors | None = None,
        encoder: RegionEncoder | None = None,
        names: Sequence[str] = (),
        persons: PersonMask | None = None,
    ) -> None:
        self.persons = persons
        self.settings = settings if settings is not None else LiftSettings()
        self.priors = priors if priors is not None else shipped_priors()
        self.encoder = encoder
        self.looks = None if encoder is None else OpenVocabularyLabels(encoder)
        self._embedded: WeakKeyDictionary[RgbdFrame, set[str]] = WeakKeyDictionary()  # of which detectors
        self._words: tuple[str, ...] | None = None  # asked for beside the detectors' own
        self._asked = 0  # how often the words changed
        makers = make_detector if isinstance(make_detector, Mapping) else {ANY_DETECTOR: make_detector}
        named = {source: make for source, make in makers.items() if make is not None}
        schedule = replace(self.settings.schedule, max_rate_hz=self.settings.schedule.max_rate_hz / max(len(named), 1))
        self._slots = tuple(DetectorSlot(source, make, schedule) for source, make in named.items())
        self._told_in_words = any(slot.told_in_words for slot in self._slots)
        self._turn = 0
        self._wanted: OrderedDict[str, None] = OrderedDict()  # asked for, the newest last
        self._names = frozenset(names)  # of other programs
        given = self.settings.detector_model
        self.detector_model = shipped_detector_model().on_photographs() if given is None else given
        self._worker: LiftWorker | None = None
        self._lock = threading.Lock()  # of what the detector's thread and add() share with detect()
        self._found: WeakKeyDictionary[RgbdFrame, dict[str, Detections2d]] = WeakKeyDictionary()  # by detector
        self._pending: list[Keyframe] = []
        self._unembedded: list[Keyframe] = []
        self._waiting: OrderedDict[tuple[str, int], Detections2d] = OrderedDict()
        self._cameras: set[str] = set()
        self._statistics = LiftStatistics(state="running" if self._slots else "none")
        self._lifted: WeakKeyDictionary[Keyframe, dict[str, tuple[Detections2d, list[LiftedDetection]]]] = (
            WeakKeyDictionary()
        )
        self._floor_z_m: float | None = None
        self._shapes = np.zeros((0, 9))
        self._shapes_cut = False  # of the map as it was at the last renewal
        self._yaw_rad = 0.0
        self._renewed: tuple[int, int] | None = None  # pictures and voxels when walls were last looked for
        self._state: tuple[tuple[int, ...], int] | None = None  # pictures and voxels of the last answer
        self.views: tuple[LiftedView, ...] = ()
        self._fits = FitCache()
        self._completed: dict[_Known, LiftedObject] = {}  # of the last call
        self._completed_with: Mapping[str, frozenset[str]] = {}
        self.lifted_objects: tuple[LiftedObject, ...] = ()
        self.hypotheses: list[Hypothesis] = []
        self.can_name = True
        self.objects: tuple[LiftedObject, ...] = ()
        self._told: tuple[tuple[LiftedObject, ...], Detections] | None = None

    # ----------------------------------------------------------------------------------------------- sources of boxes

    def add(self, found: Detections2d, stamp_ns: int | None = None, drops: Counter[str] | None = None) -> None:
        """Detections of another program; used as soon as there is a keyframe of that camera and stamp. Never blocks.

        Args:
            found: the detections.
            stamp_ns: their stamp as time of the map; None = their own.
            drops: what was dropped of them before, by reason.
        """
        if stamp_ns not in (None, found.stamp_ns):
            found = replace(found, stamp_ns=stamp_ns)
        with self._lock:
            self._statistics.dropped.update({} if drops is None else drops)
            self._waiting[(found.camera, found.stamp_ns)] = found
            while len(self._waiting) > _MAX_WAITING:
                _, oldest = self._waiting.popitem(last=False)
                self._statistics.dropped[WAITING_TOO_MANY] += max(1, len(oldest))

    def count_drops(self, drops: Counter[str]) -> None:
        """Detections of another program that were dropped before :meth:`add`."""
        with self._lock:
            self._statistics.dropped.update(drops)

    def asked_for(self, words: Sequence[str]) -> None:
        """Somebody asks for these things: the newest of what was asked for is looked for, see :meth:`look_for`."""
        if not self._told_in_words:
            return
        with self._lock:
            for word in words:
                if word and not any(word in slot.own_words for slot in self._slots):
                    self._wanted[word] = None
                    self._wanted.move_to_end(word)
            while len(self._wanted) > _MAX_WANTED:
                self._wanted.popitem(last=False)
            wanted = sorted(self._wanted)
        if wanted:
            self.look_for(wanted)

    def look_for(self, words: Sequence[str]) -> bool:
        """Words of standing queries: a detector that is told in words looks for them too, newest keyframes first.

        Returns whether there is such a detector. What it saw before counts until it has looked again.
        """
        if not self._told_in_words:
            return False
        if tuple(words) != self._words:
            with self._lock:
                self._words = tuple(words)
                self._asked += 1
                for slot in self._slots:
                    slot.tell(self._words)
        return True

    def without_persons(self, posed: PosedFrame) -> PosedFrame:
        """The frame as it should be fused; belongs to the thread that fuses."""
        return posed if self.persons is None else self.persons.applied(posed)

    def start(self) -> None:
        """Run detectors and encoder in a thread of their own from now on; :meth:`detect` then never waits."""
        if self.persons is not None:
            self.persons.live = True
        if not self._slots and self.encoder is None:
            return
        self._worker = LiftWorker(lambda: self._detect_one(time.monotonic_ns()) or self._embed_one())
        self._worker.start()

    def stop(self) -> bool:
        """End that thread; False when the detector does not come back."""
        worker, self._worker = self._worker, None
        return True if worker is None else worker.stop()

    def forget(self) -> None:
        """Another map: nothing that was lifted holds any more."""
        with self._lock:
            self._found.clear()
            for slot in self._slots:
                slot.asked_of.clear()
            self._waiting.clear()
            self._pending, self._unembedded = [], []
            self._cameras.clear()
            self._embedded.clear()
        if self.persons is not None:
            self.persons.forget()
        if self.looks is not None:
            self.looks.clear()
        self._lifted.clear()
        self._shapes, self._shapes_cut, self._renewed, self._state = np.zeros((0, 9)), False, None, None
        self._completed = {}
        self.views, self.lifted_objects, self.objects, self.hypotheses = (), (), (), []

    @property
    def floor_z_m(self) -> float:
        """Height of the floor that was lifted by; 0 before anything was."""
        return 0.0 if self._floor_z_m is None else self._floor_z_m

    def fusion_context(self, snapshot: VoxelSnapshot, floor_z_m: float) -> FusionContext:
        """Return the context in which hypotheses are fused."""
        return FusionContext(self.views, self._vocabularies(), snapshot, floor_z_m, self.priors)

    def found_in(self, view: LiftedView) -> Detections2d:
        """The 2-D detections of one of :attr:`views`."""
        with self._lock:
            known = self._found.get(view.frame, {})
        return known.get(view.source, no_detections(view.frame.camera, view.frame.stamp_ns))

    @property
    def vocabulary(self) -> frozenset[str]:
        """The map's names of what the detectors can name."""
        return frozenset().union(*self._vocabularies().values())

    def _vocabularies(self) -> dict[str, frozenset[str]]:
        """By detector, the map's names of what it can name."""
        known = {slot.source: slot.vocabulary for slot in self._slots} or {ANY_DETECTOR: self._names}
        return {source: frozenset(map(self.priors.canonical, names)) for source, names in known.items()}

    def statistics(self) -> LiftStatistics:
        """A copy."""
        with self._lock:
            s = self._statistics
            persons = None if self.persons is None else self.persons.statistics()
            return replace(s, dropped=Counter(s.dropped), persons=persons)

    @property
    def busy_s(self) -> float:
        """How long a detector has been at one picture."""
        return max(0.0 if self._worker is None else self._worker.busy_s, *(slot.busy_s for slot in self._slots), 0.0)

    # ------------------------------------------------------------------------------------------------------ detecting

    def detect(self, scene: MapCopy) -> Detections:
        """What the detector saw in the retained keyframes, as boxes in the map; their scores are probabilities.

        Where no thread detects, its rate is bounded by the stamps of the keyframes.
        """
        self._lift_all(scene)
        return self._detections()

    def with_evidence(self, network: Detections, scene: MapCopy, can_name: bool = True) -> Detections:
        """What the network (or shapes alone) found, together with what the detectors saw (:meth:`detect`).

        Args:
            network: boxes of the network; their scores keep their certainty.
            scene: the map.
            can_name: they have names, where the network is sure enough (shapes never have).
        """
        self._lift_all(scene)
        began = time.perf_counter()
        around = self.fusion_context(scene.voxels, scene.floor_z_m)
        self.hypotheses, self.can_name = find_hypotheses(network, self.lifted_objects, around), can_name
        fused = fuse(
            network, self.lifted_objects, self.hypotheses, self.detector_model, self.settings.min_probability, can_name
        )
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
        if self._unchanged(state):
            return
        self._state = state
        began, lifting_ms = time.perf_counter(), self._statistics.lift_ms
        index = VoxelIndex.of(snapshot)
        renew = self._map_changed(len(known), len(snapshot))
        if renew:
            self._yaw_rad = scene.manhattan.yaw_rad
            self._shapes_cut = False
        self._lift(known, index, self._yaw_rad)
        self.views = tuple(
            LiftedView(source, k.id, k.frame, k.T_world_camera, self._lifted[k][source][1]) for k, source, _ in known
        )
        candidates = find_candidates(self.views, index, self._yaw_rad, self._fits)
        if candidates and not self._shapes_cut:
            self._shapes, self._shapes_cut = scene.shapes.boxes, True
            self._completed = {}
        found, vocabularies = [found for *_, found in known], self._vocabularies()
        self.lifted_objects = self._complete_all(candidates, self._floor_z_m, found, vocabularies)
        self.objects = _joined(self.lifted_objects, self.settings.min_probability)
        with self._lock:
            whole_ms = (time.perf_counter() - began) * 1e3
            self._statistics.join_ms += whole_ms - (self._statistics.lift_ms - lifting_ms)

    def _detections(self) -> Detections:
        """Of :attr:`objects`; made once for each of their tuples."""
        if self._told is None or self._told[0] is not self.objects:
            detections = Detections(
                np.array([o.box for o in self.objects]).reshape(-1, 9),
                np.array([o.probability for o in self.objects], dtype=np.float64),
                tuple(o.label for o in self.objects),
                certainty=Certainty.CALIBRATED,
            )
            self._told = self.objects, detections
        return self._told[1]

    def _unchanged(self, state: tuple[tuple[int, ...], int]) -> bool:
        if self._state is None or state[0] != self._state[0]:
            return False
        return abs(state[1] - self._state[1]) <= _SAME_VOXELS * self._state[1]

    def _detect_one(self, now_ns: int) -> bool:
        """The detector whose turn it is looks at the newest picture new to it; whether one did."""
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
        except TooLateError as error:  # it is still there, and may be in time for another picture
            _LOG.warning("detector %s: %s; the picture goes without it", slot.source, error)
            with self._lock:
                slot.scheduler.failed_with(error, now_ns)
                slot.asked_of[keyframe.frame] = asked
                self._statistics.dropped[TOO_SLOW] += 1
                self._note_detectors()
            return True
        except Exception as error:  # whatever a foreign detector raises must not end the robot's perception
            slot.detector = None  # built anew before the next try
            with self._lock:
                slot.scheduler.failed_with(error, now_ns, hopeless=isinstance(error, (LayoutError, FileNotFoundError)))
                self._note_detectors()
            return True
        with self._lock:
            slot.scheduler.succeeded()
            self._found.setdefault(keyframe.frame, {})[slot.source] = found
            slot.asked_of[keyframe.frame] = asked
            self._count(found, drops)
            self._statistics.detector_ms += (time.perf_counter() - began) * 1e3
            self._note_detectors()
        return True

    def _embed_one(self) -> bool:
        """Give the newest detections of another program embeddings; whether there were some without."""
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
        except Exception as error:  # as of a detector
            with self._lock:
                self._statistics.last_error = f"{type(error).__name__}: {error}"
                self._embedded.setdefault(frame, set()).add(source)
            return True
        with self._lock:
            if self._found.get(frame, {}).get(source) is found:
                self._found[frame][source] = embedded
            self._embedded.setdefault(frame, set()).add(source)
        return True

    def remember_looks(self, objects: Sequence[SceneObject]) -> None:
        """The map's objects, as they are after the last :meth:`detect` was fused: they keep the embeddings of what was
        seen at their places."""
        if self.looks is not None:
            boxes = np.array([o.box for o in self.objects]).reshape(-1, 9)
            self.looks.update(objects, boxes, [o.embedding for o in self.objects])

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
        """Detections of other programs find their keyframe, wait a little for it, or are dropped by name."""
        with self._lock:
            self._cameras.update(k.frame.camera for k in keyframes)
            newest_ns = max((k.frame.stamp_ns for k in keyframes), default=0)
            stamps: dict[str, list[int]] = {}
            for k in keyframes:
                stamps.setdefault(k.frame.camera, []).append(k.frame.stamp_ns)
            tolerance_ns = int(self.settings.stamp_tolerance_s * 1e9)
            for key in list(self._waiting):
                camera, stamp_ns = key
                near = [
                    k
                    for k in keyframes
                    if k.frame.camera == camera and abs(k.frame.stamp_ns - stamp_ns) <= tolerance_ns
                ]
                if near:
                    frame = min(near, key=lambda k: abs(k.frame.stamp_ns - stamp_ns)).frame
                    found = self._waiting.pop(key)
                    if not _masks_fit(found, frame):
                        self._statistics.dropped[OTHER_SIZE] += max(1, len(found))
                        continue
                    self._found.setdefault(frame, {})[ANY_DETECTOR] = _stamped_as(found, frame)
                    self._count(found, Counter())
                elif camera not in self._cameras and keyframes:
                    self._statistics.dropped[UNKNOWN_CAMERA] += max(1, len(self._waiting.pop(key)))
                elif camera in stamps and stamp_ns < min(stamps[camera]):
                    self._statistics.dropped[TOO_LATE] += max(1, len(self._waiting.pop(key)))
                elif stamp_ns < max(stamps.get(camera, [stamp_ns])) or abs(newest_ns - stamp_ns) > _MAX_WAIT_NS:
                    # keyframes of a camera come in order
                    self._statistics.dropped[NO_KEYFRAME] += max(1, len(self._waiting.pop(key)))

    def _lift(self, known: Sequence[tuple[Keyframe, str, Detections2d]], index: VoxelIndex, yaw_rad: float) -> None:
        assert self._floor_z_m is not None
        for keyframe, source, found in known:
            of_keyframe = self._lifted.setdefault(keyframe, {})
            if source in of_keyframe and of_keyframe[source][0] is found:
                continue
            began = time.perf_counter()
            lifted, drops = lift_view(
                found,
                keyframe.frame,
                keyframe.T_world_camera,
                self._floor_z_m,
                self.priors,
                index,
                yaw_rad,
                self.settings.rules,
            )
            of_keyframe[source] = found, lifted
            with self._lock:
                self._statistics.lifted += len(lifted)
                self._statistics.dropped.update(drops)
                self._statistics.lift_ms += (time.perf_counter() - began) * 1e3

    def _map_changed(self, pictures: int, voxels: int) -> bool:
        """Whether so much is new that walls and shapes are looked for again."""
        if self._renewed is not None:
            since, growth = abs(pictures - self._renewed[0]), abs(voxels - self._renewed[1])
            if since < _SHAPES_EVERY and growth <= _SHAPES_GROWTH * self._renewed[1]:
                return False
        self._renewed = (pictures, voxels)
        return True

    def _complete_all(
        self,
        candidates: Sequence[Candidate],
        floor_z_m: float,
        found: Sequence[Detections2d],
        vocabularies: Mapping[str, frozenset[str]],
    ) -> tuple[LiftedObject, ...]:
        """Most things are as they were: of these only the numbers of their views are new."""
        if vocabularies != self._completed_with:
            self._completed, self._completed_with = {}, vocabularies
        done: dict[_Known, LiftedObject] = {}
        things = []
        for candidate in candidates:
            key = _known(candidate, floor_z_m)
            known = None if self.encoder is not None else self._completed.get(key)
            if known is None:
                known = self._complete(candidate, floor_z_m, found, vocabularies)
            things.append(replace(known, candidate=candidate))
            done[key] = things[-1]
        self._completed = done
        return tuple(things)

    def _complete(
        self,
        candidate: Candidate,
        floor_z_m: float,
        found: Sequence[Detections2d],
        vocabularies: Mapping[str, frozenset[str]],
    ) -> LiftedObject:
        said = evidence_of([candidate], vocabularies)

        def judged(box: NDArray[np.float64]) -> DetectorBelief:
            plausibility = plausibilities(said, box, floor_z_m, self.priors)
            return DetectorBelief(said, plausibility, self.detector_model.posterior(None, said, plausibility))

        belief = judged(candidate.box)
        label, _ = _likeliest(belief.posterior)
        done = complete_box(candidate.box, candidate.points_m, label, self._shapes, floor_z_m, self.priors)
        prior = self.priors.get(label)
        small = prior.small if prior is not None else float(candidate.box[3:6].max()) < 0.5
        fits = self.priors.log_plausibility(label, done.box, floor_z_m) > _FITTING
        trusted = fits and (done.by_shape or (small and candidate.whole))
        if done.box is not candidate.box:
            belief = judged(done.box)
        _, probability = _likeliest(belief.posterior)
        embedding = self._embedding(candidate, found)
        return LiftedObject(candidate, done.box, trusted, label, belief, probability, done.by_shape, embedding)

    def _embedding(self, candidate: Candidate, found: Sequence[Detections2d]) -> NDArray[np.float32] | None:
        """Mean over a candidate's views, weighted by the scores."""
        vectors, weights = [], []
        for v, i in candidate.members:
            row = self.views[v].lifted[i].row
            embeddings = found[v].embeddings
            if embeddings is not None:
                vectors.append(embeddings[row])
                weights.append(found[v].scores[row])
        return mean_embedding(np.stack(vectors), np.array(weights)) if vectors else None


def _likeliest(posterior: Mapping[str, float]) -> tuple[str, float]:
    """The likeliest of the names, and its probability."""
    return max((pair for pair in sorted(posterior.items()) if pair[0] != UNNAMED), key=lambda pair: pair[1])


_Known = tuple[object, ...]


def _known(candidate: Candidate, floor_z_m: float) -> _Known:
    """What completing a candidate depends on, beside shapes and vocabularies. Its arrays are told by identity: what is
    kept holds them."""
    said = tuple((source, tuple(sorted(names.items()))) for source, names in sorted(candidate.reported.items()))
    silent = tuple(sorted(candidate.missed.items()))
    return id(candidate.points_m), id(candidate.box), said, silent, candidate.whole, floor_z_m


def _check_belongs(found: Detections2d, frame: RgbdFrame) -> None:
    """Raise :class:`LayoutError` unless a detector's answer is about the picture that it was shown."""
    if (found.camera, found.stamp_ns) != (frame.camera, frame.stamp_ns):
        raise LayoutError(
            f"shown {frame.camera!r} at {frame.stamp_ns}, it answered about {found.camera!r} at {found.stamp_ns}"
        )
    if not _masks_fit(found, frame):
        assert found.masks is not None
        raise LayoutError(f"its masks are {found.masks.shape[1:]}, the picture is {frame.depth_m.shape}")


def _masks_fit(found: Detections2d, frame: RgbdFrame) -> bool:
    return found.masks is None or found.masks.shape[1:] == frame.depth_m.shape


def _stamped_as(found: Detections2d, frame: RgbdFrame) -> Detections2d:
    return Detections2d(
        frame.camera, frame.stamp_ns, found.boxes_px, found.scores, found.labels, found.masks, found.embeddings
    )


def _joined(objects: Sequence[LiftedObject], min_probability: float) -> tuple[LiftedObject, ...]:
    """One object for each thing, of at least that probability: of boxes that nearly coincide the most probable."""
    order = sorted((o for o in objects if o.probability >= min_probability), key=lambda o: -o.probability)
    boxes = np.array([o.box for o in order]).reshape(-1, 9)
    return tuple(order[i] for i in distinct_lifted(boxes, [o.label for o in order]))
