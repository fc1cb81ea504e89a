"""Detectors told in words and encoders of regions: small untrained models of the same architectures, saved and read."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from support.lift_world import no_detections

from embodied_perceptron.config import LiftOptions
from embodied_perceptron.detection2d.detections2d import Limits2d
from embodied_perceptron.detection2d.loading import lift_from_options
from embodied_perceptron.detection2d.open_vocabulary import (
    OpenVocabularyLabels,
    RegionEncoder,
    ZeroShotDetector,
    _nearest_word,
    mean_embedding,
)
from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.results import SceneObject
from embodied_perceptron.sensors.frame import RgbdFrame

transformers = pytest.importorskip("transformers")

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def clip_tokenizer(folder):
    """Letters alone: enough to tell words apart."""
    tokens = [*LETTERS, *(c + "</w>" for c in LETTERS), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return transformers.CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=16)


SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
TEXT = {
    **SMALL,
    "vocab_size": 54,
    "max_position_embeddings": 16,
    "bos_token_id": 52,
    "eos_token_id": 53,
    "pad_token_id": 53,
}
VISION = {**SMALL, "image_size": 64, "patch_size": 16}


@pytest.fixture(scope="module")
def owl(tmp_path_factory):
    folder = tmp_path_factory.mktemp("owlvit")
    torch.manual_seed(0)
    config = transformers.OwlViTConfig(text_config=TEXT, vision_config=VISION, projection_dim=16)
    transformers.OwlViTForObjectDetection(config).save_pretrained(folder)
    from transformers.models.owlvit.image_processing_pil_owlvit import OwlViTImageProcessorPil

    processor = transformers.OwlViTProcessor(
        image_processor=OwlViTImageProcessorPil(size={"height": 64, "width": 64}), tokenizer=clip_tokenizer(folder)
    )
    processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def dino(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dino")
    torch.manual_seed(2)
    backbone = transformers.SwinConfig(
        image_size=64, patch_size=4, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 1, 1], window_size=4,
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", ".", "?", "cup", "table", "coffee", "chair"]
    (folder / "vocab.txt").write_text("\n".join(tokens))
    text = transformers.BertConfig(**SMALL, vocab_size=len(tokens), max_position_embeddings=64)
    config = transformers.GroundingDinoConfig(
        backbone_config=backbone, text_config=text, d_model=64, encoder_layers=1, decoder_layers=2,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, num_queries=12,
        max_text_len=64,
    )  # fmt: skip
    transformers.GroundingDinoForObjectDetection(config).save_pretrained(folder)
    from transformers.models.grounding_dino.image_processing_pil_grounding_dino import GroundingDinoImageProcessorPil

    processor = transformers.GroundingDinoProcessor(
        image_processor=GroundingDinoImageProcessorPil(size={"shortest_edge": 64, "longest_edge": 96}),
        tokenizer=transformers.BertTokenizer(str(folder / "vocab.txt")),
    )
    processor.save_pretrained(folder)
    return folder


def test_a_small_grounding_dino_answers_with_the_words_it_was_told(dino):
    limits = Limits2d(min_score=0.05, min_side_px=0.1, max_count=1000)
    detector = ZeroShotDetector(str(dino), ["cup", "coffee table", "chair"], limits)
    found, drops = detector.detect(frame())
    assert 0 < len(found) + sum(drops.values()) <= 12  # queries
    assert len(found) > 0
    assert set(found.labels) <= {"cup", "coffee table", "chair"}


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clip")
    torch.manual_seed(1)
    config = transformers.CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=12)
    transformers.CLIPModel(config).save_pretrained(folder)
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    size = {"height": 64, "width": 64}
    processor = transformers.CLIPProcessor(
        image_processor=CLIPImageProcessorPil(size=size, crop_size=size), tokenizer=clip_tokenizer(folder)
    )
    processor.save_pretrained(folder)
    return folder


def frame(seed=0, width=96, height=64):
    color = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return RgbdFrame(3, "front", color, np.ones((height, width), np.float32), Intrinsics(80, 80, 48, 32, width, height))


EVERYTHING = Limits2d(min_score=0.0, min_side_px=0.1, max_count=1000)


def test_a_small_owl_answers_with_the_words_it_was_told(owl):
    detector = ZeroShotDetector(str(owl), ["cup", "Coffee_Table", "cup", " "], EVERYTHING)
    assert detector.vocabulary == {"cup", "coffee table"}
    found, drops = detector.detect(frame())
    # 4 x 4 patches, each a box with its best word
    assert len(found) + sum(drops.values()) == 16
    assert set(found.labels) <= {"cup", "coffee table"}
    assert (found.camera, found.stamp_ns) == ("front", 3)


def test_boxes_are_those_of_the_model_in_the_pictures_pixels(owl):
    detector = ZeroShotDetector(str(owl), ["cup"], EVERYTHING)
    found, _ = detector.detect(frame())
    inputs = detector._processor(text=[["cup"]], images=[frame().color], return_tensors="pt")
    with torch.inference_mode():
        outputs = detector._model(**inputs)
    cx, cy, w, h = outputs.pred_boxes[0].double().numpy().T
    corners = np.stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], axis=1) * [96, 64, 96, 64] - 0.5
    corners = np.clip(corners, -0.5, [95.5, 63.5, 95.5, 63.5])
    scores = torch.sigmoid(outputs.logits[0, :, 0]).double().numpy()
    for box, score in zip(found.boxes_px, found.scores, strict=True):
        nearest = int(np.argmin(np.abs(corners - box).sum(axis=1)))
        np.testing.assert_allclose(corners[nearest], box, atol=1e-3)
        assert scores[nearest] == pytest.approx(score, abs=1e-5)


def test_many_words_are_asked_in_parts_and_each_may_answer(owl):
    words = [a + b for a in "abcdef" for b in "ghijkl"]  # 36: two parts
    found, drops = ZeroShotDetector(str(owl), words, EVERYTHING).detect(frame())
    assert len(found) + sum(drops.values()) == 32
    assert set(found.labels) <= set(words)


def test_words_can_be_changed(owl):
    detector = ZeroShotDetector(str(owl), ["cup"], EVERYTHING)
    detector.look_for(["teapot"])
    assert detector.vocabulary == {"teapot"}
    assert set(detector.detect(frame())[0].labels) == {"teapot"}
    detector.look_for(str(i) + "x" for i in range(1000))
    assert len(detector.vocabulary) == 400


def test_no_words_and_no_model_are_errors(owl, clip, tmp_path):
    with pytest.raises(ValueError, match="needs words"):
        ZeroShotDetector(str(owl), [" "])
    with pytest.raises(OSError, match="nothing"):
        ZeroShotDetector(str(tmp_path / "nothing"), ["cup"])
    with pytest.raises(ValueError, match="CLIPConfig"):
        ZeroShotDetector(str(clip), ["cup"])


@pytest.mark.parametrize(
    ("said", "words", "meant"),
    [
        ("cup", ("cup", "table"), "cup"),
        ("coffee", ("coffee table", "cup"), "coffee table"),
        ("a cup", ("cup", "table"), "cup"),
        ("", ("cup",), ""),
        ("zebra", ("cup",), ""),
    ],
)
def test_phrases_become_words(said, words, meant):
    assert _nearest_word(said, words) == meant


def test_the_configuration_builds_both(owl, clip):
    options = LiftOptions(detector=str(owl), layout="transformers", classes=("cup", "table"), embeddings=str(clip))
    lift = lift_from_options(options)
    assert lift is not None
    assert lift.vocabulary == {"cup", "table"}
    assert lift.encoder is not None
    lift.asked_for(["kettle"])
    assert lift.vocabulary == {"cup", "table", "kettle"}


# --------------------------------------------------------------------------------------------------------------------
# embeddings


def test_regions_and_words_lie_on_one_sphere(clip):
    encoder = RegionEncoder(str(clip))
    boxes = np.array([[0.0, 0.0, 30.0, 30.0], [40.0, 10.0, 90.0, 60.0], [94.0, 62.0, 95.5, 63.5]])
    regions, words = encoder.regions(frame().color, boxes), encoder.texts(["cup", "a table"])
    assert regions.shape == (3, 12)
    assert words.shape == (2, 12)
    np.testing.assert_allclose(np.linalg.norm(np.concatenate([regions, words]), axis=1), 1.0, atol=1e-5)
    one = encoder.regions(frame().color, boxes[1:2])  # alone as among others
    np.testing.assert_allclose(one[0], regions[1], atol=1e-5)
    assert encoder.regions(frame().color, np.zeros((0, 4))).shape == (0, 0)


def test_what_is_no_encoder_is_refused(tmp_path):
    config = transformers.BertConfig(**SMALL, vocab_size=20)
    transformers.BertModel(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="bert: not an image-text encoder"):
        RegionEncoder(str(tmp_path))


def test_detections_get_embeddings_and_pictures_without_any_stay(clip, owl):
    encoder = RegionEncoder(str(clip))
    found, _ = ZeroShotDetector(str(owl), ["cup"], EVERYTHING).detect(frame())
    embedded = encoder.with_embeddings(found, frame())
    assert embedded.embeddings is not None
    assert embedded.embeddings.shape == (len(found), 12)
    nothing = no_detections("front", 3)
    assert encoder.with_embeddings(nothing, frame()) is nothing


def test_mean_of_embeddings_by_hand():
    a, b = np.array([1, 0], np.float32), np.array([0, 1], np.float32)
    mean = mean_embedding(np.stack([a, b]), np.array([3.0, 4.0]))
    np.testing.assert_allclose(mean, [0.6, 0.8], atol=1e-6)
    assert mean_embedding(np.zeros((2, 2), np.float32), np.ones(2)) is None


def thing(number, x):
    return SceneObject(number, "cup", 0.9, np.array([x, 0, 0, 0.2, 0.2, 0.2, 0, 0, 0]))


def test_objects_keep_a_running_mean():
    a, b = np.array([1, 0], np.float32), np.array([0, 1], np.float32)
    memory = OpenVocabularyLabels(None)
    boxes = np.stack([thing(1, 0.0).box, thing(2, 3.0).box])
    memory.update([thing(1, 0.02), thing(2, 3.0), thing(3, 9.0)], boxes, [a, b])
    assert memory.similarities(a) == pytest.approx({1: 1.0, 2: 0.0})
    memory.update([thing(1, 0.0), thing(2, 3.0)], boxes, [b, None])
    assert memory.similarities(a)[1] == pytest.approx(np.sqrt(0.5), abs=1e-6)
    assert memory.similarities(b)[2] == pytest.approx(1.0)
    memory.update([thing(2, 3.0)], np.zeros((0, 9)), [])
    assert len(memory) == 1  # the first is gone from the map
    memory.clear()
    assert memory.similarities(a) == {}
