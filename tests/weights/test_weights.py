"""Shipped weights: names, paths, what is wrong with them, and how they get into the package."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from embodied_perceptron import weights
from embodied_perceptron.weights import WeightsError, add_weights, available, shipped, weights_file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A package folder without weights."""
    path = tmp_path / "package"
    path.mkdir()
    (path / weights.MANIFEST).write_text("{}")
    return path


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    path = tmp_path / "best.safetensors"
    path.write_bytes(b"numbers" * 1000)
    return path


def test_added_weights_are_found_by_name(folder: Path, trained: Path, tmp_path: Path) -> None:
    card = tmp_path / "card.md"
    card.write_text("# tiny")
    add_weights("tiny", trained, "tiny", card, folder)
    assert available(folder) == ("tiny",)
    assert weights_file("tiny", folder) == folder / "tiny.safetensors"
    assert (folder / "tiny.safetensors").read_bytes() == trained.read_bytes()
    assert (folder / "tiny.md").read_text() == "# tiny"
    digest = hashlib.sha256(trained.read_bytes()).hexdigest()
    stored = json.loads((folder / weights.MANIFEST).read_text())
    assert stored == {
        "tiny": {"file": "tiny.safetensors", "sha256": digest, "preset": "tiny", "bytes": 7000, "card": "tiny.md"}
    }


def test_new_weights_replace_old_ones_and_keep_others_and_the_card(folder: Path, trained: Path, tmp_path: Path) -> None:
    card = tmp_path / "card.md"
    card.write_text("card")
    add_weights("tiny", trained, "tiny", card, folder)
    add_weights("base", trained, "base", None, folder)
    assert weights_file("tiny", folder).is_file()
    trained.write_bytes(b"better numbers")
    add_weights("tiny", trained, "tiny", folder=folder)
    assert available(folder) == ("base", "tiny")
    assert shipped(folder)["tiny"].bytes == 14
    assert shipped(folder)["tiny"].card == "tiny.md"
    assert shipped(folder)["base"].card == ""
    assert weights_file("tiny", folder).read_bytes() == b"better numbers"


