#!/usr/bin/env bash
# BPE dropout: after one call in the parent process, all workers and all epochs split a text in the same way
# Versions: tokenizers 0.23.3, torch 2.13.0 (CPU; workers made by fork, which is Linux's default before Python 3.14).
# Guess: BPE dropout splits each text at random, in each worker and each epoch anew: 10 epochs of 8 equal rows, read by
#   4 workers with a dropout of .5, are split in about 80 ways, whether the tokenizer was used before or not.
# True: the random generator is made at the first call in a process, and a fork copies its state. If the tokenizer was
#   used before, to count tokens or to look at a row, all workers start with the same state and split their rows alike.
#   A DataLoader forks its workers anew in each epoch, so that each epoch is split as the first one. torch seeds each
#   worker, but its seeds do not reach this generator. persistent_workers=True mends the epochs, not the workers.
# Hurt: training with BPE dropout, whose purpose is to show each word in many ways: it shows one in all epochs.
# Output seen:
#   used in workers only, persistent_workers=False: 80 rows are split in 80 ways, row 0 in 10 ways in 10 epochs
#   used in workers only, persistent_workers=True: 80 rows are split in 80 ways, row 0 in 10 ways in 10 epochs
#   used before, persistent_workers=False: 80 rows are split in 2 ways, row 0 in 1 ways in 10 epochs
#   used before, persistent_workers=True: 80 rows are split in 20 ways, row 0 in 10 ways in 10 epochs
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 tokenizers==0.23.3

"$python" - <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch.utils.data import DataLoader
text = "the quick brown fox jumps over the lazy dog again and again"
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer.train_from_iterator([text] * 50, trainers.BpeTrainer(vocab_size=200, show_progress=False))
tokenizer.model.dropout = 0.5
class Rows:
    def __len__(self):
        return 8
    def __getitem__(self, row):
        return " ".join(tokenizer.encode(text).tokens)
def ways(persistent):  # ways to split the text in 10 epochs, and ways to split row 0
    loader = DataLoader(Rows(), batch_size=None, num_workers=4, multiprocessing_context="fork",
                        persistent_workers=persistent)
    epochs = [list(loader) for _ in range(10)]
    return len({row for epoch in epochs for row in epoch}), len({epoch[0] for epoch in epochs})
results = {}
for used in (False, True):
    if used:
        tokenizer.encode(text)
    for persistent in (False, True):
        results[used, persistent] = ways(persistent)
        rows, row_0 = results[used, persistent]
        print(f"used {'before' if used else 'in workers only'}, persistent_workers={persistent}: "
              f"80 rows are split in {rows} ways, row 0 in {row_0} ways in 10 epochs")
assert min(results[False, False][0], results[False, True][0]) > 70 and results[False, False][1] > 8
assert results[True, False] == (2, 1) and results[True, True][0] <= 20
PY
