"""Fusion of the network with several detectors."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.lift_world import K, no_detections, tour
from support.scene_builder import box_surface, snapshot_of

from embodied_perceptron.detection2d.association import Candidate, LiftedView
from embodied_perceptron.detection2d.detections2d import Detections2d
from embodied_perceptron.detection2d.fusion import FusionContext, LiftedObject, find_hypotheses, surface_in
from embodied_perceptron.detection2d.fusion import fuse as fuse_places
from embodied_perceptron.detection2d.lifting import LiftedDetection, box_along
from embodied_perceptron.geometry.boxes import box_corners
from embodied_perceptron.geometry.suppression import fusion_affinity
from embodied_perceptron.geometry.transforms import invert_transform, project, transform_points
from embodied_perceptron.inference.class_priors import shipped_priors
from embodied_perceptron.inference.posterior import shipped_detector_model
from embodied_perceptron.results import UNNAMED, Certainty, Detections

PRIORS = shipped_priors()
MODEL = shipped_detector_model()
CHAIR = [0.0, 0.0, 0.45, 0.5, 0.5, 0.9, 0, 0, 0]
FAR = [3.0, 0.0, 0.45, 0.5, 0.5, 0.9, 0, 0, 0]
TABLE = [0.6, 0.0, 0.72, 1.4, 0.8, 0.08, np.pi / 2, 0, 0]
MAP = snapshot_of(box_surface((0.6, 0.0, 0.72), (0.8, 1.4, 0.04)))


def found(*things):
    """(box, score, label) or (box, score, label, posterior) -> detections."""
    boxes = np.array([t[0] for t in things], dtype=float).reshape(-1, 9)
    posteriors = tuple(t[3] if len(t) > 3 else {t[2]: t[1]} for t in things)
    scores = np.array([t[1] for t in things], dtype=float)
    return Detections(boxes, scores, tuple(t[2] for t in things), posteriors, Certainty.CALIBRATED)


def thing(box, label, views=3, score=0.8):
    points = np.asarray(box[:3]) + np.random.default_rng(0).uniform(-0.5, 0.5, (60, 3)) * box[3:6]
    said = {"any": {label: (views, score)}}
    return LiftedObject(Candidate(points, np.array(box), said), np.array(box, float), label)


def around(views=(), snapshot=MAP):
    return FusionContext(views, snapshot, 0.0, PRIORS)


def fuse(network, things, surroundings, model=MODEL, **options):
    return fuse_places(network, things, find_hypotheses(network, things, surroundings), model, **options)


def judged(network, things, **options):
    fused = fuse(network, things, around(), MODEL, **options)
    return list(zip(fused.labels, fused.scores.tolist(), np.round(fused.boxes, 6).tolist(), strict=True))


def moved(box, dx=0.0):
    return [box[0] + dx, *box[1:]]


def missed_views(*said, count=8):
    """Views around the room's table; ``said`` stands in each."""
    frames, _ = tour(count)
    nothing = no_detections("front", 0)
    return [LiftedView("any", i, f.frame, f.T_world_camera, list(said), nothing) for i, f in enumerate(frames)]


def test_agreement_makes_surer_and_the_networks_box_stays():
    (best, *_) = judged(found((CHAIR, 0.5, "chair")), [thing(moved(CHAIR, 0.1), "chair")])
    assert best[0] == "chair"
    assert 0.6 < best[1] < 1.0
    assert best[2] == CHAIR


def test_what_the_network_has_is_not_taken_away_by_another_name():
    network = found((CHAIR, 0.9, "bin"))
    for name, views, score in (("chair", 1, 0.4), ("tv", 2, 0.5)):
        fused = fuse(network, [thing(CHAIR, name, views, score)], around(), MODEL)
        assert fused.labels[0] == "bin"
        assert fused.scores[0] > 0.7
        exists = sum(fused.posterior(0).values())
        assert exists >= 0.9  # somebody sees something: more is there, not less


