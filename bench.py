"""
Speed, measured side by side in one run: the two of a pair take turns, and the median ratio counts.

    python bench.py prepare corpus/*.jsonl.zst --num_proc=2

prepare: `prepare.py` end to end (decompression, JSON, encoding, writing, hashing) against tiktoken's encode_ordinary_batch alone, on
the same .jsonl files, already in memory, with as many threads as prepare.py has processes.
"""
import json
import statistics
import tempfile
import time
from dataclasses import dataclass

from configurator import configure
from data import gpt2_encoding
from prepare import Meter, PrepareConfig, prepare, read_files
from runtime import UserError, launch


@dataclass(frozen=True)
class BenchConfig:
    files: tuple = ()  # what to measure (prepare), then its input files
    num_proc: int = 1  # prepare: processes, and threads of tiktoken
    rounds: int = 5  # turns of each pair


def bench_prepare(cfg, files):
    texts = [json.loads(piece.payload)["text"] for piece in read_files(files, PrepareConfig(), Meter())]
    encoding, pairs = gpt2_encoding(), []
    for turn in range(cfg.rounds):
        began = time.perf_counter()
        tokens = sum(map(len, encoding.encode_ordinary_batch(texts, num_threads=cfg.num_proc)))
        raw = tokens / (time.perf_counter() - began)
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            prepare(PrepareConfig(files=tuple(files), name="bench", data_dir=folder, num_proc=cfg.num_proc))
            ours = tokens / (time.perf_counter() - began)
        pairs.append((raw, ours))
        print(f"round {turn + 1}: tiktoken alone {raw / 1e6:.2f} M tokens/s, prepare.py {ours / 1e6:.2f} M tokens/s, ratio {ours / raw:.2f}")
    print(f"{tokens:,} tokens, {cfg.num_proc} thread(s): median ratio {statistics.median(o / r for r, o in pairs):.2f}")


def main():
    cfg = configure(BenchConfig)
    if len(cfg.files) < 2 or cfg.files[0] != "prepare":
        raise UserError("say what to measure and on which files: python bench.py prepare corpus/*.jsonl.zst")
    bench_prepare(cfg, cfg.files[1:])


if __name__ == "__main__":
    launch(main)
