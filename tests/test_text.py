"""Text -> tokens: no network, nothing lost, special tokens only where they are asked for."""
import numpy as np
import pytest
import requests
import tokenizers

from lib import text


def test_gpt2_vocabulary_comes_without_network(monkeypatch):
    text.gpt2_encoding.cache_clear()
    monkeypatch.setattr(requests, "get", lambda url: pytest.fail("asked the network"))
    assert text.gpt2_encoding().encode_ordinary("Hello world") == [15496, 995]


def test_a_long_text_is_encoded_in_pieces_without_a_trace():
    rng = np.random.default_rng(0)
    words = np.array(["a", "naïve", "don't", "12", "...", "x.", "\n", "  ", "東京", "\u3000"])
    sample = " ".join(words[rng.integers(len(words), size=500_000)])
    assert len(list(text.pieces(sample))) > 2
    assert text.encode(sample) == text.gpt2_encoding().encode_ordinary(sample)
    edge = "one " * 124_999 + "two\n\n\n\nend"  # a cut between the line ends changes the tokens
    assert text.encode(edge) == text.gpt2_encoding().encode_ordinary(edge)
    spaces = "table" + " " * 2_100_000 + "end"
    assert text.decode(text.encode(spaces)) == spaces


def test_a_special_token_is_text_unless_a_prompt_asks_for_it():
    assert text.encode("<|endoftext|>", special=True) == [text.GPT2_EOT]
    assert text.GPT2_EOT not in text.encode("<|endoftext|>")
    words = tokenizers.Tokenizer(tokenizers.models.BPE())
    words.add_special_tokens(["</s>"])
    words.add_tokens(["<", "/", "s", ">", "a"])
    vocab = words.to_str()
    assert text.encode("</s>", vocab) == [1, 2, 3, 4]
    assert text.encode("</s>", vocab, special=True) == [0]
    assert text.encode("</s>", vocab) == [1, 2, 3, 4]
