"""Sentences over many objects: the pairs within reach give the answers that all pairs give."""

from __future__ import annotations

import numpy as np
import pytest
from support.language_scenes import camera
from support.scene_builder import snapshot_of

from embodied_perceptron.geometry.boxes import _ROWS_AT_ONCE, Bounds
from embodied_perceptron.language import relations, scoring
from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.language.description import describe
from embodied_perceptron.language.meaning import Constraint, Meaning, ObjectPhrase
from embodied_perceptron.language.object_states import with_conditions
from embodied_perceptron.language.query import Query
from embodied_perceptron.language.relations import PAIR_RELATIONS, REACH_M, Pairs, SceneGeometry, Viewer, side_features
from embodied_perceptron.results import SceneObject

NAMES = ("chair", "table", "lamp", "cup", "shelf", "book", "plant", "window", "door", "couch", "picture", "wall")
SENTENCES = (
    "the chair", "the chair next to the table", "the lamp on the table by the window", "how many lamps are there",
    "the second book from the left", "what is on the table", "what is next to the couch",
    "the chair between the table and the window", "the cup between two chairs", "the plant in the corner",
    "the largest shelf", "the chair closest to the window", "the chair farthest from the door",
    "the lamp left of the couch", "the lamp to the right of the table", "the plant in front of the shelf",
    "the book behind the couch", "the cup that is not on the table", "all chairs near the table",
    "the chairs around the table", "the picture above the couch", "the box under the table",
    "the chair on the couch's left", "facing the shelf, the lamp on the left", "the nearest chair",
    "the chair within two metres of the door", "the lamp other than the one on the table", "the table with books",
    "the table surrounded by chairs", "the red cup", "the chair at the end of the table",
    "the chair across from the couch", "the table supporting a lamp", "the cup in the shelf",
    "is there a plant near the window", "the chair by itself", "the middle chair", "the tallest lamp near the window",
    "the thing on the shelf", "the couch that is near the table which is by the window",
)  # fmt: skip


