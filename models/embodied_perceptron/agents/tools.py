"""Tools of an agent: their JSON schemas, and how they are answered from a scene.

    answer = call_tool(source, "find", {"sentence": "the chair by the window"})

Lengths are metres, angles radians, in the frame that every answer names: x, y on the floor, z up. Every call ends in an
answer or in a :class:`ToolInputError` that says what is wrong and what to do. The connection is in :mod:`.server`.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.agents.source import MAX_VIEWS, SceneSource
from embodied_perceptron.geometry.boxes import Bounds
from embodied_perceptron.geometry.transforms import make_transform
from embodied_perceptron.language.colors import color_names, mean_colors
from embodied_perceptron.language.description import decide_relations, describe
from embodied_perceptron.language.object_states import with_conditions
from embodied_perceptron.language.query import MAX_QUERY_CHARACTERS
from embodied_perceptron.results import EventKind, Perception, SceneObject
from embodied_perceptron.scene.navigation import ApproachOptions, approach_pose, floor_distance
from embodied_perceptron.scene.object_map import MAX_ID
from embodied_perceptron.visualization.top_view import render_top_view

Values = dict[str, Any]
Schema = dict[str, Any]

MAX_LISTED, MAX_NEARBY = 500, 50
MAX_WAIT_S, POLL_S = 600, 0.5
_FAR_M = 100_000  # limit of coordinates
_NEARBY_M = 1.5
_SHOWN_CHARACTERS = 60  # of an invalid value in an error


class ToolInputError(ValueError):
    """Invalid input of an agent; the message is for the agent."""


@dataclass(frozen=True)
class ToolAnswer:
    """The result of a tool: ``values`` by its output schema, and for some tools pictures, (H, W, 3) uint8 RGB."""

    values: Values
    pictures: tuple[NDArray[np.uint8], ...] = ()


@dataclass(frozen=True)
class AgentTool:
    """One tool: name, description, JSON schemas of what is given (some is optional) and of what is answered besides the
    frame, and its function."""

    name: str
    title: str
    description: str
    given: Mapping[str, Schema]
    answered: Mapping[str, Schema]
    answer: Callable[[SceneSource, Mapping[str, Any]], ToolAnswer]
    optional: tuple[str, ...] = ()

    @property
    def input_schema(self) -> Schema:
        return _schema_of(self.given, self.optional)

    @property
    def output_schema(self) -> Schema:
        return _schema_of({"frame": _FRAME, **self.answered})


# --------------------------------------------------------------------------------------------------------------------
# schemas


def _schema_of(properties: Mapping[str, Schema], optional: tuple[str, ...] = ()) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": dict(properties), "required": required, "additionalProperties": False}


def _limited(kind: str, description: str, **limits: Any) -> Schema:
    described = {"description": description} if description else {}
    return {"type": kind, **described, **{k: v for k, v in limits.items() if v is not None}}


def _text(description: str, most: int | None = None) -> Schema:
    return _limited("string", description, maxLength=most)


def _number(description: str, low: float | None = None, high: float | None = None) -> Schema:
    return _limited("number", description, minimum=low, maximum=high)


def _integer(description: str, low: int, high: int | None = None, default: int | None = None) -> Schema:
    return _limited("integer", description, minimum=low, maximum=high, default=default)


def _flag(description: str) -> Schema:
    return _limited("boolean", description)


def _list(items: Schema, description: str = "", count: int | None = None, most: int | None = None) -> Schema:
    return _limited("array", description, items=items, minItems=count, maxItems=most if count is None else count)


def _vector(description: str, count: int = 3) -> Schema:
    return _list({"type": "number", "minimum": -_FAR_M, "maximum": _FAR_M}, description, count)


_FRAME = _text("Name of the frame in which all positions of this answer lie: metres, z up.")


_ID = _integer("Id of an object: it stays with the object.", 1, MAX_ID)
_OBJECT = _schema_of(
    {
        "id": _integer("Stays with the object; 0 = seen, but not an object of the map yet.", 0),
        "label": _text("Name of its class."),
        "user_name": _text("Name that a user gave it."),
        "score": _number("Probability that it is there and that name and box are right.", 0, 1),
        "condition": _text("open, closed, filled, empty, folded or unfolded, where the map shows it."),
        "state": _text(
            "confirmed; tentative = seen too rarely; stale = no longer found at its location; "
            "gone = its place was seen empty."
        ),
        "position_m": _vector("Centre of its box: x, y, z in metres."),
        "size_m": _vector("Edges of its box along its own x, y, z in metres."),
        "rotation_rad": _vector("Turn of its box in radians, R = Rz(a) Rx(b) Ry(c): a is the yaw, b and c the tilt."),
        "last_seen_s": _number("Time of the last detection: seconds on the clock of the camera's stamps; 0 = unknown."),
    },
    optional=("user_name", "condition"),
)
_RELATION = _schema_of(
    {
        "subject": _ID,
        "relation": {"type": "string", "enum": ["on", "in", "under"]},
        "anchor": _ID,
        "words": _text('The same in words: "cup 4 is on table 2".'),
    }
)

# --------------------------------------------------------------------------------------------------------------------
# list_objects


def _list_objects(source: SceneSource, given: Mapping[str, Any]) -> ToolAnswer:
    scene = source.perception()
    objects = (*scene.objects, *scene.tentative, *scene.stale) if given.get("all_states") else scene.objects
    words = given.get("name", "").strip().casefold()
    fitting = [o for o in objects if words in o.label.casefold() or words in o.user_name.casefold()]
    if "near_m" in given:
        at = np.array(given["near_m"], np.float64)
        fitting.sort(key=lambda o: (float(floor_distance(o.box, at[None])[0]), o.id))
    first = int(given.get("offset", 0))
    shown = with_conditions(fitting[first : first + int(given.get("limit", 100))], scene.voxels)
    return ToolAnswer({"total": len(fitting), "objects": [_as_values(o) for o in shown]})


LIST_OBJECTS = AgentTool(
    "list_objects",
    "List objects",
    "Objects of the map with ids, names, boxes and scores: all, those whose name contains a text, or nearest first. "
    "To find an object by a sentence use find.",
    {
        "name": _text("Only objects whose class or user's name contains this text.", 100),
        "near_m": _vector("x, y in metres: nearest to this place first.", 2),
        "all_states": _flag("Tentative and stale objects too, not only confirmed ones."),
        "limit": _integer("Most objects to list.", 1, MAX_LISTED, 100),
        "offset": _integer("Number of objects to skip.", 0, 1_000_000, 0),
    },
    {
        "total": _integer("Number of objects, listed or not.", 0),
        "objects": _list(_OBJECT),
    },
    _list_objects,
    optional=("name", "near_m", "all_states", "limit", "offset"),
)

# --------------------------------------------------------------------------------------------------------------------
# find


def _find(source: SceneSource, given: Mapping[str, Any]) -> ToolAnswer:
    viewpoint = None
    if "standing_at" in given:
        x, y, yaw = given["standing_at"]
        R = np.array([[math.cos(yaw), -math.sin(yaw), 0.0], [math.sin(yaw), math.cos(yaw), 0.0], [0.0, 0.0, 1.0]])
        viewpoint = make_transform(R, np.array([x, y, 0.0]))
    try:
        answer = source.ground(given["sentence"], viewpoint)
    except ValueError as error:
        raise ToolInputError(str(error)) from error
    return ToolAnswer(
        {
            "status": answer.status.name,
            "reason": answer.reason,
            "objects": [_as_values(o) for o in answer.candidates],
            "nearest": [_as_values(o) for o in answer.nearest],
            "count": answer.count,
            "phrases": [phrase.as_dict() for phrase in answer.phrases],
        }
    )


FIND = AgentTool(
    "find",
    "Find what a sentence means",
    "Which objects a sentence means: 'the chair by the window', 'the second cup from the left', 'how many chairs', "
    "'what is on the table', 'the open cabinet', 'is the door closed?', 'where was the mug before', 'what moved since "
    "this morning', 'is anything missing'. Ends FOUND, NOT_FOUND (reason says what is "
    "missing; nearest what comes closest), "
    "AMBIGUOUS (reason asks what would tell the objects apart) or INVALID.",
    {
        "sentence": _text("What is meant, in English.", MAX_QUERY_CHARACTERS),
        "standing_at": _vector(
            "x, y in metres and yaw in radians (0 = along x, counter-clockwise) from where 'left of' and 'in front "
            "of' are said; a running node takes the robot's own place and refuses another.",
            3,
        ),
    },
    {
        "status": {"type": "string", "enum": ["FOUND", "NOT_FOUND", "AMBIGUOUS", "INVALID"]},
        "reason": _text("Reason in words; may be empty for FOUND."),
        "objects": _list(_OBJECT, "What is meant, best first; their score is the probability that it is meant."),
        "nearest": _list(_OBJECT, "For NOT_FOUND: the closest matches, best first."),
        "count": {
            "type": ["integer", "null"],
            "description": "Of the objects asked for together ('how many chairs'); null where one was.",
        },
        "phrases": _list(
            _schema_of(
                {
                    "text": _text("A noun phrase of the sentence."),
                    "start": _integer("Its first character.", 0),
                    "end": _integer("The character after its last.", 0),
                    "ids": _list(_integer("Of an object.", 0), "Objects that it stands for."),
                }
            ),
            "Noun phrases of the sentence, the one asked for first, and their objects.",
        ),
    },
    _find,
    optional=("standing_at",),
)

# --------------------------------------------------------------------------------------------------------------------
# relations and context


def _relations(source: SceneSource, given: Mapping[str, Any]) -> ToolAnswer:
    objects = source.perception().objects
    ids = [_object(objects, int(i)).id for i in given.get("ids", [])]
    facts = _facts(objects)
    chosen = [f for f in facts if not ids or f["subject"] in ids or f["anchor"] in ids]
    return ToolAnswer({"relations": chosen})


def _facts(objects: tuple[SceneObject, ...]) -> list[Values]:
    labels = {o.id: o.label for o in objects}
    return [
        {
            "subject": f.subject,
            "relation": f.relation,
            "anchor": f.anchor,
            "words": f"{labels[f.subject]} {f.subject} is {f.relation} {labels[f.anchor]} {f.anchor}",
        }
        for f in decide_relations(objects)
    ]


RELATIONS = AgentTool(
    "relations",
    "What is on, in and under what",
    "Which objects lie on, in or under which, by their boxes: of all objects, or of those that are named.",
    {"ids": _list(_ID, "Only relations of these objects.", most=MAX_LISTED)},
    {"relations": _list(_RELATION)},
    _relations,
    optional=("ids",),
)


def _object_context(source: SceneSource, given: Mapping[str, Any]) -> ToolAnswer:
    scene = source.perception()
    objects = with_conditions(scene.objects, scene.voxels)
    thing = _object(objects, int(given["id"]))
    row = objects.index(thing)
    boxes = np.stack([o.box for o in objects])
    bounds = Bounds.of(boxes)
    apart = np.maximum(bounds.low - bounds.high[row], bounds.low[row] - bounds.high)
    gap_m = np.linalg.norm(np.maximum(apart, 0.0), axis=1)
    color = color_names(mean_colors(scene.voxels, boxes), np.array([row]))[0]
    near = [
        j
        for j in np.argsort(gap_m, kind="stable").tolist()
        if j != row and gap_m[j] <= given.get("within_m", _NEARBY_M)
    ]
    return ToolAnswer(
        {
            "object": _as_values(thing),
            "color": color,
            "relations": [f for f in _facts(objects) if thing.id in (f["subject"], f["anchor"])],
            "nearby": [
                {"id": objects[j].id, "label": objects[j].label, "gap_m": round(float(gap_m[j]), 3)}
                for j in near[:MAX_NEARBY]
            ],
        }
    )


OBJECT_CONTEXT = AgentTool(
    "object_context",
    "All about one object",
    "One object, its colour, what it is on, in or under, what is on, in or under it, and what is near.",
    {"id": _ID, "within_m": _number("How near, in metres between boxes; 1.5 where it is not given.", 0, 100)},
    {
        "object": _OBJECT,
        "color": _text("Name of its colour; empty = not measured."),
        "relations": _list(_RELATION),
        "nearby": _list(
            _schema_of({"id": _ID, "label": _text("Of its class."), "gap_m": _number("Between the boxes.", 0)}),
            f"Nearest first, at most {MAX_NEARBY}.",
        ),
    },
    _object_context,
    optional=("within_m",),
)

# --------------------------------------------------------------------------------------------------------------------
# goals


def _goal_near(source: SceneSource, given: Mapping[str, Any]) -> ToolAnswer:
    scene = source.perception()
    thing = _object(scene.objects, int(given["id"]))
    robot_m = np.array(given["robot_at_m"], np.float64) if "robot_at_m" in given else None
    radius_m = float(given.get("robot_radius_m", 0.3))
    pose = approach_pose(thing.box, scene.grid, robot_m, ApproachOptions(radius_m))
    values: Values = {"object": _as_values(thing), "reachable": pose is not None}
    if pose is None:
        from_there = "" if robot_m is None else f" that can be got to from x {robot_m[0]:g}, y {robot_m[1]:g}"
        values |= {"reason": f"no free floor is known before {thing.label} {thing.id}{from_there}", "goal": None}
        return ToolAnswer(values)
    yaw = math.atan2(pose[1, 0], pose[0, 0])
    away_m = float(floor_distance(thing.box, pose[None, :2, 3])[0])
    goal = {"position_m": _rounded(pose[:3, 3]), "yaw_rad": round(yaw, 4), "distance_m": round(away_m, 3)}
    return ToolAnswer({**values, "reason": "", "goal": goal})


GOAL_NEAR = AgentTool(
    "goal_near",
    "Where to stand to be at an object",
    "A pose on free floor before an object, facing it, for a robot of a given radius: a goal for navigation.",
    {
        "id": _ID,
        "robot_at_m": _vector("x, y in metres where the robot is: only places that it can get to.", 2),
        "robot_radius_m": _number("Of the robot, in metres; 0.3 where it is not given.", 0.05, 1.4),
    },
    {
        "object": _OBJECT,
        "reachable": _flag("Whether there is such a place."),
        "reason": _text("Why there is none."),
        "goal": {
            "anyOf": [
                _schema_of(
                    {
                        "position_m": _vector("x, y, z of the robot's base on the floor, in metres."),
                        "yaw_rad": _number("Heading, towards the object: radians from x, counter-clockwise."),
                        "distance_m": _number("On the floor from there to the object's footprint, in metres.", 0),
                    }
                ),
                {"type": "null"},
            ]
        },
    },
    _goal_near,
    optional=("robot_at_m", "robot_radius_m"),
)

# --------------------------------------------------------------------------------------------------------------------
# words and pictures


def _describe(source: SceneSource, given: Mapping[str, Any]) -> ToolAnswer:
    scene = source.perception()
    objects = with_conditions(scene.objects, scene.voxels)
    description = describe(objects, "dense" if given.get("dense") else "plain")
    mentions = [{"phrase": m.phrase, "ids": list(m.ids)} for m in description.mentions]
    return ToolAnswer({"text": description.text, "mentions": mentions})


DESCRIBE = AgentTool(
    "describe",
    "The scene in sentences",
    "The whole scene in sentences whose every noun carries its ids: 'A desk <obj_3> by the window <obj_9>.'",
    {"dense": _flag("<p>a desk</p>[<obj_3>] instead of a desk <obj_3>.")},
    {
        "text": _text("Sentences."),
        "mentions": _list(_schema_of({"phrase": _text("A noun."), "ids": _list(_ID)}), "Nouns and their objects."),
    },
    _describe,
    optional=("dense",),
)


def _snapshot(source: SceneSource, given: Mapping[str, Any]) -> ToolAnswer:
    scene = source.perception()
    ids = [int(i) for i in given.get("ids", [])]
    objects = tuple(_object(scene.objects, number) for number in dict.fromkeys(ids)) if ids else scene.objects
    picture = render_top_view(scene, objects, max_pixels=int(given.get("pixels", 640)))
    height, width = picture.shape[:2]
    values = {"ids": [o.id for o in objects], "width_px": width, "height_px": height}
    return ToolAnswer(values, (picture,))


SNAPSHOT = AgentTool(
    "snapshot",
    "Picture of the map with boxes",
    "The map from above in true colours, x to the right and y up, with the boxes, names and ids of objects and a scale "
    "in metres.",
    {
        "ids": _list(_ID, "Only the boxes of these objects; all where it is not given.", most=MAX_LISTED),
        "pixels": _integer("Longer side of the picture.", 200, 2000, 640),
    },
    {
        "ids": _list(_ID, "Objects whose boxes are drawn."),
        "width_px": _integer("Of the picture.", 1),
        "height_px": _integer("Of the picture.", 1),
    },
    _snapshot,
    optional=("ids", "pixels"),
)

# --------------------------------------------------------------------------------------------------------------------
# the past

_STAMP = "seconds on the clock of the camera's stamps"
_KINDS_OF_EVENTS = "found, appeared, moved, left, returned, renamed or state"
_ENTRY = _schema_of(
    {
        "id": _ID,
        "label": _text("Name of its class."),
        "stamp_s": _number(f"When: {_STAMP}.", 0),
        "kind": _text(f"{_KINDS_OF_EVENTS}; found = seen first, with its place."),
        "position_m": _vector("Where it is since then; of left, where it was until then."),
        "probability": _number("That this is right.", 0, 1),
        "words": _text("The new name or state, of renamed and state; empty otherwise."),
        "reason": _text("Why it is believed."),
    }
)


def remembered(scene: Perception) -> tuple[SceneObject, ...]:
    """Objects in any state, gone ones too."""
    return *scene.objects, *scene.tentative, *scene.stale, *scene.gone


def _entries_of(thing: SceneObject) -> list[Values]:
    return [
        {
            "id": thing.id,
            "label": thing.label,
            "stamp_s": round(e.stamp_ns * 1e-9, 3),
            "kind": e.kind,
            "position_m": _rounded(e.at_m),
            "probability": round(e.probability, 3),
            "words": e.words,
            "reason": e.reason,
        }
        for e in thing.history
    ]


def _history(source: SceneSource, given: Mapping[str, Any]) -> ToolAnswer:
    scene = source.perception()
    thing = _object(remembered(scene), int(given["id"]))
    maybe = [{"id": i, "probability": round(p, 3)} for i, p in thing.maybe_same_as]
    values = {
        "object": _as_values(thing),
        "entries": _entries_of(thing),
        "maybe_same_as": maybe,
        "merged_from": list(thing.merged_from),
    }
    return ToolAnswer(values)


HISTORY = AgentTool(
    "history",
    "What happened to one object",
    "When an object was first and last seen, where it was before, its names and states; of a gone object too.",
    {"id": _ID},
    {
        "object": _OBJECT,
        "entries": _list(_ENTRY, "Oldest first."),
        "maybe_same_as": _list(
            _schema_of({"id": _ID, "probability": _number("That it is this object.", 0, 1)}),
            "Earlier objects that this may be.",
        ),
        "merged_from": _list(_ID, "Other ids that it had until it was recognised: they mean this object."),
    },
    _history,
)


def _changes(source: SceneSource, given: Mapping[str, Any]) -> ToolAnswer:
    scene = source.perception()
    since_s = float(given.get("since_s", 0.0))
    entries = [
        e for o in remembered(scene) for e in _entries_of(o) if e["stamp_s"] >= since_s and e["kind"] != EventKind.FOUND
    ]
    entries.sort(key=lambda e: (e["stamp_s"], e["id"]))
    return ToolAnswer({"total": len(entries), "changes": entries[-MAX_LISTED:]})


CHANGES = AgentTool(
    "changes",
    "What changed",
    "What appeared, moved, left, came back, or has another name or state since a time, oldest first.",
    {"since_s": _number(f"Only later changes: {_STAMP}; all where it is not given.", 0)},
    {
        "total": _integer("Number of changes, listed or not.", 0),
        "changes": _list(_ENTRY, f"The last {MAX_LISTED}."),
    },
    _changes,
    optional=("since_s",),
)


def _evidence(source: SceneSource, given: Mapping[str, Any]) -> ToolAnswer:
    scene = source.perception()
    thing = _object(remembered(scene), int(given["id"]))
    views = source.views(thing)
    lost = f"the map keeps its newest pictures only, and none of them shows {thing.label} {thing.id}"
    values: Values = {"object": _as_values(thing), "reason": "" if views else lost}
    values["views"] = [{"camera": v.camera, "stamp_s": round(v.stamp_ns * 1e-9, 3)} for v in views]
    return ToolAnswer(values, tuple(v.picture for v in views))


EVIDENCE = AgentTool(
    "evidence",
    "Pictures of one object",
    f"At most {MAX_VIEWS} pictures of an object by the robot's camera, cut out around its box: they prove what the map "
    "says. Old pictures are not kept: there may be none.",
    {"id": _ID},
    {
        "object": _OBJECT,
        "views": _list(
            _schema_of({"camera": _text("Name of the camera."), "stamp_s": _number(f"When: {_STAMP}.", 0)}),
            "Of the pictures, in their order.",
        ),
        "reason": _text("Why there are none; empty where there are."),
    },
    _evidence,
)


def _wait_for(source: SceneSource, given: Mapping[str, Any]) -> ToolAnswer:
    end_s = time.monotonic() + float(given.get("timeout_s", 30.0))
    while True:
        answer = _find(source, {"sentence": given["sentence"]})
        left_s = end_s - time.monotonic()
        if answer.values["status"] in ("FOUND", "INVALID") or left_s <= 0.0 or not source.is_live:
            return ToolAnswer({**answer.values, "timed_out": answer.values["status"] not in ("FOUND", "INVALID")})
        time.sleep(min(POLL_S, left_s))


WAIT_FOR = AgentTool(
    "wait_for",
    "Wait until a sentence is true",
    "Wait until a sentence is FOUND: 'the open door', 'a person near the table', 'what moved in the last minute'. "
    "The last answer is returned when the time is over; a saved map does not change, so it is answered at once.",
    {
        "sentence": FIND.given["sentence"],
        "timeout_s": _number("How long to wait, in seconds; 30 where it is not given.", 0, MAX_WAIT_S),
    },
    {**FIND.answered, "timed_out": _flag("Whether it was not FOUND in time.")},
    _wait_for,
    optional=("timeout_s",),
)

TOOLS: Mapping[str, AgentTool] = {
    tool.name: tool
    for tool in (
        *(LIST_OBJECTS, FIND, RELATIONS, OBJECT_CONTEXT, GOAL_NEAR, DESCRIBE, SNAPSHOT),
        *(HISTORY, CHANGES, EVIDENCE, WAIT_FOR),
    )
}

# --------------------------------------------------------------------------------------------------------------------


def call_tool(source: SceneSource, name: str, arguments: object) -> ToolAnswer:
    """Call a tool. Raises :class:`ToolInputError`, and :class:`.SceneUnavailableError` without a scene."""
    if name not in TOOLS:
        raise ToolInputError(f"there is no tool {_short(name)}; there are {', '.join(TOOLS)}")
    try:
        given = read_input(TOOLS[name].input_schema, {} if arguments is None else arguments)
    except ToolInputError as error:
        raise ToolInputError(f"{name}: {error}") from None
    answer = TOOLS[name].answer(source, given)
    values = {"frame": source.frame(), **answer.values}
    return ToolAnswer(values if name == "describe" else _without_tags(values), answer.pictures)


def _without_tags(value: Any) -> Any:
    """Replace < and > of names, which could close a tag around an answer; the tags of ``describe`` are its own."""
    if isinstance(value, str):
        return value.translate({ord("<"): "\u2039", ord(">"): "\u203a"})
    if isinstance(value, dict):
        return {key: _without_tags(entry) for key, entry in value.items()}
    return [_without_tags(entry) for entry in value] if isinstance(value, list) else value


_KINDS: Mapping[str, tuple[Any, str]] = {
    "object": (Mapping, "an object"),
    "array": (list, "a list"),
    "string": (str, "a text"),
    "boolean": (bool, "true or false"),
    "integer": (int, "a whole number"),
    "number": ((int, float), "a number"),
}
_MAX_JSON = 20_000  # characters; 500 ids have 9,000
_ABSENT = (None, "null", "None")


def read_input(schema: Schema, value: Any, where: str = "") -> Any:
    """Read a JSON value by an input schema. Raises :class:`ToolInputError` for an invalid one.

    Many models send ``"[1, 2]"`` for a list, ``"1"`` for a number, ``"true"`` for a flag, and null for an option that
    they do not use: these are read. Values with more than one meaning are refused.
    """
    kind = schema["type"]
    python_type, words = _KINDS[kind]
    if kind != "string" and isinstance(value, str) and len(value) <= _MAX_JSON:
        with suppress(ValueError, RecursionError):
            read = json.loads(value.lower() if kind == "boolean" else value)
            if type(read) in (int, float) if kind in ("integer", "number") else isinstance(read, python_type):
                value = read
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, python_type) or (isinstance(value, bool) and kind != "boolean"):
        raise ToolInputError(f"{where or 'arguments'} must be {words}, got {_short(value)}")
    if kind == "object":
        return _read_object(schema, value)
    if kind == "array":
        low, high = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        if not low <= len(value) <= high:
            wanted = f"{low:g}" if low == high else f"at most {high:g}"
            raise ToolInputError(f"{where} must have {wanted} entries, got {len(value)}")
        return [read_input(schema["items"], entry, f"{where}[{i}]") for i, entry in enumerate(value)]
    if kind == "string" and len(value) > schema.get("maxLength", math.inf):
        raise ToolInputError(f"{where} must have at most {schema['maxLength']:g} characters, got {len(value)}")
    low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    if kind in ("integer", "number") and not low <= value <= high:  # NaN neither
        raise ToolInputError(f"{where} must be from {low} to {high}, got {_short(value)}")
    return value


def _read_object(schema: Schema, value: Mapping[Any, Any]) -> Values:
    known, needed = schema["properties"], schema["required"]
    if unknown := [name for name in value if name not in known]:
        raise ToolInputError(f"there is no argument {_short(unknown[0])}; there are {', '.join(known)}")
    if missing := [name for name in needed if name not in value]:
        raise ToolInputError(f"{missing[0]} must be given: {known[missing[0]]['description']}")
    return {k: read_input(known[k], v, k) for k, v in value.items() if k in needed or v not in _ABSENT}


def _short(value: object) -> str:
    """A value for an error message: one short line of ASCII."""
    if isinstance(value, (Mapping, list)):
        return f"{'an object' if isinstance(value, Mapping) else 'a list'} of {len(value)}"
    if isinstance(value, int) and abs(value) > 2**63:
        return "a number beyond 64 bits"
    text = ascii(value[: _SHOWN_CHARACTERS + 1]) if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


def _object(objects: tuple[SceneObject, ...], number: int) -> SceneObject:
    found = next((o for o in objects if number in (o.id, *o.merged_from)), None)
    if found is None:
        raise ToolInputError(f"there is no object {_short(number)}: list_objects gives those that there are")
    return found


def _as_values(thing: SceneObject) -> Values:
    values: Values = {
        "id": thing.id,
        "label": thing.label,
        "score": round(float(thing.score), 4),
        "state": thing.state,
        "position_m": _rounded(thing.box[:3]),
        "size_m": _rounded(thing.box[3:6]),
        "rotation_rad": _rounded(thing.box[6:9]),
        "last_seen_s": round(thing.last_seen_ns * 1e-9, 3),
    }
    named = {"user_name": thing.user_name, "condition": thing.condition}
    return {**values, **{name: value for name, value in named.items() if value}}


def _rounded(numbers: Iterable[float]) -> list[float]:
    return [round(float(v), 4) for v in numbers]
