"""Answers over a hand-made room: every status, the world's pose, nasty input, and the perceptron that asks."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.language_scenes import camera, living_room, moved, moved_pose, thing

from embodied_perceptron.language import query as query_module
from embodied_perceptron.language.answer import Grounder, ground_objects
from embodied_perceptron.language.colors import color_scores
from embodied_perceptron.language.query import DEFAULT_TOP_K, MAX_QUERY_CHARACTERS, Query, read_meaning
from embodied_perceptron.language.relations import SceneGeometry, front_probabilities
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import GroundingStatus, SceneObject
from embodied_perceptron.scene.live_map import PublishedScene

FOUND, NOT_FOUND, AMBIGUOUS, INVALID = GroundingStatus
FROM_SOUTH = camera((0.0, -4.0, 1.5), (0.0, 0.0, 0.5))
FROM_NORTH = camera((0.0, 4.0, 1.5), (0.0, 0.0, 0.5))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("the couch", 1),
        ("the sofa", 1),
        ("the television", 7),
        ("the chair closest to the shelf", 3),
        ("the chair farthest from the couch", 8),
        ("the book on the table", 10),
        ("the book in the shelf", 11),
        ("the picture above the couch", 12),
        ("the stand under the tv", 9),
        ("the table between the couch and the tv", 2),
        ("find the shelf with the book in it", 6),
        ("the stand that is supporting the tv", 9),
        ("where is the lamp?", 5),
        ("the table in front of the couch", 2),
        ("the thing next to the lamp: the couch", 1),
    ],
)
def test_one_object_is_meant(text, wanted):
    answer = ground_objects(text, living_room(), fronts="boxes")
    assert answer.status == FOUND, answer.reason
    assert answer.candidates[0].id == wanted
    assert 0.5 < answer.candidates[0].score <= 1.0
    assert answer.reason
    assert f"[<obj_{wanted}>]" in answer.tagged_text


@pytest.mark.parametrize(
    ("text", "pose", "wanted"),
    [
        ("the leftmost chair", FROM_SOUTH, 3),
        ("the leftmost chair", FROM_NORTH, 8),
        ("the rightmost chair", FROM_SOUTH, 8),
        ("the second chair from the left", FROM_SOUTH, 4),
        ("the first chair from the right", FROM_NORTH, 3),
        ("the chair left of the table", FROM_SOUTH, 3),
        ("the chair left of the table", FROM_NORTH, 4),
        ("facing the couch, the lamp on the right", FROM_SOUTH, 5),
    ],
)
def test_words_that_depend_on_who_speaks(text, pose, wanted):
    answer = ground_objects(text, living_room(), pose, fronts="boxes")
    assert answer.candidates[0].id == wanted, answer.reason


def test_without_a_viewpoint_the_score_of_left_and_right_is_lower():
    text = "the chair left of the table"
    seen = ground_objects(text, living_room(), FROM_SOUTH, fronts="boxes")
    unseen = ground_objects(text, living_room(), fronts="boxes")
    assert unseen.status in (FOUND, AMBIGUOUS)
    assert unseen.candidates[0].score < seen.candidates[0].score


def test_absent_things_are_not_found():
    for text in ("the piano", "the unicorn", "find the refrigerator next to the table", "the flux capacitor"):
        answer = ground_objects(text, living_room())
        assert answer.status == NOT_FOUND
        assert answer.candidates == ()
        assert answer.reason.startswith("there is no ")


def test_what_is_said_must_hold():
    answer = ground_objects("the lamp on the table", living_room(), fronts="boxes")
    assert answer.status == NOT_FOUND
    assert "none that is on the table" in answer.reason


def test_what_comes_nearest_stands_beside_an_answer_that_finds_nothing():
    room = [*living_room(), thing(20, "lamp", (0.2, -0.4, 0.8), (0.3, 0.3, 0.3))]
    answer = ground_objects("the lamp on the shelf", room, fronts="boxes")
    assert (answer.status, answer.candidates) == (NOT_FOUND, ())
    assert {o.id for o in answer.nearest} == {5, 20}
    scores = [o.score for o in answer.nearest]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] < 0.5
    assert ground_objects("the lamp next to the table", room, fronts="boxes").nearest == ()  # found
    limited = ground_objects(Query("the lamp on the shelf", top_k=1), room, fronts="boxes")
    assert [o.id for o in limited.nearest] == [answer.nearest[0].id]


def test_a_kin_of_what_is_not_there_comes_nearest_and_strangers_do_not():
    answer = ground_objects("the stool next to the table", living_room())
    assert (answer.status, answer.candidates) == (NOT_FOUND, ())
    assert {o.label for o in answer.nearest} == {"chair"}
    assert answer.nearest[0].id in (3, 4)  # those at the table
    assert ground_objects("the piano", living_room()).nearest == ()


@pytest.mark.parametrize("text", ["how many lamps are on the table", "is there a lamp on the table", "the table leg"])
def test_questions_and_parts_have_nothing_that_comes_nearest(text):
    answer = ground_objects(text, living_room(), fronts="boxes")
    assert answer.status != INVALID
    assert answer.nearest == ()


@pytest.mark.parametrize(
    ("text", "absent"),
    [
        ("the couch next to the piano", "piano"),
        ("the couch behind the bathtub", "bathtub"),
        ("the couch by the chair on the piano", "piano"),
    ],
)
def test_without_its_landmark_an_object_is_not_found_and_comes_nearest(text, absent):
    answer = ground_objects(text, living_room())
    assert (answer.status, answer.candidates) == (NOT_FOUND, ())
    assert answer.nearest[0].id == 1
    assert f"no {absent} found" in answer.reason


def test_a_landmark_of_another_colour_is_not_there():
    colors = np.array([(20.0, 20.0, 20.0) if o.label == "couch" else (200.0, 190.0, 180.0) for o in living_room()])
    answer = ground_objects("the table next to the red couch", living_room(), colors=colors)
    assert (answer.status, answer.nearest[0].label) == (NOT_FOUND, "table")
    assert "no couch that is red found" in answer.reason
    assert ground_objects("the table next to the black couch", living_room(), colors=colors).status == FOUND


def test_an_unknown_word_is_a_reason_of_its_own():
    assert "not known: wugglefrotz" in ground_objects("the wugglefrotz", living_room()).reason
    assert "not known: wugglefrotz" in ground_objects("the couch next to the wugglefrotz", living_room()).reason


def test_several_that_fit_are_named_all():
    room = [*living_room()[:1], *(thing(n, "chair", (float(n), -1.0, 0.45), (0.5, 0.5, 0.9)) for n in (3, 4, 8))]
    answer = ground_objects("the chair", room)
    assert answer.status == AMBIGUOUS
    assert {c.id for c in answer.candidates} == {3, 4, 8}
    assert answer.reason.startswith("3 chairs")
    assert answer.tagged_text == ""
    assert len(ground_objects(Query("the chair", top_k=2), room).candidates) == 2


def test_as_many_candidates_as_the_query_asks_for():
    room = tuple(thing(n, "chair", (float(n), -1.0, 0.45), (0.5, 0.5, 0.9)) for n in range(1, 13))
    perceptron = Perceptron()
    perceptron.map.published = PublishedScene(room)
    for top_k, count in ((None, DEFAULT_TOP_K), (1, 1), (9, 9), (1000, 12)):
        assert len(perceptron.ground(Query("the chair", top_k)).candidates) == count


def test_a_query_is_parsed_once_and_its_latency_counts_from_its_arrival(monkeypatch):
    parsed = []
    monkeypatch.setattr(query_module, "read_meaning", lambda *a: parsed.append(a[0]) or read_meaning(*a))
    early = dataclasses.replace(Query("the couch"), arrived_s=time.monotonic() - 5.0)
    perceptron = Perceptron()
    perceptron.map.published = PublishedScene(tuple(living_room()))
    answer = perceptron.ground(early, FROM_SOUTH)
    assert answer.status == FOUND
    assert parsed == ["the couch"]
    assert 5_000 <= answer.latency_ms < 60_000


def test_two_boxes_of_one_thing_are_one_thing():
    twin = dataclasses.replace(living_room()[0], id=99, score=0.5)
    answer = ground_objects("the couch", [*living_room(), twin])
    assert answer.status == FOUND
    assert [c.id for c in answer.candidates] == [1]


def test_colours():
    room = [thing(n, "chair", (float(n), 0.0, 0.45), (0.5, 0.5, 0.9)) for n in range(1, 4)]
    room += [thing(n, "picture", (float(n), 2.0, 1.5), (0.5, 0.05, 0.5)) for n in range(4, 8)]
    colors = np.array([[200, 30, 30], [43, 82, 148], [230, 230, 225], *[[225, 225, 220]] * 4], float)
    assert ground_objects("the red chair", room, colors=colors).candidates[0].id == 1
    assert ground_objects("the blue chair", room, colors=colors).candidates[0].id == 2
    assert ground_objects("the chair next to the blue chair", room, colors=colors).status != INVALID
    absent = ground_objects("the green chair", room, colors=colors)
    assert absent.status == NOT_FOUND
    assert "none that is green" in absent.reason
    # nobody measured: it cannot be told
    assert ground_objects("the green chair", room).status == AMBIGUOUS
    unknown = np.full((7, 3), np.nan)
    assert ground_objects("the green chair", room, colors=unknown).status == AMBIGUOUS


def test_colours_are_measured_only_when_they_matter():
    calls = []

    def measure(boxes):
        calls.append(len(boxes))
        return np.full((len(boxes), 3), 200.0)

    ground_objects("the chair next to the table", living_room(), colors=measure)
    assert calls == []
    ground_objects("the chair next to the white table", living_room(), colors=measure)
    assert calls == [len(living_room()), 0]


def test_colour_names_follow_the_light():
    """The same things in half the light are called the same."""
    rgb = np.array([[200.0, 40.0, 40.0], [230.0, 228.0, 220.0], [60.0, 90.0, 170.0], [220.0, 222.0, 221.0]])
    for name, row in (("red", 0), ("blue", 2)):
        assert color_scores(rgb, name).argmax() == row
        assert color_scores(rgb * 0.6, name).argmax() == row
        assert color_scores(rgb, name)[row] > 0.5
    assert np.isnan(color_scores(np.full((2, 3), np.nan), "red")).all()
    with pytest.raises(ValueError, match="mauve"):
        color_scores(rgb, "mauve")


@pytest.mark.parametrize("yaw", [0.3, -1.1, 2.0])
@pytest.mark.parametrize(
    "text",
    [
        "the leftmost chair",
        "the chair left of the table",
        "the book on the table",
        "the chair in the corner",
        "the picture behind the couch",
        "the table between the couch and the tv",
        "the biggest picture",
        "facing the tv, the chair on the left",
    ],
)
def test_answers_move_with_the_world(text, yaw):
    shift = (3.0, -2.0, 0.7)
    for fronts in ("boxes", "estimated", "none"):
        for pose in (None, FROM_SOUTH):
            here = ground_objects(text, living_room(), pose, fronts=fronts)
            pose_there = None if pose is None else moved_pose(pose, yaw, shift)
            there = ground_objects(text, moved(living_room(), yaw, shift), pose_there, fronts=fronts)
            assert there.status == here.status
            assert [c.id for c in there.candidates] == [c.id for c in here.candidates]
            np.testing.assert_allclose(
                [c.score for c in there.candidates], [c.score for c in here.candidates], atol=1e-6
            )


def test_the_order_of_the_objects_does_not_matter():
    room = living_room()
    for text in ("the chair closest to the lamp", "the leftmost chair", "the book on the table"):
        here = ground_objects(text, room, FROM_SOUTH)
        there = ground_objects(text, room[::-1], FROM_SOUTH)
        assert [c.id for c in here.candidates] == [c.id for c in there.candidates]


def test_fronts_are_told_from_the_room():
    """Couch and shelf stand with their backs to the wall, the tv looks into the room; boxes turned by 180 degrees are
    the same boxes."""
    room = living_room()
    labels = [o.label for o in room]
    boxes = np.stack([o.box for o in room])
    turned = boxes.copy()
    turned[:, 6] += np.pi
    for rows, sign in ((boxes, 1.0), (turned, 1.0)):
        g = SceneGeometry(rows)
        fronts = front_probabilities(g, labels, "estimated")
        looks = np.einsum("nk,nkd->nd", fronts, g.sides)
        c, s = np.cos(g.yaw), np.sin(g.yaw)
        looks = looks @ np.array([[c, s], [-s, c]])
        assert looks[0, 1] * sign < -0.7  # couch: south
        assert looks[6, 1] > 0.7  # tv: north
        assert looks[11, 1] < -0.7  # picture: south
        assert not fronts[labels.index("table")].any()


# ------------------------------------------------------------------------------------------------------- nasty input


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        (" \n\t", "empty"),
        ("x" * 10_000_000, "10000000 characters"),
        ("a chair\x00", "U+0000"),
        ("bell \x07 chair", "U+0007"),
        ("half \ud800 chair", "U+D800"),
        (None, "NoneType"),
        (b"chair", "bytes"),
        ("to the left", "no object is named"),
        ("it is red", "no object is named"),
    ],
)
def test_what_cannot_be_answered(text, words):
    answer = ground_objects(text, living_room())
    assert answer.status == INVALID
    assert words in answer.reason
    assert answer.candidates == ()
    assert len(answer.text) <= MAX_QUERY_CHARACTERS


def test_boxes_without_names_cannot_be_asked_for():
    room = PublishedScene(tuple(dataclasses.replace(o, label="object") for o in living_room()))
    (answer,) = Grounder().answer(room, ["the chair"])
    assert answer.status == INVALID
    assert "no language model" in answer.reason
    assert Grounder(named=True).answer(PublishedScene(), ["the chair"])[0].status == NOT_FOUND


@pytest.mark.parametrize("arguments", [{"viewpoint": np.eye(3)}, {"fronts": "guessed"}, {"colors": np.zeros((2, 3))}])
def test_wrong_arguments(arguments):
    with pytest.raises(ValueError, match="must"):
        ground_objects("the red chair", living_room(), **arguments)


def test_a_query_for_no_candidates_is_refused():
    with pytest.raises(ValueError, match="top_k must"):
        Query("the red chair", top_k=0)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_answered(text):
    answer = ground_objects(text, living_room(), FROM_SOUTH)
    assert answer.status in GroundingStatus
    assert bool(answer.candidates) == (answer.status in (FOUND, AMBIGUOUS))
    assert answer.reason or answer.status == FOUND
    answer.reason.encode()


_VOCABULARY = (
    "the a chair chairs table couch left right of in front behind between and on under red big it its is facing second "
    "from . , to window closest not with has middle corner wall light lamp farthest near next the the opposite tv book"
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(_VOCABULARY.split()), min_size=1, max_size=30),
    st.integers(0, 13),
    st.booleans(),
    st.sampled_from(["boxes", "estimated", "none"]),
)
def test_any_sentence_about_any_part_of_the_room_is_answered(words, count, has_pose, fronts):
    pose = FROM_SOUTH if has_pose else None
    answer = ground_objects(" ".join(words), living_room()[:count], pose, fronts=fronts)
    assert bool(answer.candidates) == (answer.status in (FOUND, AMBIGUOUS))
    assert all(0 <= c.score <= 1 for c in answer.candidates)
    assert list(answer.candidates) == sorted(answer.candidates, key=lambda c: -c.score)


def test_boxes_of_any_shape_are_answered_about():
    rng = np.random.default_rng(0)
    room = []
    for n in range(40):
        box = np.concatenate([rng.normal(0, 3, 3), rng.uniform(1e-4, 3, 3), rng.uniform(-3, 3, 3)])
        room.append(SceneObject(n + 1, ("chair", "table", "couch", "wall")[n % 4], float(rng.uniform(0, 1)), box))
    same = [dataclasses.replace(room[0], id=100 + n) for n in range(5)]
    for objects in (room, same, room[:1]):
        for text in ("the chair left of the table", "the second chair from the left", "the chair between the couches"):
            assert ground_objects(text, objects).status in GroundingStatus


@pytest.mark.parametrize("score", [np.nan, np.inf])
def test_objects_without_a_score_are_none(score):
    room = [*living_room(), dataclasses.replace(living_room()[0], id=30, score=score)]
    for text in ("the chair next to the table", "the couch", "what is on the table", "how many couches are there"):
        answer, wanted = ground_objects(text, room), ground_objects(text, living_room())
        assert (answer.status, answer.count) == (wanted.status, wanted.count)
        assert [(c.id, c.score) for c in answer.candidates] == [(c.id, c.score) for c in wanted.candidates]


def test_boxes_that_are_not_finite_are_none():
    room = living_room()
    for value in (np.nan, np.inf, -np.inf):
        box = room[2].box.copy()
        box[1] = value
        odd = [*room, dataclasses.replace(room[2], id=30, box=box)]
        answer = ground_objects("how many chairs are there", odd)
        assert (answer.count, {c.id for c in answer.candidates}) == (3, {3, 4, 8})
        assert ground_objects("the chair", odd[-1:]).status == NOT_FOUND


@pytest.mark.parametrize("label", ["", " "])
@pytest.mark.parametrize("text", ["the chair next to the table", "the unheardof thing", "what is on the table"])
def test_an_empty_label_is_no_name(label, text):
    room = [*living_room(), dataclasses.replace(living_room()[0], id=30, label=label)]
    answer, wanted = ground_objects(text, room), ground_objects(text, living_room())
    assert (answer.status, [c.id for c in answer.candidates]) == (wanted.status, [c.id for c in wanted.candidates])


def test_objects_that_are_all_alike():
    row = [thing(n, "chair", (float(n), 0.0, 0.4), (0.5, 0.5, 0.9)) for n in range(1, 7)]
    asked = ground_objects("the chair", row)
    assert asked.status == AMBIGUOUS
    assert len({round(c.score, 6) for c in asked.candidates}) == 1
    assert ground_objects("how many chairs are there", row).count == 6
    at_one_place = [dataclasses.replace(row[0], id=n) for n in range(1, 7)]
    for text in ("the chair", "how many chairs are there", "the largest chair"):
        answer = ground_objects(text, at_one_place)
        assert (answer.status, len(answer.candidates)) == (FOUND, 1)


def test_ids_that_several_objects_have():
    same = [dataclasses.replace(o, id=7) for o in living_room()]
    for text in ("the chair next to the table", "how many chairs are there", "the couch", "what is on the table"):
        answer, wanted = ground_objects(text, same), ground_objects(text, living_room())
        assert (answer.status, answer.count) == (wanted.status, wanted.count)
        assert [c.box.tolist() for c in answer.candidates] == [c.box.tolist() for c in wanted.candidates]
        assert {c.id for c in answer.candidates} == {7}


@pytest.mark.parametrize("text", ["the chair next to the table", "what is on the table", "how many lamps are there"])
def test_a_room_without_objects(text):
    answer = ground_objects(text, [])
    assert answer.status == NOT_FOUND
    assert answer.candidates == ()
    assert answer.count in (None, 0)
    assert "anything" not in answer.reason


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("chair " * 10_000, INVALID),
        ("the chair next to the table and " * 2_000, INVALID),
        ("the chair " * 90, INVALID),
        ("the couch \U0001fa91 in the room", FOUND),
        ("\U0001fa91", INVALID),
        ("\u0643\u0631\u0633\u064a \u062c\u062f\u064a\u062f", INVALID),
        ("\u202ethe couch\u202c", FOUND),
        ("the\u200bcouch", FOUND),
        ("\uff54\uff48\uff45 \uff43\uff4f\uff55\uff43\uff48", FOUND),  # full-width letters
        ("of the and to a", INVALID),
        (".,.,!!??", INVALID),
        ("1234 5678", INVALID),
        ("(((((the couch)))", FOUND),
        ("couch number 99999999999999999999", NOT_FOUND),
        ("within " + "9" * 400 + " metres of the couch the chair", AMBIGUOUS),
    ],
)  # fmt: skip
def test_odd_sentences(text, status):
    answer = ground_objects(text, living_room())
    assert answer.status == status
    assert all(0.0 <= c.score <= 1.0 for c in answer.candidates)


# ----------------------------------------------------------------------------------------- a neural grounder beside it


class Proposals:
    """What a neural grounder gives."""

    def __init__(self, *pairs):
        self.boxes = np.array([box for box, _ in pairs], float).reshape(-1, 9)
        self.scores = np.array([score for _, score in pairs], float)


def test_proposals_decide_between_objects_that_fit_alike():
    room = [thing(n, "chair", (2.0 * n, 0.0, 0.45), (0.5, 0.5, 0.9)) for n in (1, 2, 3)]
    assert ground_objects("the chair", room).status == AMBIGUOUS
    answer = ground_objects("the chair", room, candidates=Proposals((room[1].box + 0.02, 0.8), (room[0].box, 0.1)))
    assert answer.status == FOUND
    assert answer.candidates[0].id == 2
    # what is said counts more than what is proposed
    sure = ground_objects("the couch", living_room(), candidates=Proposals((living_room()[1].box, 0.9)))
    assert sure.candidates[0].id == 1
    assert ground_objects("the chair", room, candidates=Proposals()).status == AMBIGUOUS


def test_proposals_answer_alone_only_for_words_that_are_no_labels():
    room = living_room()
    sure, unsure = Proposals((room[4].box, 0.9)), Proposals((room[4].box, 0.3))
    answer = ground_objects("the zorgplatz", room, candidates=sure)
    assert (answer.status, answer.candidates[0].id) == (FOUND, 5)
    assert answer.candidates[0].score <= 0.5
    assert ground_objects("the zorgplatz", room, candidates=unsure).status == NOT_FOUND
    assert ground_objects("the piano", room, candidates=sure).status == NOT_FOUND
    elsewhere = Proposals(([9.0, 9.0, 1.0, 0.5, 0.5, 2.0, 0.0, 0.0, 0.0], 0.9))
    assert ground_objects("the zorgplatz", room, candidates=elsewhere).candidates[0].id == 0


def test_probabilities_follow_what_is_known():
    from embodied_perceptron.language.answer import Traits, probability_right

    good = Traits(0.95, 0.9, unsure_view=False, kind=1.0)
    assert 0.7 < probability_right(good) < 1.0
    for worse in (
        {"fit_share": 0.4},
        {"use": True},
        {"weakest": 0.05},
        {"unsure_view": True},
        {"kind": 0.5},
    ):
        assert probability_right(dataclasses.replace(good, **worse)) < probability_right(good)


@pytest.mark.parametrize(
    ("text", "labels", "found", "reason"),
    [
        ("my back aches, I must lie down", ("bed", "chair"), "bed", ""),
        ("somebody has to lie down", ("chair", "table"), None, "nothing here serves to lie down"),
        ("I need to ring my sister", ("telephone", "chair"), "telephone", ""),
        ("I need to ring my sister", ("chair", "table"), None, "nothing here serves to ring"),
        ("show me the way out", ("door", "chair"), "door", ""),
        ("where can I leave my coat", ("wardrobe", "chair"), "wardrobe", ""),
        (
            "I need to defragment my hovercraft",
            ("chair",),
            None,
            'to defragment my hovercraft"',
        ),
        ("where can I sharpen my skates", ("chair",), None, 'not known: what serves "where can i sharpen my skate'),
    ],
)
def test_a_need_is_served_or_the_reason_names_it(
    text: str, labels: tuple[str, ...], found: str | None, reason: str
) -> None:
    room = [
        SceneObject(k, label, 0.9, np.array([2.0 * k, 0, 0.4, 0.5, 0.5, 0.8, 0, 0, 0]))
        for k, label in enumerate(labels)
    ]
    answer = ground_objects(text, room)
    assert [o.label for o in answer.candidates[:1]] == ([] if found is None else [found])
    assert reason in answer.reason
