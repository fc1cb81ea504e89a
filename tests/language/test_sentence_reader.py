"""The network that reads sentences: its shapes, its weights, and what the shipped ones read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from embodied_perceptron.language.lexicon import split_words
from embodied_perceptron.language.meaning import KINDS
from embodied_perceptron.language.query import READER_WEIGHTS, SentenceReader, new_network, read_meaning
from embodied_perceptron.nn.sentence_network import ARCS, SentenceNetwork

TEXTS = ("the red mug by the sink", "how many chairs")
MOST_BYTES = 12_000_000


def spans(text: str) -> list[tuple[int, int]]:
    return [(w.start, w.end) for w in split_words(text)]


def test_no_batch_without_weights() -> None:
    with pytest.raises(RuntimeError, match="load_minilm first"):
        SentenceNetwork(6, len(KINDS)).batch(["a"], [[]])


def test_other_weights_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    save_file({"weight": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match=r"other\.safetensors does not have the weights of a sentence network"):
        SentenceNetwork(6, len(KINDS)).load_trained(path)


def test_a_batch_is_read_like_its_sentences_and_merging_changes_nothing() -> None:
    torch.manual_seed(0)
    network = new_network().eval()
    for name, value in network.trained().items():
        if name.endswith(".up"):
            torch.nn.init.normal_(value, std=0.02)
    with torch.inference_mode():
        both = network(network.batch(TEXTS, [spans(t) for t in TEXTS]))
        assert both.parts.shape == (2, 6, 1 + 2 * len(KINDS))
        assert both.arcs["owner"].shape == (2, 6, 7)
        single = network(network.batch(TEXTS[1:], [spans(TEXTS[1])]))
        torch.testing.assert_close(both.parts[1, :3], single.parts[0], atol=1e-4, rtol=1e-4)
        for name in ARCS:
            torch.testing.assert_close(both.arcs[name][1, :3, :4], single.arcs[name][0], atol=1e-3, rtol=1e-3)
        merged = network.merge()(network.batch(TEXTS, [spans(t) for t in TEXTS]))
        torch.testing.assert_close(both.parts, merged.parts, atol=1e-4, rtol=1e-4)
    assert not any(name.endswith((".up", ".down")) for name in network.state_dict())


def test_what_ships_is_small() -> None:
    assert READER_WEIGHTS.stat().st_size < MOST_BYTES


@pytest.mark.parametrize(
    ("text", "noun", "relations"),
    [
        ("um could you, uh, bring me the red mug that's next to the sink please", "mug", {"colour", "near"}),
        ("the second chair from the left", "chair", {"from-left"}),
        ("There's a desk under the window. Take the lamp on it.", "lamp", {"on"}),
        ("my knees hurt, so would you fetch the small stool by the door", "stool", {"small", "near"}),
        ("how many books are there on the shelf", "book", {"on"}),
        ("put this cup on the table by the window", "table", {"near"}),
    ],
)
def test_sentences_of_many_kinds(text: str, noun: str, relations: set[str]) -> None:
    meaning = read_meaning(text)
    assert meaning is not None
    assert meaning.target is not None
    assert meaning.target.noun == noun
    assert {c.relation for c in meaning.constraints} == relations


def test_the_shipped_reader_reads_in_eight_bits_what_it_reads_in_thirty_two() -> None:
    network = new_network().load_trained(READER_WEIGHTS).merge()
    exact, quick = SentenceReader(network), SentenceReader.load()
    text = "could you bring me the small lamp on the desk closest to the window"
    words = split_words(text)
    one, other = exact.read(text, words)[0], quick.read(text, words)[0]
    assert (one.intent, one.entities, one.predicates) == (other.intent, other.entities, other.predicates)
