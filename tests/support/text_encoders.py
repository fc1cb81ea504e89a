"""Text encoders for tests: MiniLM as packaged, and a small untrained RoBERTa."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import pytest
import torch

from embodied_perceptron.nn.text_encoder import TransformerTextEncoder, text_encoder


@pytest.fixture(scope="module")
def minilm() -> TransformerTextEncoder:
    return text_encoder("minilm", max_tokens=64)


@pytest.fixture(scope="session")
def roberta_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A RoBERTa of the real architecture and tokenizer kind, small and untrained."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaModel

    folder = tmp_path_factory.mktemp("roberta")
    bpe = ByteLevelBPETokenizer()
    markers = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    bpe.train_from_iterator(["the chair next to the table in front of the window"] * 3, 300, 1, special_tokens=markers)
    bpe.post_processor = importlib.import_module("tokenizers.processors").RobertaProcessing(("</s>", 2), ("<s>", 0))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    )
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=bpe.get_vocab_size(), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=66, pad_token_id=1, bos_token_id=0, eos_token_id=2,
    )  # fmt: skip
    RobertaModel(config).save_pretrained(folder)
    return folder
