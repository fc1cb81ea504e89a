"""True 2-D detections of simulated homes: the visible pixels of each named object, beside the images."""

from __future__ import annotations

import json

import cv2
import numpy as np
import pytest

pytest.importorskip("embreex")

from embodied_perceptron.recordings.coco import decode_mask, image_stamps, read_coco
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron_training.homes.building.home import HomeSpec
from embodied_perceptron_training.homes.generate import HomeSampleSpec, load_record, write_sample
from embodied_perceptron_training.homes.recording import RecordingSpec, render_recording


@pytest.mark.parametrize("version", [1, 2])
def test_a_home_has_the_visible_pixels_of_its_objects(tmp_path, version):
    name = write_sample(3, tmp_path, HomeSampleSpec(2, 96, 72, HomeSpec(1, "kitchen", version=version)))
    record, coco = load_record(tmp_path, name), read_coco(tmp_path / name / "detections.json")
    assert [image.file_name for image in coco.images] == [image["img_path"] for image in record["images"]]
    of_object = {i["object_id"]: i["label"] for i in record["instances"]}
    entries = json.loads((tmp_path / name / "detections.json").read_text())["annotations"]
    assert len(entries) > 3
    for number, image in enumerate(coco.images):
        ids = cv2.imread(str(tmp_path / name / "ids" / f"{number:05d}.png"), cv2.IMREAD_UNCHANGED)
        own = [a for a in entries if a["image_id"] == number]
        for label, box, segmentation, entry in zip(image.labels, image.boxes, image.segmentations, own, strict=True):
            mask = decode_mask(segmentation, image.size)
            np.testing.assert_array_equal(mask, ids == entry["object_id"] + 1)
            rows, columns = np.nonzero(mask)
            assert box.tolist() == [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            assert of_object.get(entry["object_id"], label) == label
            assert label not in ("wall", "floor", "ceiling")


def test_a_drive_has_them_by_the_stamps_and_names_of_its_images(tmp_path):
    render_recording(RecordingSpec(5, 3, 64, 48), tmp_path / "drive")
    coco = read_coco(tmp_path / "drive" / "detections.json")
    stamps = image_stamps(open_recording(tmp_path / "drive"))
    assert {image.file_name: image.stamp_ns for image in coco.images} == stamps
    assert len(stamps) == 3
