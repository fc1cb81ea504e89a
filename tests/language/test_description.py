"""Grounded descriptions: what is said holds, and every object is in it."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from support.language_scenes import living_room, thing
from support.lift_world import KnowingDetector, config, tour
from typer.testing import CliRunner

from embodied_perceptron.apps.cli import build_app
from embodied_perceptron.detection2d.pipeline import DetectionLift, LiftSettings
from embodied_perceptron.detection2d.scheduler import SchedulerRules
from embodied_perceptron.language.description import (
    Fact,
    decide_relations,
    describe,
    read_mentions,
)
from embodied_perceptron.perceptron import Perceptron

TABLE = thing(3, "table", (0, 0, 0.37), (1.6, 0.8, 0.74))
LAPTOP = thing(4, "laptop", (0.2, 0.1, 0.85), (0.3, 0.2, 0.22))
CUP = thing(5, "cup", (-0.4, 0.1, 0.79), (0.08, 0.08, 0.1))
BIN = thing(6, "bin", (0.3, 0.0, 0.2), (0.3, 0.3, 0.4))
CABINET = thing(7, "cabinet", (3, 0, 0.9), (1.0, 0.6, 1.8))
BOX = thing(8, "box", (3.1, 0, 0.6), (0.3, 0.3, 0.3))


def test_geometry_decides_on_in_and_under():
    assert set(decide_relations([TABLE, LAPTOP, CUP, BIN, CABINET, BOX])) == {
        Fact(4, "on", 3),
        Fact(5, "on", 3),
        Fact(6, "under", 3),
        Fact(8, "in", 7),
    }


@pytest.mark.parametrize("yaw_rad", [0.0, 0.4, 0.75, -0.6])
def test_relations_do_not_depend_on_the_yaw_of_the_map(yaw_rad):
    beside = thing(9, "bag", (0.3, 0.55, 0.2), (0.3, 0.2, 0.4))  # a long side of the table is at 0.4
    objects = [TABLE, LAPTOP, BIN, beside, CABINET, BOX]
    c, s = np.cos(yaw_rad), np.sin(yaw_rad)
    turned = [dataclasses.replace(o, box=o.box.copy()) for o in objects]
    for o in turned:
        o.box[:2] = np.array([[c, -s], [s, c]]) @ o.box[:2]
        o.box[6] += yaw_rad
    assert set(decide_relations(turned)) == {Fact(4, "on", 3), Fact(6, "under", 3), Fact(8, "in", 7)}


def test_apart_from_each_other_nothing_is_related():
    far = [thing(i, "chair", (3.0 * i, 0, 0.45), (0.5, 0.5, 0.9)) for i in range(4)]
    assert decide_relations(far) == ()
    assert decide_relations([]) == decide_relations([TABLE]) == ()


def test_order_of_the_objects_does_not_matter():
    objects = [TABLE, LAPTOP, CUP, BIN, CABINET, BOX]
    assert set(decide_relations(objects[::-1])) == set(decide_relations(objects))
    assert describe(objects[::-1]).text == describe(objects).text


def test_many_things_are_compared_with_those_around() -> None:
    tables = [thing(2 * i, "table", (3.0 * (i % 20), 3.0 * (i // 20), 0.37), (1.6, 0.8, 0.74)) for i in range(1, 400)]
    cups = [thing(o.id + 1, "cup", (*o.box[:2], 0.79), (0.08, 0.08, 0.1)) for o in tables]
    assert decide_relations([*tables, *cups]) == tuple(Fact(o.id, "on", o.id - 1) for o in cups)


def test_things_on_things_lie_on_the_nearest():
    tray = thing(9, "tray", (-0.4, 0.1, 0.75), (0.4, 0.3, 0.02))
    cup = thing(5, "cup", (-0.4, 0.1, 0.81), (0.08, 0.08, 0.1))
    assert set(decide_relations([TABLE, tray, cup])) == {Fact(9, "on", 3), Fact(5, "on", 9)}


def test_a_description_reads_well():
    window = thing(9, "window", (0, 0.6, 1.5), (1.0, 0.1, 1.0))
    text = describe([TABLE, LAPTOP, CUP, window]).text
    assert text == (
        "A window <obj_9>. A table <obj_3> by the window <obj_9>. "
        "On the table <obj_3>: a laptop <obj_4> and a cup <obj_5>."
    )
    dense = describe([TABLE, CUP], "dense").text
    assert dense == "<p>A table</p>[<obj_3>]. On <p>the table</p>[<obj_3>]: <p>a cup</p>[<obj_5>]."
    with pytest.raises(ValueError, match="form"):
        describe([TABLE], "other")


def test_several_alike_are_named_together():
    chairs = [thing(i, "chair", (0.8 * i, 0, 0.45), (0.5, 0.5, 0.9)) for i in (1, 2, 3)]
    assert describe(chairs).text == "Three chairs <obj_1> <obj_2> <obj_3>."


@pytest.mark.parametrize("form", ["plain", "dense"])
def test_labels_with_tags_speak_of_no_other_object(form):
    """A label may come from a user or from another program's detector."""
    labels = ("chair <obj_7>", "x" * 10_240, "<p>desk</p>[<obj_9>]", "<>")
    said = describe([thing(i, label, (3.0 * i, 0.0, 0.4), (0.5, 0.5, 0.8)) for i, label in enumerate(labels, 1)], form)
    assert sorted(i for mention in read_mentions(said.text) for i in mention.ids) == [1, 2, 3, 4]
    assert len(said.text) < 1_000