def home(seed: int, count: int, side_m: float) -> tuple[list[SceneObject], np.ndarray]:
    """Things at random, a tenth of them found twice; walls are long; and their colours."""
    rng = np.random.default_rng(seed)
    objects = []
    for i in range(count):
        name = NAMES[rng.integers(0, len(NAMES) if i % 4 == 0 else len(NAMES) - 1)]
        size = np.array([rng.uniform(2, 4), 0.1, 2.5]) if name == "wall" else rng.uniform(0.2, 1.6, 3)
        place = [*rng.uniform(-side_m / 2, side_m / 2, 2), rng.uniform(0.2, 1.5)]
        box = np.array([*place, *size, rng.choice([0.0, np.pi / 2]), 0.0, 0.0])
        objects.append(SceneObject(i + 1, name, float(rng.uniform(0.3, 0.95)), box))
    for k in range(count // 10):
        first = objects[int(rng.integers(0, count))]
        box = first.box.copy()
        box[:3] += rng.normal(0, 0.03, 3)
        name = first.label if k % 2 else NAMES[int(rng.integers(0, len(NAMES) - 1))]
        objects.append(SceneObject(count + 1 + k, name, 0.5, box))
    return objects, rng.uniform(0, 255, (len(objects), 3))


def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow reference: every object of the scene as a target, all anchors, all pairs of ends."""

    def all_pairs(g: SceneGeometry, targets: np.ndarray, anchors: np.ndarray, reach_m: float = 0.0) -> Pairs:
        return g.block(targets, anchors)

    begin = scoring.Scorer.__init__

    def of_all(scorer: scoring.Scorer, *args, **kwargs) -> None:
        begin(scorer, *args, **kwargs)
        scorer.rows = np.arange(scorer.g.n)

    monkeypatch.setattr(SceneGeometry, "near", all_pairs)
    monkeypatch.setattr(scoring.Scorer, "__init__", of_all)


@pytest.mark.parametrize("text", SENTENCES)
@pytest.mark.parametrize(("count", "side_m"), [(30, 5.0), (90, 5.5)])
def test_answers_from_pairs_within_reach_are_those_from_all_pairs(text, count, side_m, monkeypatch):
    for seed in range(2):
        objects, colors = home(seed, count, side_m)
        viewpoint = camera((0.0, -3.0, 1.5), (0.0, 0.0, 0.5)) if seed else None
        with monkeypatch.context() as fast:
            fast.setattr(relations, "_BLOCK", 0)  # always lists
            found = ground_objects(text, objects, viewpoint, colors=colors)
        with monkeypatch.context() as slow:
            everything(slow)
            wanted = ground_objects(text, objects, viewpoint, colors=colors)
        assert (found.status, found.count, found.reason) == (wanted.status, wanted.count, wanted.reason)
        assert [c.id for c in found.candidates] == [c.id for c in wanted.candidates]
        np.testing.assert_allclose([c.score for c in found.candidates], [c.score for c in wanted.candidates], atol=5e-3)
        assert found.phrases == wanted.phrases


@pytest.mark.parametrize("relation", sorted(PAIR_RELATIONS))
@pytest.mark.parametrize("viewer", [None, Viewer(np.array([3.0, 1.0]), np.array([0.0, 1.0]))])
def test_nothing_beyond_its_reach_scores(relation, viewer):
    objects, _ = home(3, 80, 60.0)
    rng = np.random.default_rng(0)
    g = SceneGeometry(np.stack([o.box for o in objects]), rng.dirichlet(np.ones(5), len(objects))[:, :4], viewer)
    p = g.every
    least = 0.007 if relation in ("above", "below") else 2e-6
    beyond = np.maximum(p._gap(0), p._gap(1)) > REACH_M[relation]
    if np.isfinite(REACH_M[relation]):
        assert beyond.sum() > 100
        assert p.scores(relation)[beyond].max() < least
    else:
        assert not beyond.any()
    rows, columns = np.arange(0, g.n, 2), np.arange(g.n)
    pairs, scores = g.related(relation, rows, columns)
    np.testing.assert_allclose(scores, p.scores(relation)[pairs.target, pairs.anchor], atol=1e-12)
    dense = np.zeros(g.n)
    dense[rows] = p.scores(relation)[rows].max(axis=1)
    np.testing.assert_allclose(pairs.best(scores), dense, atol=least)


@pytest.mark.parametrize("relation", [r for r in relations.LIKELIHOODS if np.isfinite(relations.LIKELIHOOD_REACH_M[r])])
def test_nothing_beyond_reach_holds(relation):
    objects, _ = home(4, 80, 60.0)
    p = SceneGeometry(np.stack([o.box for o in objects])).every
    beyond = np.maximum(p._gap(0), p._gap(1)) > relations.LIKELIHOOD_REACH_M[relation]
    assert beyond.sum() > 100
    assert relations.LIKELIHOODS[relation](p)[beyond].max() < 0.02


@pytest.mark.parametrize("reach_m", [0.0, 0.75, 5.05])
def test_pairs_within_reach_are_those_of_a_plain_comparison(reach_m):
    rng = np.random.default_rng(1)
    for n, m in ((0, 3), (3, 0), (1, 1), (40, 70), (2 * _ROWS_AT_ONCE + 1, 5)):
        low, low2 = rng.uniform(-5, 5, (n, 3)).round(1), rng.uniform(-5, 5, (m, 3)).round(1)
        a, b = Bounds(low, low + rng.uniform(0, 3, (n, 3)).round(1)), Bounds(low2, low2 + 0.5)
        rows, columns = a.pairs_within(b, reach_m)
        gap = np.maximum(a.low[:, None] - b.high[None], b.low[None] - a.high[:, None])[..., :2].max(-1)
        wanted = np.argwhere(gap <= reach_m)
        assert len(rows) == len(wanted)
        np.testing.assert_array_equal(np.stack([rows, columns], axis=1), wanted)


@pytest.mark.parametrize("names", [NAMES, ("cup",), ("door", "basket", "cabinet", "table")])
def test_descriptions_and_states_compare_near_objects_alone(names, monkeypatch):
    """A hall with one object in 30 square metres: work grows with the objects, not with their pairs."""
    count, rng = 2_000, np.random.default_rng(0)
    side_m = (30 * count) ** 0.5
    places = np.concatenate([rng.uniform(0, side_m, (count, 2)), np.full((count, 1), 0.5)], axis=1)
    objects = [
        SceneObject(i + 1, names[i % len(names)], 0.9, np.array([*at, 0.5, 0.5, 1.0, 0.0, 0.0, 0.0]))
        for i, at in enumerate(places)
    ]
    voxels = snapshot_of(rng.uniform(0, side_m, (2_000, 3)).astype(np.float32))
    compared, within, norm = [], Bounds.pairs_within, np.linalg.norm

    def pairs_within(self, other, reach_m):
        rows, columns = within(self, other, reach_m)
        compared.append(len(rows))
        return rows, columns

    def counted_norm(values, **options):
        compared.append(len(values))
        return norm(values, **options)

    monkeypatch.setattr(Bounds, "pairs_within", pairs_within)
    monkeypatch.setattr(np.linalg, "norm", counted_norm)
    monkeypatch.setattr(SceneGeometry, "every", property(lambda _: pytest.fail("all pairs")))
    text = describe(with_conditions(objects, voxels)).text
    assert text.count("<obj_") >= count - sum(o.label == "wall" for o in objects)
    assert sum(compared) < 40 * count


def test_fronts_from_what_is_around_are_those_from_everything(monkeypatch):
    objects, _ = home(5, 60, 40.0)
    labels = [o.label for o in objects]
    boxes = np.stack([o.box for o in objects])
    wanted = side_features(SceneGeometry(boxes), labels)
    monkeypatch.setattr(relations, "_BLOCK", 0)
    np.testing.assert_allclose(side_features(SceneGeometry(boxes), labels), wanted, atol=1e-6)
    assert side_features(SceneGeometry(boxes), labels, np.zeros(0, np.intp)).shape == (0, *wanted.shape[1:])


def test_repeated_relations_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    front = PAIR_RELATIONS["front"]
    monkeypatch.setitem(PAIR_RELATIONS, "front", lambda pairs: computed.append(1) or front(pairs))
    fronts = tuple(Constraint("front", (ObjectPhrase("table", (k, k + 1)),)) for k in range(16))
    query = Query("chair", meaning=Meaning("chair", ObjectPhrase("chair", (0, 5)), fronts))
    ground_objects(query, home(4, 24, 8.0)[0])
    assert 0 < len(computed) <= 12