@pytest.mark.parametrize(("views", "score"), [(1, 0.45), (2, 0.35)])
def test_weak_reports_do_not_take_a_sure_name(views, score):
    network = found((CHAIR, 0.5, "bin", {"bin": 0.5, UNNAMED: 0.35}))
    fused = fuse(network, [thing(CHAIR, "chair", views, score)], around(), MODEL)
    assert fused.labels[0] == "bin"
    assert fused.posterior(0)["bin"] >= 0.5 * sum(fused.posterior(0).values())


def test_reports_without_a_name_make_an_object_and_leave_names_alone():
    fused = fuse(found((CHAIR, 0.6, "bin")), [thing(CHAIR, UNNAMED, 5, 0.9)], around(), MODEL)
    assert fused.labels == ("bin",)
    assert fused.scores[0] >= 0.6
    alone = fuse(found(), [thing(CHAIR, UNNAMED, 5, 0.9)], around(), MODEL)
    assert alone.labels == (UNNAMED,)


def test_a_name_that_is_all_but_given_up_is_replaced():
    network = found((CHAIR, 0.8, UNNAMED, {"bin": 0.05, "chair": 0.05, UNNAMED: 0.7}))
    fused = fuse(network, [thing(CHAIR, "chair", 6, 0.9)], around(), MODEL)
    posterior = fused.posterior(0)
    assert posterior["chair"] > 2 * posterior["bin"]
    assert posterior["chair"] > 0.1


def test_an_unsure_thing_is_an_object_with_its_names():
    network = found((CHAIR, 0.8, UNNAMED, {"bin": 0.2, "stool": 0.2, UNNAMED: 0.4}))
    fused = fuse(network, [thing(CHAIR, "tv", 1, 0.4)], around(), MODEL)
    assert fused.labels[0] == UNNAMED
    assert fused.scores[0] == pytest.approx(sum(fused.posterior(0).values()))
    assert {"bin", "stool", "tv"} <= set(fused.posterior(0))


def test_what_only_a_detector_sees_is_there_where_it_is_sure():
    sure = fuse(found(), [thing(CHAIR, "chair", 8, 0.9)], around(), MODEL, min_probability=0.4)
    assert len(sure) >= 1
    assert not len(fuse(found(), [thing(CHAIR, "chair", 1, 0.3)], around(), MODEL, min_probability=0.4))


def test_a_slab_at_table_height_is_no_chair():
    slab = [0.0, 0.0, 0.75, 0.95, 0.35, 0.08, 0, 0, 0]  # of the table in front of it
    assert [label for label, *_ in judged(found(), [thing(CHAIR, "chair", 1, 0.85)])] == ["chair"]
    assert "chair" not in [label for label, *_ in judged(found(), [thing(slab, "chair", 1, 0.85)])]


def test_other_things_stay_as_they_are():
    fused = judged(found((FAR, 0.4, "chair")), [thing(CHAIR, "chair")])
    assert ("chair", 0.4, FAR) in fused
    cup = [0.0, 0.0, 0.95, 0.08, 0.08, 0.1, 0, 0, 0]
    table = [0.0, 0.0, 0.45, 1.5, 0.9, 1.0, 0, 0, 0]  # the cup lies within its box
    places = find_hypotheses(found((table, 0.4, "table")), [thing(cup, "cup")], around())
    assert [(len(p.rows), p.lifted) for p in places] == [(1, ()), (0, (0,))]


def test_names_of_one_thing_are_one_place():
    network = found((CHAIR, 0.5, "chair"), (moved(CHAIR, 0.05), 0.2, "stool"), (FAR, 0.6, "bin"))
    places = find_hypotheses(network, [thing(CHAIR, "chair")], around())
    assert sorted(tuple(p.rows.tolist()) for p in places) == [(0, 1), (2,)]