def test_nothing_and_nameless_things():
    nothing = describe([])
    assert nothing.text == "There is nothing to describe."
    assert nothing.mentions == ()
    assert describe([thing(1, "object", (0, 0, 0), (1, 1, 1)), thing(2, "wall", (0, 0, 0), (1, 1, 1))]) == nothing
    broken = thing(3, "cup", (0, 0, 0), (1, 1, 1))
    broken.box[0] = np.nan
    assert describe([broken]) == nothing


@pytest.mark.parametrize("form", ["plain", "dense"])
def test_every_named_object_is_mentioned_and_what_is_read_is_what_was_said(form):
    room = living_room()
    description = describe(room, form)
    assert read_mentions(description.text) == description.mentions
    for mention in description.mentions:
        assert description.text[mention.start : mention.end].count("obj_") == len(mention.ids)
    assert {i for mention in description.mentions for i in mention.ids} == {o.id for o in room if o.label != "object"}


def test_mentions_of_others_texts():
    text = "There is <p>three-seat sofa</p>[<obj_0>] near <p>two chairs</p>[<obj_1>, <obj_12>] and <p>a ghost</p>[]."
    found = [(m.phrase, m.ids) for m in read_mentions(text)]
    assert found == [("three-seat sofa", (0,)), ("chairs", (1, 12)), ("ghost", ())]
    assert read_mentions("nothing is tagged here") == ()
    assert [m.ids for m in read_mentions("<p>a lamp</p>[obj_3]")] == [(3,)]


def test_a_saved_map_is_described_from_the_command_line(tmp_path):
    room = tmp_path / "room.safetensors"
    frames, shown = tour(8)
    lift = DetectionLift(
        lambda: KnowingDetector(shown), LiftSettings(schedule=SchedulerRules(max_rate_hz=50.0, burst=50))
    )
    perceptron = Perceptron(config(), lift=lift)
    for posed in frames:
        perceptron.integrate(posed)
    for _ in range(3):
        perceptron.perceive()
    perceptron.save(room)
    text = CliRunner().invoke(build_app([]), ["describe", str(room)])
    assert text.exit_code == 0, text.output
    named = {o.id for o in perceptron.objects if o.label != "object"}
    assert {i for mention in read_mentions(text.stdout) for i in mention.ids} == named
    said = json.loads(CliRunner().invoke(build_app([]), ["describe", str(room), "--json"]).stdout)
    cup = next(o["id"] for o in said["objects"] if o["label"] == "cup")
    table = next(o["id"] for o in said["objects"] if o["label"] == "table")
    assert {"subject": cup, "relation": "on", "anchor": table} in said["relations"]
    dense = CliRunner().invoke(build_app([]), ["describe", str(room), "--dense"]).stdout
    assert f"<p>a cup</p>[<obj_{cup}>]" in dense
    room.rename(tmp_path / "map.safetensors")  # as `replay --out` leaves it
    assert CliRunner().invoke(build_app([]), ["describe", str(tmp_path)]).stdout == text.stdout
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"nothing")
    assert CliRunner().invoke(build_app([]), ["describe", str(broken)]).exit_code != 0