def test_a_changed_file_is_refused(folder: Path, trained: Path) -> None:
    add_weights("tiny", trained, "tiny", folder=folder)
    data = bytearray(trained.read_bytes())
    data[100] ^= 1
    (folder / "tiny.safetensors").write_bytes(bytes(data))
    with pytest.raises(WeightsError, match="not the file that was shipped: SHA-256"):
        weights_file("tiny", folder)
    (folder / "tiny.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(WeightsError, match=r"shipped were 7,000 \(a Git LFS pointer\?\)"):
        weights_file("tiny", folder)
    (folder / "tiny.safetensors").unlink()
    with pytest.raises(WeightsError, match="'tiny' are missing"):
        weights_file("tiny", folder)


def test_content_is_read_once(folder: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_weights("tiny", trained, "tiny", folder=folder)
    read: list[Path] = []
    real = weights._sha256

    def counted(path: Path) -> str:
        read.append(path)
        return real(path)

    monkeypatch.setattr(weights, "_sha256", counted)
    for _ in range(3):
        weights_file("tiny", folder)
    assert len(read) == 1


def test_a_path_is_taken_as_it_is(folder: Path, trained: Path) -> None:
    assert weights_file(trained, folder) == trained
    assert weights_file(str(trained), folder) == trained


def test_what_does_not_exist_is_named_with_what_does(folder: Path, trained: Path, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"'huge': neither a file nor a shipped name .*none in this version"):
        weights_file("huge", folder)
    add_weights("tiny", trained, "tiny", folder=folder)
    with pytest.raises(WeightsError, match=r"'huge'.*\(shipped: tiny\)"):
        weights_file("huge", folder)
    with pytest.raises(WeightsError, match="is a folder"):
        weights_file(tmp_path, folder)


@pytest.mark.parametrize("name", ["", "Tiny", "../tiny", "tiny.safetensors", "a b"])
def test_names_stay_inside_of_the_package(folder: Path, trained: Path, name: str) -> None:
    with pytest.raises(WeightsError, match="name of weights"):
        add_weights(name, trained, "tiny", folder=folder)
    assert available(folder) == ()


def test_large_or_missing_files_do_not_get_in(
    folder: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(WeightsError, match="is not a file"):
        add_weights("tiny", tmp_path / "absent", "tiny", folder=folder)
    with pytest.raises(WeightsError, match="model card"):
        add_weights("tiny", trained, "tiny", tmp_path / "absent.md", folder)
    monkeypatch.setattr(weights, "MAX_BYTES", 6999)
    with pytest.raises(WeightsError, match="7,000 bytes"):
        add_weights("tiny", trained, "tiny", folder=folder)
    assert available(folder) == ()


@pytest.mark.parametrize("content", ["", "[]", '{"tiny": {"file": "x"}}', '{"tiny": 3}'])
def test_a_malformed_manifest_is_named(folder: Path, content: str) -> None:
    (folder / weights.MANIFEST).write_text(content)
    with pytest.raises(WeightsError, match=r"manifest\.json is not a manifest"):
        weights_file("tiny", folder)


def test_the_package_is_sound() -> None:
    """Every shipped file is there, unchanged and small, and reads as a network of its preset."""
    from embodied_perceptron.weights.checkpoint import load_checkpoint, without_folders

    for name, entry in shipped().items():
        path = weights_file(name)
        assert path.stat().st_size <= weights.MAX_BYTES
        checkpoint = load_checkpoint(path)
        assert checkpoint.config["name"] == entry.preset
        said = json.dumps(checkpoint.extra)
        assert without_folders(said) == said  # of the machine that trained it
        assert entry.card
        assert (weights.FOLDER / entry.card).is_file(), f"{name} has no model card"


def test_a_network_is_added_without_the_folders_it_was_trained_in(folder: Path, tmp_path: Path) -> None:
    from support.small_networks import small_config, small_network

    from embodied_perceptron.inference.loading import save_network
    from embodied_perceptron.weights.checkpoint import add_network, load_checkpoint, state_digest

    path = tmp_path / "best.safetensors"
    network = small_network(small_config("detection"))
    extra = {
        "command": "train --data /home/me/data/train --set images=/x/y.safetensors",
        "steps": [1, "/a/b c"],
        "n": 2,
    }
    save_network(path, network, ("a", "b", "c", "d"), extra)
    entry = add_network("small", path, folder=folder)
    assert entry.preset == "tiny"
    shipped_file, trained_file = load_checkpoint(weights_file("small", folder)), load_checkpoint(path)
    assert shipped_file.extra == {
        "command": "train --data train --set images=y.safetensors",
        "steps": [1, "b c"],
        "n": 2,
    }
    assert state_digest(shipped_file.state) == state_digest(trained_file.state)
    assert shipped_file.classes == trained_file.classes
    with pytest.raises(WeightsError, match="is not a file"):
        add_network("small", tmp_path / "absent", folder=folder)


def test_paths_are_cut_and_the_rest_stays() -> None:
    from embodied_perceptron.weights.checkpoint import without_folders

    assert without_folders("a/b c/d ./e 3/4 /one /two/three/ x=/y/z,/q") == "a/b c/d ./e 3/4 one three x=z,q"
    assert without_folders("https://example.org/a/b") == "https://example.org/a/b"
    assert without_folders("") == ""


def test_digest_tells_tensors_apart_and_not_their_order() -> None:
    import torch

    from embodied_perceptron.weights.checkpoint import state_digest

    a, b = torch.arange(6.0), torch.arange(6)
    assert state_digest({"a": a, "b": b}) == state_digest({"b": b.clone(), "a": a.clone()})
    others = [{"a": a, "c": b}, {"a": a.view(2, 3), "b": b}, {"a": a.half(), "b": b}, {"a": a + 1, "b": b}, {"a": a}]
    assert len({state_digest(s) for s in [{"a": a, "b": b}, *others]}) == 6
    assert state_digest({"x": torch.tensor(1)}) != state_digest({"x": torch.tensor(2)})


def test_a_shipped_card_is_that_of_the_file_beside_it() -> None:
    assert shipped()
    for name, entry in shipped().items():
        assert f"SHA-256 `{entry.sha256}`" in (weights.FOLDER / entry.card).read_text(), name
