"""Text -> tokens: no network, nothing lost, special tokens only where they are asked for."""
import random

import pytest
import requests
import tokenizers

from lib import text


def test_gpt2_vocabulary_comes_without_network(monkeypatch):
    text.gpt2_encoding.cache_clear()
    monkeypatch.setattr(requests, "get", lambda url: pytest.fail("asked the network"))
    assert text.gpt2_encoding().encode_ordinary("Hello world") == [15496, 995]


# what GPT-2's pre-tokenizer treats differently, and Python's or Rust's whitespace alone
NASTY = ["a", "naïve", "don't", "'", "'ll", "12", "½", "...", "\n", "\n\n", " ", "  ", "\t", "\r",
         "東京", "\u3000", "\u00a0", "\u0085", "\u2028", "\x1c", "\x1f", "\u200b", "\u180e", "🙂",
         "👍🏽", "e\u0301", "\u0600", "<|endoftext|>", "'s", "\ufeff", "_", "\x0b"]


def test_pieces_have_the_ids_of_the_whole_text(monkeypatch):
    monkeypatch.setattr(text, "PIECE", 80)
    rng = random.Random(0)
    for _ in range(1000):
        # "x y" gives each piece a place where it can be cut
        sample = "".join("x y" + "".join(rng.choices(NASTY, k=4)) for _ in range(20))
        assert max(map(len, text.pieces(sample))) <= 80
        assert text.encode(sample) == text.gpt2_encoding().encode_ordinary(sample)


def test_a_million_spaces_are_encoded():
    spaces = "table\n" + " " * 1_100_000 + "end"
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


@pytest.mark.parametrize("template, first", [("<s> $A", 0), ("<s> $A </s>", 0), ("$A </s>", 9)])
def test_a_prompt_begins_with_what_the_template_puts_in_front_and_not_behind(template, first):
    words = tokenizers.Tokenizer(tokenizers.models.BPE())
    words.add_special_tokens(["<s>", "</s>"])
    words.add_tokens(["a"])
    words.post_processor = tokenizers.processors.TemplateProcessing(
        template, None, [("<s>", 0), ("</s>", 1)])
    assert text.token_in_front(words.to_str(), default=9) == first
    assert text.token_in_front(None) is None