def test_a_door_and_its_frame_that_a_detector_reports_are_two_objects():
    door, frame = [0.0, 0.0, 1.0, 0.8, 0.13, 2.0, 0, 0, 0], [0.0, 0.0, 1.03, 0.92, 0.15, 2.06, 0, 0, 0]
    posterior = {"door": 0.9, "doorframe": 0.05}
    network = found((door, 0.9, "door", posterior), (door, 0.05, "doorframe", posterior))
    fused = fuse(network, [thing(door, "door"), thing(frame, "doorframe")], around())
    names = ("door", "doorframe")
    score = {name: max(s for n, s in zip(fused.labels, fused.scores, strict=True) if n == name) for name in names}
    assert min(score.values()) > 0.5
    assert fused.reported.all()
    one = fuse(network, [thing(frame, "doorframe")], around())
    assert {n: one.is_reported(i) for i, n in enumerate(one.labels)} == {"door": False, "doorframe": True}
    assert one.scores[one.labels.index("door")] == 0.9, "a detector that sees the frame does not deny the door"


@pytest.mark.parametrize("score", [0.3, 0.55, 0.83, 0.96])
def test_views_that_do_not_report_a_box_change_nothing(score):
    network = found((TABLE, score, "bed", {"bed": score, UNNAMED: min(0.3 * score, 1.0 - score)}))
    fused = fuse(network, [], around(missed_views()), MODEL)
    assert (fused.labels, fused.scores.tolist()) == (("bed",), [score])
    assert fused.posteriors == network.posteriors


COUNTER = found(  # one thing under several names, of which there is less room in its posterior than they score
    (TABLE, 0.9, UNNAMED, {"counter": 0.28, "stove": 0.27, UNNAMED: 0.35}),
    (moved(TABLE, 0.02), 0.32, "counter", {"counter": 0.32, "stove": 0.3, UNNAMED: 0.28}),
    (moved(TABLE, 0.04), 0.31, "stove", {"counter": 0.3, "stove": 0.31, UNNAMED: 0.29}),
    (moved(TABLE, 0.06), 0.3, UNNAMED, {"counter": 0.1, UNNAMED: 0.2}),
)


def test_several_names_of_one_thing_stay_where_nobody_reports_it():
    fused = fuse(COUNTER, [], around(missed_views()), MODEL)
    assert (fused.labels, fused.scores.tolist()) == (COUNTER.labels, COUNTER.scores.tolist())
    np.testing.assert_array_equal(fused.boxes, COUNTER.boxes)
    assert fused.posteriors == COUNTER.posteriors


def test_what_is_said_moves_every_box_of_its_place_by_as_much_as_its_name():
    def of(views, score):
        said = thing(TABLE, "counter", views, score)
        fused = fuse(COUNTER, [said], around(), MODEL)
        return dict(zip(np.round(fused.boxes[:, 0], 2).tolist(), fused.scores.tolist(), strict=True))

    weak, strong = of(1, 0.2), of(6, 0.9)
    assert weak[0.62] > 0.33  # counter
    assert weak[0.64] < 0.31  # stove
    assert min(weak[0.6], weak[0.66]) > weak[0.62]  # without a name: none has half of the thing's probability
    assert strong.keys() == {0.62, 0.64}  # now one has
    assert strong[0.62] > weak[0.62]


def shown(view, box, label, score=0.9):
    """The view with a 2-D detection that shows a box."""
    camera = transform_points(invert_transform(view.T_world_camera), box_corners(np.array([box], float))[0])
    uv, _ = project(camera, K)
    box_px = np.concatenate([uv.min(axis=0), uv.max(axis=0)]).clip(-0.5, [K.width - 0.5, K.height - 0.5] * 2)
    detections = Detections2d("front", 0, box_px[None], np.array([score]), (label,))
    return dataclasses.replace(view, found=detections)


def reports(places):
    return [{name: count for one in p.evidence for name, (count, _) in one.reported.items()} for p in places]


def test_a_detection_that_is_not_lifted_names_the_box_that_it_shows():
    first, *others = missed_views(count=2)
    views = [shown(first, TABLE, "table"), *others]
    network = found((TABLE, 0.3, "bed", {"bed": 0.3, UNNAMED: 0.1}), (FAR, 0.9, "table"))
    assert reports(find_hypotheses(network, [], around(views))) == [{}, {"table": 1}]  # by score: FAR, TABLE
    fused = fuse(network, [], around(views), MODEL)
    assert next(label for label, box in zip(fused.labels, fused.boxes, strict=True) if box[0] == 0.6) == "table"


