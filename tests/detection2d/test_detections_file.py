"""Files of detections in place of a detector: images are matched, bad entries are counted, other files refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.small_recording import write_recording
from typer.testing import CliRunner

from embodied_perceptron.apps import cli
from embodied_perceptron.detection2d.detections2d import Limits2d
from embodied_perceptron.detection2d.detections_file import DetectionsFile
from embodied_perceptron.detection2d.detectors import DetectorFileError, UnknownImageError
from embodied_perceptron.detection2d.layouts import LayoutError
from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.sensors.frame import RgbdFrame

RUN = CliRunner(env={"COLUMNS": "300", "TERM": "dumb", "NO_COLOR": "1"})
W, H = 64, 48
NAN = float("nan")


def frame(stamp_ns=1_000_000_000, camera="front"):
    color, depth_m = np.zeros((H, W, 3), np.uint8), np.ones((H, W), np.float32)
    return RgbdFrame(stamp_ns, camera, color, depth_m, Intrinsics(60, 60, 32, 24, W, H))


def annotation(bbox=(10, 10, 20, 20), score=0.9, category=1, image=0, **more):
    return {"image_id": image, "category_id": category, "bbox": list(bbox), "score": score, **more}


def saved(folder, annotations=(), **image):
    images = [{"id": 0, "file_name": "a.png", "width": W, "height": H, "timestamp": 1.0} | image]
    data = {"images": images, "annotations": list(annotations), "categories": [{"id": 1, "name": "Potted_Plant"}]}
    path = folder / "found.json"
    path.write_text(json.dumps(data))
    return path


def test_the_detections_of_the_image_come_back(tmp_path):
    detector = DetectionsFile(saved(tmp_path, [annotation()]))
    found, drops = detector.detect(frame(1_003_000_000))
    assert detector.vocabulary == {"potted plant"}
    assert found.labels == ("potted plant",)
    np.testing.assert_allclose(found.boxes_px, [[9.5, 9.5, 29.5, 29.5]])
    assert (found.stamp_ns, found.camera, found.masks, drops) == (1_003_000_000, "front", None, {})


def test_an_image_without_detections_is_not_an_unlisted_one(tmp_path):
    detector = DetectionsFile(saved(tmp_path))
    assert len(detector.detect(frame())[0]) == 0
    with pytest.raises(UnknownImageError, match=r"no image at 1\.050000000 s"):
        detector.detect(frame(1_050_000_000))


def test_an_image_of_another_camera_is_not_used(tmp_path):
    detector = DetectionsFile(saved(tmp_path, [annotation()], camera="front"))
    assert len(detector.detect(frame())[0]) == 1
    with pytest.raises(UnknownImageError):
        detector.detect(frame(camera="back"))


def test_images_are_found_by_name_where_the_recording_tells_it(tmp_path):
    path = saved(tmp_path, [annotation()], file_name="/data/color/000010.png", timestamp=None)
    detector = DetectionsFile(path, stamps={"color/000010.png": 5, "color/000020.png": 9})
    assert len(detector.detect(frame(5))[0]) == 1
    with pytest.raises(DetectorFileError, match="none of its 1 images has a timestamp"):
        DetectionsFile(path)


def test_a_file_of_another_recording_is_refused(tmp_path):
    path = saved(tmp_path, [annotation()])
    with pytest.raises(DetectorFileError, match=r"stamps 1\.000000000 to 1\.000000000 s.*another recording"):
        DetectionsFile(path, stamps={"b.png": 77_000_000_000})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"bbox": (NAN, 10, 20, 20)}, "not_finite"),
        ({"score": NAN}, "not_finite"),
        ({"bbox": (1e300, 10, 20, 20)}, "not_finite"),
        ({"score": 1.5}, "score_out_of_range"),
        ({"category": 7}, "no_label"),
        ({"bbox": (10, 10, 0, 20)}, "empty_box"),
        ({"bbox": (100, 100, 20, 20)}, "outside_of_image"),
        ({"segmentation": {"size": [H, W], "counts": [H * W]}}, "empty_mask"),
    ],
)
def test_bad_entries_are_counted_and_the_others_used(tmp_path, change, reason):
    detector = DetectionsFile(saved(tmp_path, [annotation(), annotation(**change)]))
    found, drops = detector.detect(frame())
    assert len(found) == 1
    assert drops == {reason: 1}


@pytest.mark.parametrize("masked", [False, True])
def test_very_many_boxes_are_limited(tmp_path, masked):
    more = {"segmentation": [[10, 10, 30, 10, 30, 30]]} if masked else {}
    boxes = [annotation(score=0.3 + 1e-5 * i, **more) for i in range(10_000)]
    found, drops = DetectionsFile(saved(tmp_path, boxes), Limits2d(max_count=20)).detect(frame())
    assert len(found) == 20
    assert found.scores.min() == pytest.approx(0.3 + 1e-5 * 9980)
    assert sum(drops.values()) == 9980


def test_boxes_stand_for_missing_masks(tmp_path):
    entries = [annotation(segmentation=[[10, 10, 30, 10, 30, 30]]), annotation(bbox=(40, 10, 10, 20), score=0.8)]
    found, _ = DetectionsFile(saved(tmp_path, entries)).detect(frame())
    assert found.masks is not None
    assert found.masks[1].sum() == 200
    assert 150 < found.masks[0].sum() < 250


@pytest.mark.parametrize(
    ("entry", "image", "said"),
    [
        ({}, {"width": 640, "height": 480}, r"\(640, 480\) pixels, the recording's image \(64, 48\)"),
        ({"segmentation": {"size": [3, 3], "counts": [9]}}, {}, "for an image of 64 x 48"),
    ],
)
def test_images_of_another_size_are_refused(tmp_path, entry, image, said):
    with pytest.raises(LayoutError, match=said):
        DetectionsFile(saved(tmp_path, [annotation(**entry)], **image)).detect(frame())


def replayed(tmp_path, path):
    source = write_recording(tmp_path / "room", count=3)
    arguments = ["replay", str(source), "--out", str(tmp_path / "out"), "--weights", "none", "--detections", str(path)]
    return RUN.invoke(cli.build_app(()), arguments)


def test_a_replay_uses_every_listed_image(tmp_path):
    source = write_recording(tmp_path / "room", count=3)
    stamps = [float(line.split()[0]) for line in (source / "rgb.txt").read_text().splitlines() if line[0] != "#"]
    camera = json.loads((source / "camera.json").read_text())
    images = [
        {"id": i, "file_name": f"{i}.png", "width": camera["width"], "height": camera["height"], "timestamp": t}
        for i, t in enumerate(stamps)
    ]
    path = tmp_path / "found.json"
    data = {"images": images, "annotations": [annotation()], "categories": [{"id": 1, "name": "chair"}]}
    path.write_text(json.dumps(data))
    arguments = ["replay", str(source), "--out", str(tmp_path / "out"), "--weights", "none", "--detections", str(path)]
    done = RUN.invoke(cli.build_app(()), arguments)
    assert done.exit_code == 0, done.output
    lift = json.loads((tmp_path / "out" / "timings.json").read_text())["lift"]
    assert lift["pictures"] >= 1
    assert "images_without_detections" not in lift["dropped"]


def test_a_replay_with_a_file_of_another_recording_says_so(tmp_path):
    done = replayed(tmp_path, saved(tmp_path, [annotation()], timestamp=5000.0))
    assert isinstance(done.exception, DetectorFileError), done.output
    assert "another recording" in str(done.exception)


def test_detections_and_a_detector_exclude_each_other(tmp_path):
    path = saved(tmp_path)
    arguments = ["replay", str(tmp_path), "--out", str(tmp_path / "out"), "--detections", str(path)]
    done = RUN.invoke(cli.build_app(()), [*arguments, "--detector", str(path), "--detector-layout", "yolox"])
    assert "in place of --detector" in str(done.exception)
