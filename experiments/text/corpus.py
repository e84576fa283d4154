"""
The texts and the tokenizer of this experiment, for prepare.py.

    python -m experiments.text.corpus DATA --out=out/text/corpus

DATA is a folder in SlimPajama's file format: train*.jsonl and test*.jsonl, also .gz or .zst. --out
gets tokenizer.json, a byte-level BPE trained on every eighth training document, and held_out.jsonl,
the documents that losses are measured on, and report.json, what the experiment's page says of them.
--report names the report that the results of this experiment were made with. If it is there and
says something else, nothing is written.

A held-out document is one of the test files that has `min_tokens` or more, so that a window of
5,120 tokens seldom crosses into another one. It is left out if it nearly repeats another text: if
more than `shared` of its runs of 13 words also occur in training documents, or in held-out ones
that were taken before it. (GPT-3's authors looked for runs of 13 words, too: arXiv 2005.14165,
app. C.)
"""
import hashlib
import json
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lib import runtime, text
from lib.config import configure
from lib.runtime import UserError
from prepare import INPUT, file_rows, text_of

RUN = 13  # words that must be the same, one after the other


@dataclass(frozen=True)
class CorpusConfig:
    files: tuple = ()  # one folder with train*.jsonl[.zst] and test*.jsonl[.zst]
    out: str = ""  # folder of tokenizer.json and held_out.jsonl
    report: str = ""  # .json of earlier results: other texts than theirs are refused; empty: any
    vocab: int = 4096  # tokens of the tokenizer
    min_tokens: int = 20_000  # tokens of the shortest held-out document
    shared: float = 0.05  # largest share of a held-out document's runs of words that others have

    def __post_init__(self):
        if len(self.files) != 1 or not self.out:
            raise ValueError("name the folder of the texts and --out: python -m "
                             "experiments.text.corpus DATA --out=out/text/corpus")
        if self.vocab < 257:
            raise ValueError(f"vocab={self.vocab} must be at least 257: all bytes and an end of "
                             "text")


def read_texts(folder, name):
    """The documents with text in the files NAME*.jsonl of a folder, in the order of the files."""
    paths = sorted(str(path) for path in Path(folder).glob(f"{name}*.jsonl*")
                   if INPUT.search(str(path)))
    if not paths:
        raise UserError(f"{folder} has no files {name}*.jsonl (also .gz, .zst); name the folder "
                        "that holds train*.jsonl and test*.jsonl")
    texts = []
    for path in paths:
        with runtime.explain(f"{path} is not SlimPajama's format, JSON lines with a field text"):
            texts += [document for row in file_rows(path)
                      if (document := text_of(row, "text")).strip()]
    return texts


def train_tokenizer(texts, vocab):
    """The text of a tokenizer.json: a byte-level BPE of `vocab` tokens; the last ends a text."""
    with runtime.explain("the tokenizer needs a package: pip install tokenizers", ImportError):
        import tokenizers
    end = text.END_OF_TEXT[0]
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    # the alphabet is all bytes, so that any text can be encoded
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab - 1, show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    bpe.train_from_iterator(texts, trainer)
    bpe.add_special_tokens([end])
    return bpe.to_str()


def word_runs(document):
    """A 64-bit hash of every run of 13 words of a text, case and punctuation aside, sorted."""
    letters = "".join(c if c.isalnum() else " " for c in document.lower())
    words = np.array([zlib.crc32(word.encode()) for word in letters.split()], dtype=np.uint64)
    n = max(0, len(words) - RUN + 1)
    hashes = np.zeros(n, dtype=np.uint64)
    for k in range(RUN):  # a polynomial of the words, modulo 2^64
        hashes = hashes * np.uint64(0x9E3779B97F4A7C15) + words[k:k + n]
    return np.sort(hashes)


def share_in(runs, seen):
    """Which share of the hashes `runs` are among the sorted hashes `seen`."""
    if not len(runs) or not len(seen):
        return 0.0
    places = np.searchsorted(seen, runs).clip(max=len(seen) - 1)
    return float((seen[places] == runs).mean())


def hold_out(cfg, train, test, vocab):
    """(held-out documents, what was counted) of the texts `test`."""
    long = []
    for document in test:
        n = len(text.encode(document, vocab))
        if n >= cfg.min_tokens:
            long.append((document, n))
    # np.sort and not np.unique or np.union1d, which take minutes for 16 M hashes
    trained_on = np.sort(np.concatenate([word_runs(document) for document in train]))
    taken = np.array([], dtype=np.uint64)
    kept, shares, dropped, n_tokens = [], [], [], 0
    for document, n in long:
        runs = word_runs(document)
        share = max(share_in(runs, trained_on), share_in(runs, taken))
        if share > cfg.shared:
            dropped.append({"begins": document[:40], "share": round(share, 4)})
            continue
        kept.append(document)
        shares.append(round(share, 4))
        taken = np.sort(np.concatenate((taken, runs)))
        n_tokens += n + 1  # a document's end of text counts as a token without bytes
    n_bytes = sum(len(document.encode()) for document in kept)
    return kept, {"test_documents": len(test), "too_short": len(test) - len(long),
                  "near_duplicates": dropped, "held_out": len(kept), "tokens": n_tokens,
                  "largest_share_kept": max(shares, default=0.0),
                  "bytes_per_token": round(n_bytes / max(1, n_tokens), 5)}


def main():
    cfg = configure(CorpusConfig)
    folder = Path(cfg.out)
    train, test = (read_texts(cfg.files[0], name) for name in ("train", "test"))
    vocab = train_tokenizer(train[::8], cfg.vocab)  # with all documents it takes minutes
    kept, report = hold_out(cfg, train, test, vocab)
    if not kept:
        raise UserError(f"{cfg.files[0]}: no test document has {cfg.min_tokens:,} tokens and is "
                        "new; take more texts, or a smaller --min_tokens")
    report |= {
        "train_documents": len(train), "vocab": text.vocab_size(vocab),
        "tokenizer_sha256": hashlib.sha256(vocab.encode()).hexdigest()[:16]}
    if cfg.report and Path(cfg.report).exists():
        with runtime.explain(f"{cfg.report} is not a report of this program; move it away"):
            old = json.loads(Path(cfg.report).read_text())
        if old != report:
            raise UserError(f"{cfg.report} is of other texts or of another tokenizer; keep the "
                            "results of these in other folders: set OUT and RESULTS")
    with runtime.atomic_write(folder / "tokenizer.json", "w") as f:
        f.write(vocab)
    runtime.write_lines(folder / "held_out.jsonl", [{"text": document} for document in kept])
    runtime.write_json(folder / "report.json", report)
    for key, value in report.items():
        print(f"{key}: {value}")


if __name__ == "__main__":
    runtime.launch(main)
