"""3D-POPE: negatives by hand, metrics by hand, files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_perceptron_training.evaluation.suites.pope import (
    FIGURES,
    PROTOCOLS,
    TRAINING_HOMES,
    CategoryStatistics,
    Question,
    ScenePresence,
    answer_questions,
    make_questions,
    pope_metrics,
    read_answers,
    read_scene_list,
    write_answers,
    write_scene_list,
)
from embodied_perceptron_training.homes.building.home import HomeSpec, build_home
from embodied_perceptron_training.homes.generate import sample_idx

# bed: 3 scenes, lamp 3, sink 2, stove 2, toy 1, rug 1
TRAINING = [
    ScenePresence("t0", ("bed", "lamp", "toy")),
    ScenePresence("t1", ("bed", "lamp", "rug")),
    ScenePresence("t2", ("sink", "stove", "lamp")),
    ScenePresence("t3", ("sink", "stove"), ("bed",)),
]
STATISTICS = CategoryStatistics.of(TRAINING)


def negatives(questions: list[Question]) -> list[str]:
    return [q.category for q in questions if not q.exists]


def test_statistics_count_scenes_and_pairs() -> None:
    row = {name: k for k, name in enumerate(STATISTICS.categories)}
    assert STATISTICS.categories == ("bed", "lamp", "rug", "sink", "stove", "toy")
    assert STATISTICS.scenes.tolist() == [3, 3, 1, 2, 2, 1]
    assert STATISTICS.together[row["bed"], row["lamp"]] == 2
    assert STATISTICS.together[row["sink"], row["stove"]] == 2
    assert STATISTICS.together[row["bed"], row["sink"]] == 1  # what is there unasked counts too
    assert STATISTICS.together[row["toy"], row["rug"]] == 0
    assert (STATISTICS.together == STATISTICS.together.T).all()


def test_popular_takes_the_most_frequent_absent() -> None:
    scene = ScenePresence("a", ("toy", "rug"))
    assert negatives(make_questions([scene], STATISTICS, "popular")) == ["bed", "lamp"]
    # what is there unasked is no negative
    scene = ScenePresence("a", ("toy", "rug"), ("bed",))
    assert negatives(make_questions([scene], STATISTICS, "popular")) == ["lamp", "sink"]


def test_adversarial_takes_for_each_positive_the_unused_that_comes_with_it() -> None:
    # rug: bed and lamp come with it once, bed stands first; sink: stove twice
    scene = ScenePresence("a", ("sink", "rug"))
    assert negatives(make_questions([scene], STATISTICS, "adversarial")) == ["bed", "stove"]
    # rug takes bed; toy, too, would take bed, which is used: lamp
    scene = ScenePresence("a", ("toy", "rug"))
    assert negatives(make_questions([scene], STATISTICS, "adversarial")) == ["bed", "lamp"]
    # stove: sink twice, though lamp is in more scenes: the popular one would be lamp
    scene = ScenePresence("a", ("stove",), ("bed",))
    assert negatives(make_questions([scene], STATISTICS, "adversarial")) == ["sink"]
    assert negatives(make_questions([scene], STATISTICS, "popular")) == ["lamp"]
    # a positive that the training set lacks takes what most scenes have
    assert negatives(make_questions([ScenePresence("a", ("harp",))], STATISTICS, "adversarial")) == ["bed"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_as_many_no_as_yes_whatever_the_order(protocol: str) -> None:
    scenes = [
        ScenePresence("a", ("toy", "rug", "bed")),
        ScenePresence("b", ("sink",), ("lamp",)),
        ScenePresence("c", ()),
    ]
    questions = make_questions(scenes, STATISTICS, protocol, seed=3)
    turned = [ScenePresence(s.scene_id, s.present[::-1], s.unasked) for s in scenes[::-1]]
    assert make_questions(turned, CategoryStatistics.of(TRAINING[::-1]), protocol, seed=3) == questions
    for scene in scenes:
        mine = [q for q in questions if q.scene_id == scene.scene_id]
        assert {q.category for q in mine if q.exists} == set(scene.present)
        assert len(mine) == 2 * len(scene.present)
        absent = {q.category for q in mine if not q.exists}
        assert len(absent) == len(scene.present)  # none twice
        assert absent.isdisjoint({*scene.present, *scene.unasked})


def test_random_depends_on_seed_and_scene_alone() -> None:
    scenes = [ScenePresence(f"s{k}", ("toy",)) for k in range(40)]
    first = make_questions(scenes, STATISTICS, "random", seed=1)
    assert make_questions(scenes[7:8], STATISTICS, "random", seed=1) == [q for q in first if q.scene_id == "s7"]
    assert set(negatives(first)) == {"bed", "lamp", "rug", "sink", "stove"}
    assert make_questions(scenes, STATISTICS, "random", seed=2) != first


def test_questions_refuse_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="'greedy'"):
        make_questions([], STATISTICS, "greedy")
    with pytest.raises(ValueError, match="'a' is given twice"):
        make_questions([ScenePresence("a", ("bed",))] * 2, STATISTICS, "random")
    with pytest.raises(ValueError, match="4 categories, but only 2"):
        make_questions([ScenePresence("a", ("bed", "lamp", "rug", "sink"))], STATISTICS, "popular")
    with pytest.raises(ValueError, match="'bed' twice"):
        ScenePresence("a", ("bed",), ("bed",))
    with pytest.raises(ValueError, match="no category"):
        CategoryStatistics.of([ScenePresence("a", ())])


def test_metrics_by_hand() -> None:
    questions = [Question("a", name, k < 3) for k, name in enumerate("uvwxyz")]
    figures = pope_metrics(questions, [True, True, False, True, False, False])
    assert figures == pytest.approx(
        {"precision": 200 / 3, "recall": 200 / 3, "f1": 200 / 3, "accuracy": 200 / 3, "yes": 50.0}
    )
    figures = pope_metrics(questions, [True] * 6)  # always yes, as 3D-LLM
    assert figures == pytest.approx({"precision": 50, "recall": 100, "f1": 200 / 3, "accuracy": 50, "yes": 100})
    assert pope_metrics(questions, [False] * 6) == dict.fromkeys(FIGURES, 0.0) | {"accuracy": 50.0}
    right = [q.exists for q in questions]
    assert pope_metrics(questions, right) == dict.fromkeys(FIGURES, 100.0) | {"yes": 50.0}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40), st.randoms())
def test_metrics_do_not_depend_on_the_order(pairs: list[tuple[bool, bool]], random: object) -> None:
    questions = [Question("a", f"c{k}", exists) for k, (exists, _) in enumerate(pairs)]
    said = [answer for _, answer in pairs]
    order = list(range(len(pairs)))
    random.shuffle(order)  # type: ignore[attr-defined]
    shuffled = pope_metrics([questions[i] for i in order], [said[i] for i in order])
    figures = pope_metrics(questions, said)
    assert shuffled == figures
    assert all(0 <= value <= 100 for value in figures.values())


def test_metrics_refuse_what_does_not_fit() -> None:
    question = Question("a", "bed", True)
    with pytest.raises(ValueError, match="no questions"):
        pope_metrics([], [])
    with pytest.raises(ValueError, match="2 answers for 1"):
        pope_metrics([question], [True, False])
    with pytest.raises(ValueError, match="'yes'"):
        pope_metrics([question], ["yes"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="no answer for 'bed' in scene 'a'"):
        answer_questions([question], {("a", "lamp"): True})


def test_questions_in_words() -> None:
    assert Question("a", "oven", True).text == "Is there an oven in the scene?"
    assert Question("a", "bed", True).text == "Is there a bed in the scene?"


def test_files_round_trip(tmp_path: Path) -> None:
    scenes = [ScenePresence("a", ("bed",), ("toy",)), ScenePresence("b", ())]
    write_scene_list(tmp_path / "s.json", scenes)
    assert read_scene_list(tmp_path / "s.json") == scenes
    answers = {("a", "bed"): True, ("a", "toy"): False}
    write_answers(tmp_path / "a.json", answers)
    assert read_answers(tmp_path / "a.json") == answers
    (tmp_path / "plain.json").write_text(json.dumps({"scenes": {"a": ["bed", "toy"]}}))
    assert read_scene_list(tmp_path / "plain.json") == [ScenePresence("a", ("bed", "toy"))]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "s.json: Expecting"),
        ("[]", "must hold an object"),
        ('{"scenes": {"a": 3}}', "scene 'a': 'present' must be a list"),
        ('{"scenes": {"a": ["bed", "bed"]}}', "lists 'bed' twice"),
        ('{"scenes": {"a": ["bed", 7]}}', "7 is no category"),
        ('{"scenes": {"a": {"present": [], "unasked": "bed"}}}', "'unasked' must be a list"),
    ],
)
def test_scene_lists_that_are_none(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "s.json").write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        read_scene_list(tmp_path / "s.json")
    assert "s.json" in str(error.value)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"scene": "a", "category": "bed"}, "answer 1: 'answer' must be a text"),
        ({"scene": "a", "category": "bed", "answer": "maybe"}, "'maybe'"),
        ({"scene": "a", "category": "bed", "answer": "no"}, "contradicts"),
        ("bed", "must be a mapping"),
    ],
)
def test_answers_that_are_none(tmp_path: Path, entry: object, message: str) -> None:
    first = {"scene": "a", "category": "bed", "answer": "Yes"}
    (tmp_path / "a.json").write_text(json.dumps({"answers": [first, entry]}))
    with pytest.raises(ValueError, match=message):
        read_answers(tmp_path / "a.json")


def test_training_homes_are_those_that_the_generator_builds() -> None:
    """The shipped list: the homes of ``range(100000, 100320)``. To update it, write these lists with
    :func:`write_scene_list`."""
    scenes = {scene.scene_id: scene for scene in read_scene_list(TRAINING_HOMES)}
    assert len(scenes) == 320
    for seed in (100003, 100317):
        labels = {o.label for o in build_home(seed, HomeSpec(0)).objects} - {"object"}
        assert scenes[sample_idx(seed)] == ScenePresence(sample_idx(seed), tuple(sorted(labels)))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_empty_scene_among_others_asks_nothing_and_changes_nothing(protocol: str) -> None:
    scenes = [ScenePresence("a", ("toy", "rug")), ScenePresence("b", ("bed",))]
    with_empty = [scenes[0], ScenePresence("empty", ()), scenes[1]]
    questions = make_questions(with_empty, STATISTICS, protocol)
    assert questions == make_questions(scenes, STATISTICS, protocol)
    assert {q.scene_id for q in questions} == {"a", "b"}
