"""Output layouts: known boxes written into raw outputs come back, through the functions and through ONNX files."""

from __future__ import annotations

import numpy as np
import pytest
from support.onnx_files import write_constant_model

from embodied_perceptron.detection2d import layouts
from embodied_perceptron.detection2d.detectors import COCO_BY_ID, OnnxDetector, _value_of
from embodied_perceptron.detection2d.layouts import (
    LAYOUTS,
    LayoutError,
    PictureFit,
    RawDetections,
    free_input_size,
)
from embodied_perceptron.geometry.suppression import picture_nms
from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.sensors.frame import RgbdFrame

SIZE = (160, 96)  # of the network's input
CLASSES = 5
BOXES = np.array([[20.0, 10.0, 60.0, 70.0], [90.0, 30.0, 130.0, 62.0], [4.0, 4.0, 36.0, 28.0]])
SCORES = np.array([0.9, 0.7, 0.5])
NUMBERS = np.array([1, 4, 0])


def cells(strides):
    for stride in strides:
        for y in range(-(-SIZE[1] // stride)):
            for x in range(-(-SIZE[0] // stride)):
                yield x, y, stride


def nearest_cell(strides, center, offset, stride):
    """Number of the cell of one stride whose place is nearest to a point."""
    apart = [
        (np.hypot((x + offset) * s - center[0], (y + offset) * s - center[1]) if s == stride else np.inf)
        for x, y, s in cells(strides)
    ]
    return int(np.argmin(apart))


def nanodet_table(offset=0.5, bins=11, strides=(8, 16, 32)):
    """(cells, classes + 4 * bins) with the boxes at stride 8 or 16, one cell each; distances as two-bin mixtures."""
    places = list(cells(strides))
    table = np.zeros((len(places), CLASSES + 4 * bins), np.float32)
    for box, score, number in zip(BOXES, SCORES, NUMBERS, strict=True):
        center = (box[:2] + box[2:]) / 2
        row = nearest_cell(strides, center, offset, 8)
        x, y, s = places[row]
        point = (np.array([x, y]) + offset) * s
        distance = np.concatenate([point - box[:2], box[2:] - point]) / s
        assert (distance < bins - 1).all()
        table[row, number] = score
        for side, d in enumerate(distance):
            logits = np.full(bins, -40.0)
            low, share = int(d), d - int(d)
            logits[low], logits[low + 1] = np.log(max(1 - share, 1e-12)), np.log(max(share, 1e-12))
            table[row, CLASSES + side * bins : CLASSES + (side + 1) * bins] = logits
    return table


def nanodet_outputs():
    table, first, outputs = nanodet_table(), 0, {}
    for stride in (8, 16, 32):
        count = (SIZE[0] // stride) * (SIZE[1] // stride)
        part = table[None, first : first + count]
        outputs[f"reg{stride}"], outputs[f"cls{stride}"] = part[..., CLASSES:], part[..., :CLASSES]
        first += count
    return outputs


def centers_and_sizes():
    return np.concatenate([(BOXES[:, :2] + BOXES[:, 2:]) / 2, BOXES[:, 2:] - BOXES[:, :2]], axis=1)


def yolov8_outputs(masks=False):
    table = np.zeros((4 + CLASSES + (32 if masks else 0), len(list(cells((8, 16, 32))))), np.float32)
    for i, (box, score, number) in enumerate(zip(centers_and_sizes(), SCORES, NUMBERS, strict=True)):
        table[:4, 7 + i], table[4 + number, 7 + i] = box, score
        if masks:
            table[4 + CLASSES + i, 7 + i] = 1.0
    outputs = {"output0": table[None]}
    if masks:  # the first prototype is positive in the left half of its box, the others everywhere
        prototypes = np.ones((1, 32, SIZE[1] // 4, SIZE[0] // 4), np.float32)
        prototypes[0, 0, :, 10:] = -1.0
        outputs["output1"] = prototypes
    return outputs


def end_to_end_outputs(masks=False):
    table = np.zeros((10, 6 + (32 if masks else 0)), np.float32)
    table[:3, :4], table[:3, 4], table[:3, 5] = BOXES, SCORES, NUMBERS
    outputs = {"output0": table[None]}
    if masks:
        table[np.arange(3), 6 + np.arange(3)] = 1.0
        outputs["output1"] = yolov8_outputs(masks=True)["output1"]
    return outputs


def end_to_end_of_queries():
    """As Ultralytics exports RT-DETR since version 8.4."""
    outputs = end_to_end_outputs()
    outputs["output0"][0, :3, :4] = centers_and_sizes() / np.tile(SIZE, 2)
    return outputs


def tensorrt_outputs():
    empty = np.full((1, 7), 0.99, np.float32)  # rows after the count mean nothing
    outputs = {
        "num_dets": np.array([[3]], np.int64),
        "det_boxes": np.full((1, 10, 4), 9.0, np.float32),
        "det_scores": np.concatenate([SCORES[None].astype(np.float32), empty], axis=1),
        "det_classes": np.concatenate([NUMBERS[None], np.zeros((1, 7), np.int64)], axis=1),
    }
    outputs["det_boxes"][0, :3] = BOXES
    return outputs


def yolov5_outputs():
    table = np.zeros((3 * len(list(cells((8, 16, 32)))), 5 + CLASSES), np.float32)
    table[3:6, :4], table[3:6, 4] = centers_and_sizes(), 0.95
    table[np.arange(3, 6), 5 + NUMBERS] = SCORES / 0.95
    return {"output0": table[None]}


def renamed(outputs, **names):
    return {names[name]: value for name, value in outputs.items()}


def yolox_outputs(decoded=False):
    places = list(cells((8, 16, 32)))
    table = np.zeros((len(places), 5 + CLASSES), np.float32)
    if decoded:
        table[:, :2] = [((x + 0.5) * s, (y + 0.5) * s) for x, y, s in places]
        for box, score, number in zip(centers_and_sizes(), SCORES, NUMBERS, strict=True):
            row = nearest_cell((8, 16, 32), box[:2], 0.5, 16)
            table[row, :4], table[row, 4], table[row, 5 + number] = box, 0.95, score / 0.95
        return {"output": table[None]}
    for box, score, number in zip(centers_and_sizes(), SCORES, NUMBERS, strict=True):
        row = nearest_cell((8, 16, 32), box[:2], 0.5, 16)
        x, y, s = places[row]
        table[row, :2] = box[:2] / s - [x, y]
        table[row, 2:4] = np.log(box[2:] / s)
        table[row, 4], table[row, 5 + number] = 0.95, score / 0.95
    return {"output": table[None]}


def rtdetr_outputs(form):
    shares = centers_and_sizes() / np.tile(SIZE, 2)
    scores = np.zeros((4, CLASSES), np.float32)
    scores[np.arange(3), NUMBERS] = SCORES
    if form == "labels":
        boxes = np.concatenate([BOXES, np.zeros((1, 4))]).astype(np.float32)
        return {
            "labels": np.append(NUMBERS, 0)[None].astype(np.int64),
            "boxes": boxes[None],
            "scores": np.append(SCORES, 0.0)[None].astype(np.float32),
        }
    shares = np.concatenate([shares, np.full((1, 4), 0.5)])
    if form == "logits":
        clipped = np.clip(scores, 1e-4, 1 - 1e-4)
        return {
            "logits": np.log(clipped / (1 - clipped))[None].astype(np.float32),
            "pred_boxes": shares[None].astype(np.float32),
        }
    return {"output0": np.concatenate([shares, scores], axis=1)[None].astype(np.float32)}


CASES = {
    "nanodet": ("nanodet", nanodet_outputs),
    "nanodet in one": ("nanodet", lambda: {"output": nanodet_table()[None]}),
    "nanodet-plus": ("nanodet-plus", lambda: {"output": nanodet_table(offset=0.0)[None]}),
    "yolov8": ("yolov8", yolov8_outputs),
    "yolo11": ("yolo11", yolov8_outputs),
    "yolov8 with masks": ("yolov8", lambda: yolov8_outputs(masks=True)),
    "yolox": ("yolox", yolox_outputs),
    "rtdetr labels": ("rtdetr", lambda: rtdetr_outputs("labels")),
    "rtdetr logits": ("rtdetr", lambda: rtdetr_outputs("logits")),
    "rtdetr one": ("rtdetr", lambda: rtdetr_outputs("one")),
    "yolov8 turned": ("yolov8", lambda: {"output0": yolov8_outputs()["output0"].transpose(0, 2, 1).copy()}),
    "end to end": ("yolov8", lambda: end_to_end_outputs()),
    "end to end with masks": ("yolov8", lambda: end_to_end_outputs(masks=True)),
    "end to end of queries": ("rtdetr-end2end", lambda: end_to_end_of_queries()),
    "four of TensorRT": ("yolov8", lambda: tensorrt_outputs()),
    "yolov5": ("yolov5", lambda: yolov5_outputs()),
    "yolox decoded": ("yolox-decoded", lambda: yolox_outputs(decoded=True)),
    "rfdetr": ("rfdetr", lambda: renamed(rtdetr_outputs("logits"), logits="labels", pred_boxes="dets")),
    "torchvision": ("torchvision", lambda: {n: v[0] for n, v in rtdetr_outputs("labels").items()}),
    "nanodet-plus in one": ("nanodet-plus", lambda: {"output": nanodet_table(0.0, strides=(8, 16, 32, 64))[None]}),
}
BY_NUMBER = (
    "rtdetr labels",
    "end to end",
    "end to end with masks",
    "end to end of queries",
    "four of TensorRT",
    "torchvision",
)


@pytest.mark.parametrize("case", CASES)
def test_known_boxes_come_back(case):
    name, outputs = CASES[case]
    raw = LAYOUTS[name].decode(outputs(), SIZE, CLASSES, 0.3)
    order = np.argsort(-raw.scores)
    assert raw.classes[order].tolist() == NUMBERS.tolist()
    np.testing.assert_allclose(raw.scores[order], SCORES, atol=1e-3)
    np.testing.assert_allclose(raw.boxes[order], BOXES, atol=2e-3)


@pytest.mark.parametrize("case", CASES)
def test_low_scores_are_not_decoded(case):
    name, outputs = CASES[case]
    assert len(LAYOUTS[name].decode(outputs(), SIZE, CLASSES, 0.6).scores) == 2


ALIKE = (
    {"yolov8", "yolo11"},
    {"nanodet", "nanodet-plus"},
    {"yolox", "yolox-decoded"},
    {"rtdetr", "rtdetr-91", "deimv2"},
)
SAME_SHAPES = {
    *(("yolov8 turned", layout) for layout in ("rtdetr", "rtdetr-91")),  # any number of queries
    *(("end to end of queries", layout) for layout in ("yolov8", "yolo11")),
    ("end to end", "rtdetr-end2end"),
}
OTHERS = [
    (case, layout)
    for case, (name, _) in CASES.items()
    for layout in LAYOUTS
    if name != layout and not any({name, layout} <= group for group in ALIKE) and (case, layout) not in SAME_SHAPES
]


@pytest.mark.parametrize(("case", "layout"), OTHERS)
def test_outputs_of_another_layout_are_refused_with_their_shapes(case, layout):
    values = CASES[case][1]()
    with pytest.raises(LayoutError, match=layout) as refused:
        LAYOUTS[layout].decode(values, SIZE, CLASSES, 0.3)
    assert str(tuple(next(iter(values.values())).shape)) in str(refused.value)


@pytest.mark.parametrize("case", CASES)
def test_another_number_of_classes_is_refused(case):
    name, outputs = CASES[case]
    if case in BY_NUMBER:
        with pytest.raises(LayoutError, match="label 4 of 3 classes"):
            LAYOUTS[name].decode(outputs(), SIZE, 3, 0.3)
        return
    with pytest.raises(LayoutError, match=name):
        LAYOUTS[name].decode(outputs(), SIZE, 3, 0.3)


def test_scores_that_are_no_probabilities_are_refused():
    outputs = yolov8_outputs()
    outputs["output0"][0, 4:] *= 30
    with pytest.raises(LayoutError, match=r"lie in \[0, 27\]"):
        LAYOUTS["yolov8"].decode(outputs, SIZE, CLASSES, 0.3)


def test_a_nan_reaches_the_counting_and_is_not_hidden():
    outputs = yolov8_outputs()
    outputs["output0"][0, 4, 7] = np.nan
    raw = LAYOUTS["yolov8"].decode(outputs, SIZE, CLASSES, 0.3)
    assert np.isnan(raw.scores).sum() == 1
    assert np.isnan(raw.scores[picture_nms(raw.boxes, raw.scores, raw.classes, 0.5)]).sum() == 1


def slow_suppression(raw, iou):
    kept = []
    for i in np.argsort(-raw.scores, kind="stable"):
        a = raw.boxes[i]
        clash = False
        for j in kept:
            b = raw.boxes[j]
            w = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
            h = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
            union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - w * h
            clash |= raw.classes[i] == raw.classes[j] and w * h / union > iou
        if not clash:
            kept.append(int(i))
    return kept


@pytest.mark.parametrize("seed", range(4))
def test_suppression_is_as_its_slow_twin(seed):
    rng = np.random.default_rng(seed)
    low = rng.uniform(0, 60, (80, 2))
    raw = RawDetections(
        np.concatenate([low, low + rng.uniform(10, 50, (80, 2))], axis=1),
        rng.permutation(np.linspace(0.3, 0.99, 80)),
        rng.integers(0, 3, 80),
    )
    kept = picture_nms(raw.boxes, raw.scores, raw.classes, 0.45)
    assert sorted(kept.tolist()) == sorted(slow_suppression(raw, 0.45))


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("picture", [(64, 48), (97, 211), (640, 480)])
def test_a_bright_square_lies_where_the_fit_says(name, picture):
    image = np.zeros((picture[1], picture[0], 3), np.uint8)
    box = np.array([0.25 * picture[0], 0.4 * picture[1], 0.6 * picture[0], 0.8 * picture[1]]).round()
    left, top, right, bottom = box.astype(int)
    image[top:bottom, left:right] = 255
    tensor, fit = LAYOUTS[name].image.prepare(image, (160, 128))
    assert tensor.shape == (1, 3, 128, 160)
    assert tensor.dtype == np.float32
    black = LAYOUTS[name].image.prepare(np.zeros_like(image), (160, 128))[0]
    changed = np.abs(tensor - black).sum(axis=(0, 1)) > 0.5 * np.abs(tensor - black).sum(axis=(0, 1)).max()
    rows, columns = np.nonzero(changed)
    inside = np.array([[columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]], dtype=float)
    back = fit.to_picture(inside)[0] + 0.5
    np.testing.assert_allclose(back, box, atol=max(picture) / 100)


def test_fit_and_its_inverse():
    fit = PictureFit((0.5, 0.25), (3.0, 4.0), (100, 100), (64, 32))
    np.testing.assert_allclose(fit.to_picture(np.array([[3.0, 4.0, 53.0, 29.0]])), [[-0.5, -0.5, 99.5, 99.5]])


def test_free_inputs_are_multiples_of_32():
    assert free_input_size((640, 480), 416) == (416, 320)
    assert free_input_size((480, 640), 416) == (320, 416)
    assert free_input_size((10, 10), 64) == (64, 64)


# --------------------------------------------------------------------------------------------------------------------
# ONNX files


def frame(width=320, height=192):
    color = np.zeros((height, width, 3), np.uint8)
    return RgbdFrame(
        7, "front", color, np.ones((height, width), np.float32), Intrinsics(200, 200, 160, 96, width, height)
    )


NAMES = ("person", "cup", "chair", "bed", "tv")


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_an_onnx_file_of_each_family_finds_the_boxes_in_the_picture(case, told, tmp_path):
    if case == "nanodet-plus" and not told:
        pytest.skip("with three strides it looks like nanodet")
    pytest.importorskip("onnxruntime")
    name, outputs = CASES[case]
    path = write_constant_model(tmp_path / "net.onnx", outputs(), sizes_input=case == "rtdetr labels")
    detector = OnnxDetector(path, name if told else "", NAMES)
    assert detector.layout.name == (name if told or name != "yolo11" else "yolov8")
    found, drops = detector.detect(frame())
    assert found.labels == ("cup", "tv", "person")
    np.testing.assert_allclose(found.boxes_px, 2 * BOXES - 0.5, atol=0.01)  # the picture has twice the input's size
    assert not drops
    assert (found.camera, found.stamp_ns) == ("front", 7)
    if "masks" in case:
        assert found.masks is not None
        assert found.masks.shape == (3, 192, 320)
        columns = np.nonzero(found.masks[0])[1]  # its prototype ends at input column 40 = picture column 80
        assert columns.min() == 40
        assert 77 <= columns.max() <= 80
        assert found.masks[1].sum() == pytest.approx(80 * 64, rel=0.05)


def test_names_come_from_the_file_where_it_has_them(tmp_path):
    pytest.importorskip("onnxruntime")
    names = str(dict(enumerate(NAMES)))
    assert (
        OnnxDetector(write_constant_model(tmp_path / "a.onnx", yolov8_outputs(), names=names), "yolov8").classes
        == NAMES
    )
    with pytest.raises(ValueError, match="names"):
        OnnxDetector(write_constant_model(tmp_path / "b.onnx", yolov8_outputs(), names="{0: open('x')}"), "yolov8")
    with pytest.raises(ValueError, match="names"):
        OnnxDetector(write_constant_model(tmp_path / "c.onnx", yolov8_outputs(), names="{1: 'cup'}"), "yolov8")


def test_a_file_of_another_layout_says_so(tmp_path):
    pytest.importorskip("onnxruntime")
    path = write_constant_model(tmp_path / "net.onnx", yolov8_outputs())
    with pytest.raises(LayoutError, match=r"net\.onnx: layout yolox.*output0 \(1, 9, 315\)"):
        OnnxDetector(path, "yolox", NAMES).detect(frame())
    with pytest.raises(LayoutError, match="80 classes"):  # COCO's, where nobody names them
        OnnxDetector(path, "yolov8").detect(frame())


def test_what_is_no_detector_is_refused_at_the_start(tmp_path):
    pytest.importorskip("onnxruntime")
    with pytest.raises(ValueError, match="must be one of"):
        OnnxDetector(tmp_path / "net.onnx", "yolov99")
    with pytest.raises(FileNotFoundError, match=r"net\.onnx"):
        OnnxDetector(tmp_path / "net.onnx", "yolov8")
    path = write_constant_model(tmp_path / "flat.onnx", yolov8_outputs(), input_shape=[1, 3])
    with pytest.raises(ValueError, match=r"one input \(1, 3, H, W\)"):
        OnnxDetector(path, "yolov8")
    grey = write_constant_model(tmp_path / "grey.onnx", yolov8_outputs(), input_shape=[1, 1, 96, 160])
    with pytest.raises(ValueError, match=r"one input \(1, 3, H, W\)"):
        OnnxDetector(grey, "yolov8")
    with pytest.raises(ValueError, match="not available"):
        OnnxDetector(path, "yolov8", providers=("NoSuchProvider",))


def test_a_real_detector_sees_the_real_kitchen(data_dir, kitchen_dir):
    cv2 = pytest.importorskip("cv2")
    pytest.importorskip("onnxruntime")
    model = data_dir / "detector" / "nanodet.onnx"
    if not model.is_file():
        pytest.skip(f"{model} is absent")
    detector = OnnxDetector(model, "nanodet")
    image = cv2.imread(str(kitchen_dir / "color" / "000300.jpg"))[..., ::-1].copy()
    K = Intrinsics(585, 585, 320, 240, 640, 480)
    found, _ = detector.detect(RgbdFrame(1, "front", image, np.ones((480, 640), np.float32), K))
    best = {label: found.boxes_px[found.labels.index(label)] for label in set(found.labels)}
    assert {"cup", "chair", "dining table"} <= set(best)
    # read off by eye: the white cup stands at the left of the table
    np.testing.assert_allclose(best["cup"], [60, 200, 110, 250], atol=60)


def test_numbers_without_a_name_name_nothing(tmp_path):
    pytest.importorskip("onnxruntime")
    names = tuple("" if number == NUMBERS[0] else name for number, name in enumerate(NAMES))
    path = write_constant_model(tmp_path / "net.onnx", yolov8_outputs(), names=str(dict(enumerate(names))))
    detector = OnnxDetector(path, "yolov8")
    found, drops = detector.detect(frame())
    assert detector.vocabulary == set(NAMES) - {NAMES[NUMBERS[0]]}
    assert found.labels == tuple(NAMES[i] for i in NUMBERS[1:])
    assert drops == {"no_label": 1}


COCO_CASES = {  # 80 or 91 classes
    "yolov8": (80, {"output0": (1, 84, 315)}),
    "yolov5": (80, {"output0": (1, 945, 85)}),
    "yolox": (80, {"output": (1, 315, 85)}),
    "nanodet": (80, {"output": (1, 315, 124)}),
    "rtdetr": (80, {"logits": (1, 9, 80), "pred_boxes": (1, 9, 4)}),
    "rfdetr": (91, {"dets": (1, 9, 4), "labels": (1, 9, 91)}),
}


def zeros(shapes):
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("name", COCO_CASES)
def test_files_without_names_have_those_of_coco(name, tmp_path):
    pytest.importorskip("onnxruntime")
    count, shapes = COCO_CASES[name]
    detector = OnnxDetector(write_constant_model(tmp_path / "net.onnx", zeros(shapes)))
    assert detector.layout.name == name
    assert len(detector.classes) == count
    assert len(detector.vocabulary) == 80
    assert detector.classes[62 if count == 91 else 56] == "chair"


def test_inputs_of_free_size_are_recognised_by_a_run(tmp_path):
    pytest.importorskip("onnxruntime")
    shapes = {"output0": (1, 84, 8400)}
    path = write_constant_model(tmp_path / "net.onnx", zeros(shapes), input_shape=[1, 3, "height", "width"])
    assert OnnxDetector(path).layout.name == "yolov8"
    small = write_constant_model(
        tmp_path / "s.onnx", zeros({"o": (1, 84, 2100)}), input_shape=[1, 3, "h", "w"], imgsz="[320, 320]"
    )
    assert OnnxDetector(small).layout.name == "yolov8"


def test_coco_ids_have_gaps():
    assert COCO_BY_ID[1] == "person"
    assert COCO_BY_ID[62] == "chair"
    assert COCO_BY_ID[90] == "toothbrush"
    assert COCO_BY_ID.count("") == 11


def test_ids_of_coco_in_a_file_of_80_classes_are_no_silent_misreading(tmp_path):
    pytest.importorskip("onnxruntime")
    outputs = rtdetr_outputs("labels")
    outputs["labels"][0, :3] = (62, 84, 1)
    path = write_constant_model(tmp_path / "net.onnx", outputs, sizes_input=True)
    with pytest.raises(LayoutError, match=r"label 84 of 80 classes.*layout rtdetr-91"):
        OnnxDetector(path).detect(frame())
    assert OnnxDetector(path, "rtdetr-91").detect(frame())[0].labels == ("chair", "book", "person")


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ({"output0": (1, 84, 314)}, r"output0 \(1, 84, 314\).*fit no layout"),
        ({"output0": (1, 16, 315)}, r"fit yolov8 with 12 classes.*: give the names with lift\.classes"),
        ({f"o{i}": (1, 3, 20, 12 // i, 85) for i in (1, 2, 3)}, "fit no layout; known layouts"),
    ],
)
def test_what_fits_no_layout_is_named_at_the_start(shapes, said, tmp_path):
    pytest.importorskip("onnxruntime")
    path = write_constant_model(tmp_path / "net.onnx", zeros(shapes))
    with pytest.raises(LayoutError, match=said):
        OnnxDetector(path)


def test_two_readings_are_refused_with_the_option_that_decides(tmp_path):
    """Two classes end to end, and two classes of queries, are both (1, N, 6)."""
    pytest.importorskip("onnxruntime")
    path = write_constant_model(tmp_path / "net.onnx", end_to_end_outputs())
    with pytest.raises(LayoutError, match=r"yolov8 with 2 classes or rtdetr with 2 classes.*--detector-layout"):
        OnnxDetector(path, classes=("cup", "bed"))
    assert OnnxDetector(path, "yolov8", ("cup", "bed")).layout.name == "yolov8"
    described = write_constant_model(tmp_path / "d.onnx", end_to_end_outputs(), description="Ultralytics YOLO26n model")
    assert OnnxDetector(described, classes=("cup", "bed")).layout.name == "yolov8"
    path = write_constant_model(tmp_path / "r.onnx", end_to_end_of_queries(), description="Ultralytics rtdetr-l model")
    assert OnnxDetector(path, classes=("cup", "bed")).layout.name == "rtdetr-end2end"


def test_a_deimv2_with_a_large_backbone_gets_normalised_images(tmp_path):
    pytest.importorskip("onnxruntime")
    path = write_constant_model(tmp_path / "net.onnx", rtdetr_outputs("labels"), sizes_input=True)
    assert OnnxDetector(path).layout.name == "rtdetr"
    path = write_constant_model(tmp_path / "s.onnx", rtdetr_outputs("labels"), description="backbone.dinov3.blocks")
    assert OnnxDetector(path).layout.name == "deimv2"
    tensor, fit = LAYOUTS["deimv2"].image.prepare(np.full((50, 100, 3), 255, np.uint8), (64, 64))
    white = (1 - np.array([0.485, 0.456, 0.406])) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(tensor[0, :, 32, 32], white, 1e-5)
    assert fit.offset == (0, 16)


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("orig_target_sizes", "INT64", [160, 96]),
        ("orig_target_sizes", "INT32", [160, 96]),
        ("im_shape", "FLOAT", [96, 160]),
        ("scale_factor", "FLOAT", [1, 1]),
    ],
)
def test_further_inputs_get_what_their_names_and_types_ask(name, kind, value, tmp_path):
    pytest.importorskip("onnxruntime")
    path = write_constant_model(tmp_path / "net.onnx", rtdetr_outputs("labels"), extra=(name, kind))
    detector = OnnxDetector(path, classes=NAMES)
    assert detector.detect(frame())[0].labels == ("cup", "tv", "person")
    (other,) = detector._others
    np.testing.assert_array_equal(_value_of(other, SIZE), [value])


@pytest.mark.parametrize(("name", "said"), [("input_ids", "reads words"), ("mystery", "is not known")])
def test_unknown_inputs_are_refused_at_the_start(name, said, tmp_path):
    pytest.importorskip("onnxruntime")
    path = write_constant_model(tmp_path / "net.onnx", rtdetr_outputs("labels"), extra=(name, "INT64"))
    with pytest.raises(ValueError, match=f"the input {name} .*{said}"):
        OnnxDetector(path)


def test_networks_of_other_tasks_are_refused(tmp_path):
    pytest.importorskip("onnxruntime")
    path = write_constant_model(tmp_path / "net.onnx", yolov8_outputs(), task="pose")
    with pytest.raises(ValueError, match="task 'pose'"):
        OnnxDetector(path, "yolov8", NAMES)


def test_layouts_are_listed_by_their_own_name():
    assert all(name == layout.name for name, layout in LAYOUTS.items())
    assert {"nanodet", "yolov8", "yolo11", "yolox", "rtdetr"} <= set(layouts.LAYOUTS)
