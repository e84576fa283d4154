"""
Token files of nanoGPT, llm.c, Megatron (its .bin) and datatrove (.ds): ids one after the other, in
uint16. The name of the split is in their names or in that of their folder. Their ids are GPT-2's;
with --vocab_size=N they are any ids.
"""
import hashlib
import re
from collections import Counter

import numpy as np

from lib import ranks
from lib.errors import MALFORMED, UserError, explain
from lib.shards import Shard
from lib.text import GPT2_EOT, GPT2_VOCAB, decode, encode

# {first two numbers of a header: type of the ids}: llm.c and modded-nanogpt have 256 int32 before
# the ids, of which the third is their number
LLM_C = {(20240520, 1): np.dtype("<u2"), (20240801, 7): np.dtype("<u4")}
# .bin files of prepare.py and of litdata
OTHERS = re.compile(r"\w+-\d{5}\.bin|chunk-.*\.bin")


def shard_of(path):
    """Return the Shard of a file. ValueError if it is damaged."""
    header = np.fromfile(path, "<i4", 3).tolist()
    if path.stat().st_size % 2:
        raise ValueError("its size is odd, so it ends in half of an id")
    shard = Shard(path, np.dtype("<u2"), path.stat().st_size // 2)
    if dtype := LLM_C.get(tuple(header[:2])):
        shard = Shard(path, dtype, header[2], offset=1024)
    if shard.n_ids < 1:
        raise ValueError(f"it says that it holds {shard.n_ids:,} ids")
    shard.open()  # an error if the file is cut off
    return shard


def foreign_files(folder, split):
    """Return the files of a split that other programs wrote."""
    paths = []

    def by_numbers(path):  # 9 comes before 10
        return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", str(path))]

    for path in sorted([*folder.glob("[!.]*"), *folder.glob("[!.]*/[!.]*")], key=by_numbers):
        words = "_".join(re.split(r"[\W_]+", f" {path.relative_to(folder)} "))
        is_read = path.suffix in (".bin", ".ds") and not OTHERS.fullmatch(path.name)
        # Megatron and datatrove may leave empty files
        if is_read and f"_{split}_" in words and path.stat().st_size:
            paths.append(path)
    return paths


def foreign_split(folder, paths, vocab_size):
    """Return (vocab, shards, data) of files that other programs wrote, and print what they are."""
    shards, has_text = [], vocab_size == GPT2_VOCAB
    for path in paths:
        with explain(f"{path} cannot be read; get a complete copy of it, or see docs/corpus.md",
                     (OSError, *MALFORMED)):
            shards.append(shard_of(path))
    first, last = shards[0].open()[:4000], shards[-1].open()[-4000:]
    # Forks of nanoGPT with larger vocabularies write 32 or 64 bits for each id, and no header.
    if first.dtype.itemsize == 2 and (vocab_size > 2**16
                                      or len(first) > 100 and not first[1::2].any()):
        raise UserError(f"{paths[0]} is read as ids of 16 bits, but it holds wider ones, or its "
                        f"vocabulary of {vocab_size:,} ids needs them: save it in another format "
                        "of docs/corpus.md, such as llm.c's")
    if has_text and not are_gpt2s(first.tolist()):
        raise UserError(f"{paths[0]} does not hold GPT-2's ids; if the file is right, give the "
                        "number of its ids, as --vocab_size=65 (they then have no text)")

    note = ""
    if has_text and GPT2_EOT not in first:
        note = f"; its first {len(first):,} ids have no end of text"
    ranks.print0(f"{folder}: files of another program, such as {paths[0].name} ({len(paths)} in "
                 f"all){note}")

    # The digest is of the numbers and two pieces: to hash all of it would take minutes.
    digest = hashlib.sha256(f"{[shard.n_ids for shard in shards]}".encode())
    digest.update(first.tobytes())
    digest.update(last.tobytes())
    source = {"files": [path.name for path in paths[:3]], "n_files": len(paths)}
    vocab = None if has_text else vocab_size
    return vocab, shards, {"digest": digest.hexdigest()[:16], "source": source}


def are_gpt2s(ids):
    """
    Return whether GPT-2's vocabulary gives these ids again for the text that they stand for.

    A word may be cut at the end. Ids of other vocabularies stand for nonsense: at most 96.5 % of
    them came again (tokenizers of 300 to 50,000 tokens, 280 pieces of English).
    """
    if not 0 <= min(ids) <= max(ids) < GPT2_VOCAB:
        return False
    again = Counter(encode(decode(ids), special=True))
    return (again & Counter(ids)).total() >= 0.98 * len(ids)
