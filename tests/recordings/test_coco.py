"""COCO files: boxes, names and masks come back; what is wrong in a file is named."""

from __future__ import annotations

import json

import numpy as np
import pytest

from embodied_perceptron.recordings.coco import NamedImages, decode_mask, encode_mask, read_coco, write_coco
from embodied_perceptron.recordings.recording import RecordingError


def as_text(counts):
    """Run lengths as the COCO API writes them, from its description: differences, five bits a character."""
    out = []
    for i, count in enumerate(counts):
        value, more = count - (counts[i - 2] if i > 2 else 0), True
        while more:
            bits, value = value & 31, value >> 5
            more = value != (-1 if bits & 16 else 0)
            out.append(chr(bits + (32 if more else 0) + 48))
    return "".join(out)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("text", [False, True])
def test_masks_come_back(seed, text):
    mask = np.random.default_rng(seed).random((23, 41)) < (0.5, 0.02, 1.1, 0.0)[seed]
    run_lengths = encode_mask(mask)
    if text:
        run_lengths["counts"] = as_text(run_lengths["counts"])
    np.testing.assert_array_equal(decode_mask(run_lengths, (41, 23)), mask)


def test_a_known_mask_has_the_run_lengths_of_the_format():
    mask = np.array([[0, 1, 1], [0, 0, 1]], bool)
    assert encode_mask(mask) == {"size": [2, 3], "counts": [2, 1, 1, 2]}
    assert encode_mask(~mask)["counts"] == [0, 2, 1, 1, 2], "zeros come first"


def test_polygons_are_filled():
    mask = decode_mask([[10, 5, 20, 5, 20, 15, 10, 15], [30, 0, 34, 0, 34, 4, 30, 4]], (40, 20))
    rows, columns = np.nonzero(mask[:, :25])
    assert (rows.min(), rows.max()) == pytest.approx((5, 14), abs=1)
    assert (columns.min(), columns.max()) == pytest.approx((10, 19), abs=1)
    assert mask[:, 25:].sum() == pytest.approx(20, abs=5)  # borders are inside


@pytest.mark.parametrize(
    ("segmentation", "said"),
    [
        ({"size": [4, 4], "counts": [3, 4]}, "with 7 pixels"),
        ({"size": [2, 8], "counts": [16]}, "for an image of 4 x 4"),
        ({"size": [4, 4], "counts": "é"}, "cannot hold the character"),
        ({"size": [4, 4], "counts": [-1, 17]}, "list of polygons, or"),
        ("x", "list of polygons, or"),
        ([[0.0, 0.0, float("nan"), 1.0]], "not finite"),
    ],
)
def test_wrong_masks_are_named(segmentation, said):
    with pytest.raises(ValueError, match=said):
        decode_mask(segmentation, (4, 4))


def content(**changes):
    annotation = {"id": 5, "image_id": 3, "category_id": 62, "bbox": [1, 2, 3, 4], "score": 0.5}
    return {
        "images": [{"id": 3, "file_name": "a.png", "width": 8, "height": 8, "timestamp": 1.5}],
        "annotations": [annotation],
        "categories": [{"id": 62, "name": "chair"}],
    } | changes


def saved(folder, data):
    path = folder / "found.json"
    path.write_text(json.dumps(data))
    return path


def test_an_image_has_its_detections(tmp_path):
    (image,) = read_coco(saved(tmp_path, content())).images
    assert (image.stamp_ns, image.size, image.labels) == (1_500_000_000, (8, 8), ("chair",))
    np.testing.assert_allclose(image.boxes, [[1, 2, 4, 6]])


@pytest.mark.parametrize(
    ("image", "stamp_ns"),
    [
        ({"file_name": "rgb/1305031102.175304.png"}, 1_305_031_102_175_304_000),
        ({"file_name": "a.png", "timestamp": "0.25"}, 250_000_000),
        ({"file_name": "color/000010.jpg"}, None),
        ({"file_name": "a.b.png"}, None),
        ({}, None),
    ],
)
def test_stamps_are_exact_and_not_guessed(tmp_path, image, stamp_ns):
    data = content(images=[{"id": 3, **image}])
    assert read_coco(saved(tmp_path, data)).images[0].stamp_ns == stamp_ns


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"annotations": [{"image_id": 9, "category_id": 62, "bbox": [0, 0, 1, 1]}]},
            r"annotations\[0\] is of image 9",
        ),
        ({"annotations": [{"image_id": 3, "category_id": 62, "bbox": [0, 1]}]}, r"annotations\[0\]\.bbox must be 4"),
        ({"annotations": [{"image_id": 3, "category_id": 62, "bbox": [0, 1, 2, "3"]}]}, "bbox must be 4"),
        ({"annotations": [{"image_id": 3, "bbox": [0, 0, 1, 1]}]}, "category_id"),
        ({"categories": None}, "class numbers have no names"),
        ({"images": None}, "no COCO file"),
        ({"images": [{"id": 3, "timestamp": "soon"}]}, "soon"),
        ({"images": [{"id": 3, "width": -1, "height": 2}]}, "a side"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path, change, said):
    path = saved(tmp_path, content(**change))
    with pytest.raises(RecordingError, match=said) as caught:
        read_coco(path)
    assert str(path) in str(caught.value)


def test_a_list_of_results_is_refused(tmp_path):
    with pytest.raises(RecordingError, match="a list of results alone"):
        read_coco(saved(tmp_path, content()["annotations"]))


def test_written_files_are_read(tmp_path):
    mask = encode_mask(np.eye(8, dtype=bool))
    annotations = [{"name": "cup", "bbox": [1.0, 2.0, 3.0, 4.0], "score": 0.5, "segmentation": mask}]
    image = {"file_name": "a.png", "width": 8, "height": 8, "timestamp": 2.0, "annotations": annotations}
    assert write_coco(tmp_path / "out.json", [image, {**image, "timestamp": 3.0, "annotations": []}]) == 1
    coco = read_coco(tmp_path / "out.json")
    assert coco.names == ("cup",)
    assert [len(i.labels) for i in coco.images] == [1, 0]
    assert decode_mask(coco.images[0].segmentations[0], (8, 8)).sum() == 8


def test_names_of_images_are_found_by_the_longest_ending():
    named = NamedImages({"left/rgb/1.png": 1, "right/rgb/1.png": 2, "right/rgb/2.png": 3})
    assert named.stamp_ns("/home/me/left/rgb/1.png") == 1
    assert named.stamp_ns("right\\rgb\\1.png") == 2
    assert named.stamp_ns("2.png") == 3
    assert named.stamp_ns("1.png") is None, "two images have this name"
    assert named.stamp_ns("3.png") is None
