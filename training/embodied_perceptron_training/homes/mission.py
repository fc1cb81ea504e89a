"""Questions about a home after a robot has driven through it, with the correct answers.

One of each kind: an object by name, by its relation to another object, an absent object, an object by its direction
from the robot, and a standing query that is answered again when its object is found; then a location, a command, the
existence of an absent object, a part of an object, and a sentence in another language.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron_training.homes.assets.varied.clutter import UNLABELLED
from embodied_perceptron_training.homes.building.home import Home
from embodied_perceptron_training.homes.prompts import Fact, all_facts
from embodied_perceptron_training.homes.recording import HomeTrajectory
from embodied_perceptron_training.homes.relations import Scene, make_scene

# conspicuous objects, for questions about absent ones
ABSENT_CANDIDATES = ("bathtub", "toilet", "refrigerator", "bed", "washing machine", "piano", "stove", "bicycle")
# usual targets and reference objects
_TARGETS = {
    "bathtub", "bed", "bench", "bicycle", "cabinet", "chair", "couch", "counter", "crib", "desk", "dishwasher",
    "dresser", "fireplace", "lamp", "monitor", "ottoman", "oven", "piano", "plant", "refrigerator", "shelf", "shower",
    "sink", "stool", "stove", "table", "toilet", "tv", "wardrobe", "washing machine",
}  # fmt: skip
_CLEAR_SHARE = 0.01  # least share of some view of a target
_MIN_SIZE_M = 0.4  # its longest side
_CLEAR_ANGLE_RAD = np.deg2rad(12.0)  # between the leftmost and the next
_FIELD_RAD = np.deg2rad(75.0)  # to either side of the heading
_LAST_S = 6.0  # longest time of a viewpoint before the end of the drive, limited by the transform buffer
_RELATIONS = {
    "closest": "the {target} closest to the {anchor}",
    "farthest": "the {target} farthest from the {anchor}",
    "on": "the {target} on the {anchor}",
}


class MissionError(ValueError):
    """A home without a question of some kind; the message names the kind."""


@dataclass(frozen=True)
class Question:
    """One question and its correct answer.

    Attributes:
        id: of the query.
        kind: plain, relational, absent, view-dependent, standing, where, command, exists, part, language or moved.
        text: the sentence.
        expected: status of the last answer: FOUND or NOT_FOUND.
        target: id of the target object with its class and (9,) box; None without one.
        standing: asked at the start of the drive; the others are asked at its end.
        stamp_ns: time of the robot pose to ask from; 0 = the current one.
        boxes: (9,) boxes of all targets of a question with several; the answer must have these and no others.
    """

    id: str
    kind: str
    text: str
    expected: str
    target: int | None = None
    label: str = ""
    box: tuple[float, ...] = ()
    standing: bool = False
    stamp_ns: int = 0
    boxes: tuple[tuple[float, ...], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {**asdict(self), "box": list(self.box), "boxes": [list(box) for box in self.boxes]}


def clear_objects(trajectory: HomeTrajectory) -> list[int]:
    """Ids of the objects that a trajectory shows clearly, largest in a view first."""
    scene = make_scene(trajectory.home, trajectory.seen(0.0005))
    clear = [o.id for row, o in enumerate(scene.objects) if _is_clear(trajectory, scene, row)]
    return sorted(clear, key=lambda k: -float(trajectory.best_share[k]))


def question_of_change(home: Home, carried: Sequence[int]) -> Question:
    """The question what moved, after the second drive through a home; what was carried out of it is gone."""
    moved = [k for k in carried if home.objects[k].box9()[2] > 0]
    boxes = [[round(float(v), 6) for v in home.objects[k].box9()] for k in moved]
    return Question("mission-moved", "moved", "what moved?", "FOUND", boxes=tuple(tuple(box) for box in boxes))


def make_questions(trajectory: HomeTrajectory) -> tuple[Question, ...]:
    """The ten questions of a trajectory, deterministic. Raises :class:`MissionError` when a kind has none."""
    # a name is unique only if no other object of its class was visible at all
    named = [i for i in trajectory.seen(0.0005) if trajectory.home.objects[i].label != UNLABELLED]
    scene = make_scene(trajectory.home, named)
    clear = [row for row in range(len(scene.objects)) if _is_clear(trajectory, scene, row)]
    unique = _unique(trajectory, scene, clear)
    if len(unique) < 2:
        raise MissionError(f"only {len(unique)} kinds of things are seen once and clearly, two are needed")
    late = max(unique, key=lambda row: trajectory.first_seen_ns(scene.objects[row].id, _CLEAR_SHARE / 2))
    plain = next(row for row in unique if row != late)
    name = scene.objects[plain].label
    where = next((row for row in unique if row not in (late, plain)), late)
    other = scene.objects[where].label
    missing = _missing(trajectory)
    return (
        _question("plain", f"the {name}", scene, plain),
        _relational(scene, clear),
        Question("mission-absent", "absent", f"the {missing[0]}", "NOT_FOUND"),
        _from_the_robot(trajectory, scene, clear),
        _question("standing", f"the {scene.objects[late].label}", scene, late, standing=True),
        _question("where", f"where is the {other}?", scene, where),
        _question("command", f"could you please drive to the {name} and wait there", scene, plain),
        Question("mission-exists", "exists", f"is there a {missing[-1]} here?", "NOT_FOUND"),
        Question("mission-part", "part", f"the handle of the {name}", "NOT_FOUND"),
        Question("mission-language", "language", f"wo ist der stuhl neben dem {other}", "INVALID"),
    )


def _question(kind: str, text: str, scene: Scene, row: int, standing: bool = False, stamp_ns: int = 0) -> Question:
    o = scene.objects[row]
    box = tuple(round(float(v), 6) for v in o.box9())
    return Question(f"mission-{kind}", kind, text, "FOUND", o.id, o.label, box, standing, stamp_ns)


def _is_clear(trajectory: HomeTrajectory, scene: Scene, row: int) -> bool:
    o = scene.objects[row]
    large = float(o.box9()[3:6].max()) >= _MIN_SIZE_M
    return o.label in _TARGETS and large and bool(trajectory.best_share[o.id] >= _CLEAR_SHARE)


def _unique(trajectory: HomeTrajectory, scene: Scene, clear: list[int]) -> list[int]:
    """Clearly visible rows that are the only ones of their class, largest in a view first."""
    counts = Counter(scene.labels())
    rows = [row for row in clear if counts[scene.objects[row].label] == 1]
    return sorted(rows, key=lambda row: -float(trajectory.best_share[scene.objects[row].id]))


def _relational(scene: Scene, clear: list[int]) -> Question:
    facts = [
        fact
        for fact in all_facts(scene)
        if fact.relation in _RELATIONS and fact.target in clear and all(a in clear for a in fact.anchors)
    ]
    if not facts:
        raise MissionError("no thing is singled out by a relation to another")
    fact = max(facts, key=lambda f: _margin(scene, f))
    words = {"target": scene.objects[fact.target].label, "anchor": scene.objects[fact.anchors[0]].label}
    return _question("relational", _RELATIONS[fact.relation].format(**words), scene, fact.target)


def _margin(scene: Scene, fact: Fact) -> float:
    """Margin of the fact in metres."""
    if fact.relation == "on":
        return 0.0
    rows = [r for r in scene.rows_of(scene.objects[fact.target].label) if r != fact.target]
    anchor = scene.center[fact.anchors[0], :2]
    own = float(np.linalg.norm(scene.center[fact.target, :2] - anchor))
    others = np.linalg.norm(scene.center[rows, :2] - anchor, axis=1)
    return float(others.min() - own if fact.relation == "closest" else own - others.max())


def _missing(trajectory: HomeTrajectory) -> list[str]:
    """Names of objects that the home does not have."""
    here = {o.label for o in trajectory.home.objects}
    names = [name for name in ABSENT_CANDIDATES if name not in here]
    if not names:
        raise MissionError("the home holds everything that could be missing")
    return names


def _from_the_robot(trajectory: HomeTrajectory, scene: Scene, clear: list[int]) -> Question:
    """Leftmost or rightmost of a few objects of a class in front of the robot, late in its drive."""
    counts = Counter(scene.labels())
    kinds = sorted({scene.objects[r].label for r in clear if 2 <= counts[scene.objects[r].label] <= 3})
    best: tuple[float, Question] | None = None
    first_ns = int(trajectory.stamps_ns[-1]) - int(_LAST_S * 1e9)
    for view in np.flatnonzero(trajectory.stamps_ns >= first_ns)[::5]:
        for kind in kinds:
            rows = scene.rows_of(kind)
            if any(int(r) not in clear for r in rows):
                continue
            angle = bearings(trajectory.T_world_camera[view], scene.center[rows])
            if np.abs(angle).max() > _FIELD_RAD:
                continue
            order = np.argsort(-angle)  # leftmost first
            for side, row, gap in (
                ("left", rows[order[0]], angle[order[0]] - angle[order[1]]),
                ("right", rows[order[-1]], angle[order[-2]] - angle[order[-1]]),
            ):
                if gap > _CLEAR_ANGLE_RAD and (best is None or gap > best[0]):
                    text, stamp_ns = f"the {kind} on the {side}", int(trajectory.stamps_ns[view])
                    best = float(gap), _question("view-dependent", text, scene, int(row), stamp_ns=stamp_ns)
    if best is None:
        raise MissionError("nothing is clearly left or right of its like before the robot")
    return best[1]


def bearings(T_world_camera: F64, points_m: F64) -> F64:
    """(N,) horizontal angles from the view direction of an optical frame to (N, 3) points; left is positive."""
    ahead = T_world_camera[:2, 2] / np.linalg.norm(T_world_camera[:2, 2])
    offset = points_m[:, :2] - T_world_camera[:2, 3]
    angles: F64 = np.arctan2(ahead[0] * offset[:, 1] - ahead[1] * offset[:, 0], offset @ ahead)
    return angles