def test_a_detection_shows_one_box():
    views = [shown(view, TABLE, "table") for view in missed_views()]
    aside = [0.6, 0.5, *TABLE[2:]]
    counts = reports(find_hypotheses(found((aside, 0.5, "bed"), (TABLE, 0.3, "table")), [], around(views)))
    assert counts[0] == {}
    assert counts[1]["table"] >= 4


def test_an_object_that_was_lifted_elsewhere_goes_with_the_box_that_its_detections_show():
    views = [
        dataclasses.replace(shown(view, TABLE, "table"), lifted=[lifted_at(FAR, "table")])
        for view in missed_views(count=3)
    ]
    members = tuple((v, 0) for v in range(3))
    away = thing(FAR, "table")
    away = dataclasses.replace(away, candidate=dataclasses.replace(away.candidate, members=members))
    (place,) = find_hypotheses(found((TABLE, 0.4, "table")), [away], around(views))
    assert place.lifted == (0,)
    np.testing.assert_array_equal(place.box, TABLE)


def lifted_at(box, label):
    points = np.array(box[:3]) + np.random.default_rng(0).uniform(-0.3, 0.3, (50, 3)) * [1, 1, 0.05]
    around_m, known = points[:0], np.ones(4, bool)
    return LiftedDetection(label, 0.4, points, box_along(points, 0.0), False, 0, np.zeros(4), around_m, known)


def test_what_nobody_could_see_stays_to_the_bit():
    network = found((FAR, 0.5, "bed"), (CHAIR, 0.31, "bin"))
    behind = snapshot_of(box_surface((3.0, 0.0, 0.45), (0.5, 0.5, 0.9)))  # behind the wall
    for views in (missed_views(), []):
        fused = fuse(network, [], around(views, behind), MODEL)
        assert (fused.labels, fused.scores.tolist()) == (network.labels, network.scores.tolist())
        np.testing.assert_array_equal(fused.boxes, network.boxes)
        assert fused.posteriors == network.posteriors


def test_nothing_and_nothing():
    assert len(fuse(found(), [], around(), MODEL)) == 0
    assert surface_in(np.zeros((0, 9)), MAP) == []
    empty = np.zeros((0, 9))
    assert fusion_affinity(empty, empty, np.zeros((0, 0), bool), np.zeros(0, bool)).shape == (0, 0)


def test_scores_keep_their_certainty():
    raw = dataclasses.replace(found((CHAIR, 0.8, "chair")), certainty=Certainty.RAW)
    assert fuse(raw, [], around(), MODEL).certainty is Certainty.RAW


@pytest.mark.parametrize("seed", range(4))
def test_the_order_does_not_matter_and_scores_stay_probabilities(seed):
    rng = np.random.default_rng(seed)
    names = np.array(["chair", "bin", "table", "object"])

    def box():
        return [*rng.uniform(-1, 1, 2), 0.4, *rng.uniform(0.2, 0.9, 3), 0, 0, 0]

    network = found(*[(box(), s, str(rng.choice(names))) for s in rng.permutation(np.linspace(0.1, 0.9, 12))])
    things = [thing(box(), str(rng.choice(names[:3])), score=s) for s in (0.4, 0.6, 0.8)]
    first = judged(network, things)
    order = rng.permutation(12)
    again = sorted((label, round(score, 9), *b) for label, score, b in judged(network.take(order), things))
    assert again == sorted((label, round(score, 9), *b) for label, score, b in first)
    assert all(0 <= score <= 1 for _, score, _ in first)


def test_a_cut_surface_is_what_lies_in_the_box():
    points, x = MAP.mean_point_m.copy(), MAP.mean_point_m[:, 0].copy()
    (surface,) = surface_in(np.array([TABLE]), MAP)
    assert surface is not None
    assert len(points) >= len(surface) >= 6
    assert x.min() - 1e-6 <= surface[:, 0].min() <= surface[:, 0].max() <= x.max() + 1e-6
    assert surface_in(np.array([FAR]), MAP) == [None]
