"""How the conditions of a sentence become a score: denied ones, ranks, landmarks that are not there."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.language_scenes import living_room, thing

from embodied_perceptron.language import scoring
from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.language.colors import color_likelihood, color_scores
from embodied_perceptron.language.meaning import Constraint, Meaning, ObjectPhrase
from embodied_perceptron.language.relations import SceneGeometry
from embodied_perceptron.language.scene_file import detected_scene
from embodied_perceptron.results import Grounding, GroundingStatus, SceneObject

WHITE, BLUE, GREEN, YELLOW = (240, 240, 240), (40, 40, 160), (110, 140, 30), (230, 210, 50)
RED = (180, 30, 30)


def row(label: str, *places: float, first: int = 1) -> list[SceneObject]:
    return [thing(first + i, label, (x, 0.0, 0.5), (0.5, 0.5, 1.0)) for i, x in enumerate(places)]


def ask(text: str, objects: list[SceneObject], *colors: tuple[float, float, float]) -> Grounding:
    return ground_objects(text, objects, colors=np.array(colors, np.float64) if colors else None)


def best(answer: Grounding) -> SceneObject:
    assert answer.candidates, answer.reason
    return answer.candidates[0]


# ------------------------------------------------------------------------------------------------- what is denied


def test_a_denied_condition_that_is_met_is_no_weakness() -> None:
    pillows = row("pillow", 0.0, 2.0)
    answer = ask("the pillow that isn't white", pillows, WHITE, BLUE)
    assert best(answer).id == 2
    assert best(answer).score > 0.8


@pytest.mark.parametrize(
    "said", ["that has no book", "which has no book on it", "with no book", "that carries no book"]
)
def test_to_have_none_is_not_to_have_one(said: str) -> None:
    tables = [thing(1, "table", (0, 0, 0.35), (1, 1, 0.7)), thing(2, "table", (4, 0, 0.35), (1, 1, 0.7))]
    answer = ask(f"the table {said}", [*tables, thing(3, "book", (0, 0, 0.72), (0.2, 0.2, 0.04))])
    assert (answer.status, best(answer).id) == (GroundingStatus.FOUND, 2)


# ------------------------------------------------------------------------------------------------- ranks


def test_an_order_in_a_group_of_which_nothing_fits_the_rest_has_an_answer() -> None:
    chair, table = ObjectPhrase("chair", (0, 5)), ObjectPhrase("table", (6, 11))
    conditions = Constraint("in", (table,)), Constraint("from-left", rank=2)
    meaning = Meaning("chair table", chair, conditions, among=2)
    objects = [thing(1, "table", (20, 0, 0.4), (1, 1, 0.8)), *row("chair", 0.0, 1.0, 2.0, first=2)]
    scorer = scoring.Scorer(meaning, SceneGeometry(np.array([o.box for o in objects])), tuple(o.label for o in objects),
                            np.ones(4))  # fmt: skip
    scorer.plausible = lambda evidence: np.zeros(4)  # type: ignore[method-assign]
    assert np.isfinite(scorer.evidence().log_score).all()


@pytest.mark.parametrize(("rank", "number"), [("second", 5), ("third", 3), ("fourth", 2)])
def test_the_places_behind_the_first_are_told_apart(rank: str, number: int) -> None:
    """Far behind the first, distances must not tie."""
    objects = [thing(1, "table", (0, 0, 0.4), (1, 1, 0.8)), *row("chair", 8.0, 6.0, 1.0, 3.0, first=2)]
    answer = ask(f"the {rank} closest chair to the table", objects)
    assert (answer.status, best(answer).id) == (GroundingStatus.FOUND, number)


def test_what_stands_out_far_keeps_its_order() -> None:
    share = scoring.log_share(-np.array([0.0, 50.0, 20.0, 30.0, 200.0]), np.ones(5))
    assert list(np.argsort(-share)) == [0, 2, 3, 1, 4]
    out = scoring.contrast(np.array([0.0] * 40 + [50.0, 60.0]), np.array([1.0] * 40 + [0.06, 0.06]))
    assert out[-1] > out[-2] > 2.0
    assert out.max() < 2.7


# ------------------------------------------------------------------------------------------------- what is not there


@pytest.mark.parametrize("landmark", ["saw", "bathtub", "wugglefrotz", "shiny wugglefrotz"])
@pytest.mark.parametrize("relation", ["next to", "left of", "behind", "closest to"])
def test_beside_what_is_not_there_nothing_is_surely_found(relation: str, landmark: str) -> None:
    answer = ask(f"the hammer {relation} the {landmark}", row("hammer", 0.0))
    assert not answer.candidates or best(answer).score < 0.5
    noun = landmark.removeprefix("shiny ")
    assert f"no {noun} found" in answer.reason or f"not known: {noun}" in answer.reason


def test_not_beside_what_is_not_there_is_true() -> None:
    answer = ask("the hammer that is not next to the bathtub", row("hammer", 0.0))
    assert best(answer).score > 0.5


def test_what_fits_without_a_landmark_that_is_not_there_comes_nearest() -> None:
    answer = ask("the chair next to the bathtub", row("chair", 0.0, 2.0))
    assert answer.status == GroundingStatus.NOT_FOUND
    assert len(answer.nearest) == 2
    assert "no bathtub found" in answer.reason


def test_the_reason_says_that_colours_are_not_known() -> None:
    answer = ask("the pink chair", row("chair", 0.0, 2.0))
    assert answer.status == GroundingStatus.AMBIGUOUS
    assert "whether it is pink is not known" in answer.reason
    assert ask("the pink chair", row("chair", 0.0, 2.0), BLUE, BLUE).status == GroundingStatus.NOT_FOUND


NOT_MEASURED = (float("nan"),) * 3


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("all the red chairs", {1}),
        ("how many red chairs are there", {1}),
        ("all chairs that are not red", {2}),
        ("all chairs except the red one", {2}),
    ],
)
def test_what_has_no_known_colour_is_not_counted(text: str, ids: set[int]) -> None:
    answer = ask(text, row("chair", 0.0, 2.0, 4.0), RED, BLUE, NOT_MEASURED)
    assert (answer.status, {o.id for o in answer.candidates}) == (GroundingStatus.FOUND, ids)
    assert "1 more are" in answer.reason


def test_what_has_no_known_colour_is_meant_only_where_nothing_fits() -> None:
    chairs = row("chair", 0.0, 2.0)
    assert best(ask("the red chair", chairs, NOT_MEASURED, RED)).id == 2
    unsure = ask("the red chair", chairs, NOT_MEASURED, BLUE)
    assert (unsure.status, best(unsure).id) == (GroundingStatus.FOUND, 1)
    assert best(unsure).score < 0.5
    assert "whether it is red is not known" in unsure.reason
    unknown = ask("how many red chairs are there", chairs, NOT_MEASURED, NOT_MEASURED)
    assert (unknown.status, unknown.reason) == (GroundingStatus.NOT_FOUND, "whether the chair is red is not known")


@pytest.mark.parametrize(("noun", "other"), [("bottles", "flask"), ("guitars", "guitar amplifier")])
def test_only_things_of_the_name_are_counted_where_there_are_some(noun: str, other: str) -> None:
    label = noun.removesuffix("s")
    things = [*row(label, 0.0, 2.0), *row(other, 4.0, first=9)]
    assert ask(f"how many {noun} are there", things).count == 2


@pytest.mark.parametrize("question", ["is there a chair next to the bathtub?", "how many chairs are by the bathtub?"])
def test_nothing_is_counted_beside_what_is_not_there(question: str) -> None:
    answer = ask(question, row("chair", 0.0, 2.0))
    assert answer.status == GroundingStatus.NOT_FOUND
    assert answer.reason == "there is no bathtub"


def test_the_reason_names_words_that_nobody_read() -> None:
    assert "velvet" in ask("the velvet clawfoot chair", row("chair", 0.0)).reason


def test_a_detection_that_its_detector_does_not_believe_is_no_sure_answer() -> None:
    faint = ask("the chair", [thing(1, "chair", (0, 0, 0.5), (0.5, 0.5, 1.0), score=0.01)])
    assert best(faint).score < 0.15


def test_nothing_is_on_itself() -> None:
    desks = [thing(1, "desk", (0, 0, 0.4), (1, 1, 0.8)), thing(2, "desk", (3, 0, 0.4), (1, 1, 0.8))]
    upper = thing(3, "desk", (3, 0, 1.0), (0.5, 0.5, 0.4))
    stacked = ask("the desk on the desk", [*desks, upper])
    assert (stacked.status, best(stacked).id) == (GroundingStatus.FOUND, 3)
    assert ask("the desk on the desk", desks).status == GroundingStatus.NOT_FOUND
    alone = ask("the desk on the desk", desks[:1])
    assert not alone.candidates or best(alone).score < 0.5


@pytest.mark.parametrize("text", ["the chair -3 m to the left of the desk", "the chair within -0.5 metres of the desk"])
def test_negative_lengths_are_refused(text: str) -> None:
    answer = ask(text, living_room())
    assert answer.status == GroundingStatus.INVALID
    assert "negative" in answer.reason


# ------------------------------------------------------------------------------------------------- how far, how green


def test_with_is_on_in_or_beside() -> None:
    table, book = thing(1, "table", (0, 0, 0.35), (1, 1, 0.7)), thing(2, "book", (0, 0, 0.72), (0.2, 0.2, 0.04))
    assert ask("the table with the book", [table, book]).status == GroundingStatus.FOUND
    beside, far = (thing(2, "lamp", (x, 0, 0.5), (0.3, 0.3, 1.0)) for x in (1.2, 2.6))
    assert ask("the table with a lamp", [table, beside]).status == GroundingStatus.FOUND
    assert ask("the table with a lamp", [table, far]).status == GroundingStatus.NOT_FOUND


def test_green_is_not_called_yellow() -> None:
    colors = np.array([GREEN, YELLOW, WHITE], np.float64)
    assert color_scores(colors, "yellow")[0] < color_scores(colors, "green")[0]
    assert color_likelihood(colors, "yellow")[0] < 0.15
    assert color_likelihood(colors, "yellow")[1] > 0.5


def test_a_condition_that_is_perhaps_meant_counts_perhaps() -> None:
    objects = [*row("chair", 0.0, 9.0), thing(3, "desk", (9.0, 0.8, 0.4), (1.0, 0.6, 0.8))]
    g = SceneGeometry(np.array([o.box for o in objects]))
    meaning = scoring.Meaning("", scoring.ObjectPhrase("chair", (0, 0)))
    fits = {}
    for weight in (0.5, 1.0):
        near = scoring.Constraint("near", (scoring.ObjectPhrase("desk", (0, 0)),), weight=weight)
        said = scoring.replace(meaning, constraints=(near,))
        scorer = scoring.Scorer(said, g, ("chair", "chair", "desk"), np.ones(3))
        fits[weight] = scorer.plausible(scorer.evidence())
    assert fits[0.5][0] == pytest.approx(0.5, abs=0.02)
    assert fits[1.0][0] < 0.05
    assert fits[0.5][1] > 0.9


def test_each_box_of_a_file_has_its_own_front() -> None:
    """One detection without a yaw takes it from no other."""
    chair = {"category": "chair", "center": [0, 0, 0.5], "size": [0.5, 0.5, 1.0], "yaw": 0.0}
    box = {"category": "box", "center": [0, -1.0, 0.2], "size": [0.3, 0.3, 0.4]}
    other = {"category": "box", "center": [0, 1.0, 0.2], "size": [0.3, 0.3, 0.4]}
    scene = detected_scene("a", json.loads(json.dumps({"detections": [chair, box, other]})))
    assert scene.fronts == ("boxes", "none", "none")
    answer = scene.ground("the box in front of the chair")
    assert (answer.status, best(answer).id) == (GroundingStatus.FOUND, 2)
