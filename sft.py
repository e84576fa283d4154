"""
Fine-tune on SQuAD 2.0, to answer questions about a context (section 3.3, Appendix C of the paper).

    python sft.py --init_from=out/b_ssmax --out_dir=out/sft/b_ssmax
    python sft.py --init_from=out/b_ssmax --out_dir=out/sft/b_ssmax --data=train-v2.0.json
    python sft.py --init_from=out/a_softmax --attention_type=ssmax --out_dir=out/sft/e    (e)

The loop, log, checkpoints, ranks and resume are those of train.py.
"""
import zlib
from dataclasses import dataclass

import numpy as np

from lib import ranks, runtime, start
from lib.config import replaced
from lib.corpora.squad import encode_example, pad, read_examples
from lib.data import permutation
from lib.errors import UserError, launch
from lib.ranks import print0
from train import Decay, TrainConfig, fit


@dataclass(frozen=True)
class SFTConfig(TrainConfig):
    """
    Fine-tuning. The defaults are the paper's (Appendix C), with two differences: val_fraction of
    the articles are held out, and the loss is the mean over the answer tokens of a batch, where the
    paper has their sum. (AdamW hardly notices such a factor, but grad_clip clips less often.)
    """
    # data
    out_dir: str = "out/sft"  # checkpoints and log.jsonl go here
    data: str = ""  # train-v2.0.json of SQuAD; empty: load rajpurkar/squad_v2 from Hugging Face
    val_fraction: float = 0.02  # share of the articles, the last ones, that is not trained on
    # optimization
    batch_size: int = 128  # examples per update, over all ranks
    epochs: float = 10.0  # passes over the examples that fit a block
    warmup_epochs: float = 1.0  # epochs of linear warm-up
    max_iters: int = 0  # number of updates; 0: computed from epochs
    warmup_iters: int = 0  # updates of linear warm-up; 0: computed from warmup_epochs
    learning_rate: float = 2e-5  # learning rate after the warm-up
    decay: Decay = "cosine"  # shape of the decay to min_lr; none: constant
    beta2: float = 0.999  # AdamW: decay of the mean squared gradient
    weight_decay: float = 0.0  # the paper's fine-tuning has none
    # evaluation
    eval_interval: int = 500  # updates between validation losses, also at start and end; 0: never
    # log and checkpoints
    save_interval: int = 500  # updates between checkpoints; 0: only at the end
    # machine
    loss_chunk: int = 4096  # rows of logits computed at once, for answer tokens alone; 0: automatic
    compile: bool = False  # use torch.compile; slow here, since each length of a batch is compiled

    def __post_init__(self):
        super().__post_init__()
        if not self.init_from:
            raise ValueError("fine-tuning begins with a checkpoint: set --init_from=CHECKPOINT")
        if not self.epochs:
            raise ValueError("epochs=0 would train nothing: set it to 1, say, or set max_iters")
        if self.val_fraction >= 1:
            raise ValueError(f"val_fraction={self.val_fraction} must be below 1, as in "
                             "--val_fraction=0.02")

    EFFECTIVE_IF = TrainConfig.EFFECTIVE_IF | {
        "epochs": "max_iters == 0",
        "warmup_epochs": "warmup_iters == 0",
        "data_dir": None,
        "data_order": None,
        "doc_mask": None,
    }


def main():
    cfg, state, is_resumed = start.begin(SFTConfig)
    device = runtime.setup(cfg.device)
    examples, held_out, data = read_examples(cfg.data, cfg.val_fraction)
    if not examples and not held_out:
        raise UserError(f"{cfg.data or 'SQuAD'} has no question with an answer: take another file")
    if not examples or cfg.eval_interval and not held_out:
        raise UserError(f"--val_fraction={cfg.val_fraction:g} leaves no article for "
                        f"{'validation' if examples else 'training'}: take a file with more "
                        "articles, or --val_fraction=0 --eval_interval=0")
    vocab, block_size = state["vocab"], cfg.block_size
    rows = encode_examples(examples, block_size, vocab)
    val_rows = encode_examples(held_out, block_size, vocab)
    if not rows or cfg.eval_interval and not val_rows:
        question = "held-out question" if rows else "question"
        raise UserError(f"{cfg.data or 'SQuAD'}: no {question} fits a block of {block_size} tokens;"
                        " choose a checkpoint with a larger block_size")
    updates = len(rows) / cfg.batch_size  # per epoch; fit counts in updates
    # data_dir: not read here, but the evaluations take their text from it
    cfg = replaced(cfg, dtype=runtime.dtype_name(device, cfg.dtype),
                   data_dir=state["config"].get("data_dir", ""),
                   max_iters=cfg.max_iters or max(1, round(cfg.epochs * updates)),
                   warmup_iters=cfg.warmup_iters or round(cfg.warmup_epochs * updates))

    model, run, optimizer_states = start.model_of(cfg, state, is_resumed, data, device)
    del state  # the model has its weights
    print0(f"{run['variant']}: {len(rows):,} examples ({len(examples) - len(rows)} do not fit "
           f"{block_size} tokens, even with a cut context), {cfg.max_iters:,} updates of "
           f"{cfg.batch_size}, {min(cfg.warmup_iters, cfg.max_iters):,} of them warm-up")

    def get_batch(split, step):
        """Return this rank's part of a batch, as in train.py."""
        if split == "train":
            numbers = examples_of_batch(cfg, step, len(rows))
            batch = [rows[i] for i in numbers]
            chosen = f"{zlib.crc32(np.array(numbers, dtype=np.int64)):08x}"
        else:
            batch = val_rows[:cfg.eval_seqs]
            chosen = f"{len(batch)}-of-{len(val_rows)}"
        digest = f"{data['digest']}-{block_size}-{chosen}"
        # sorted before the ranks share them, so that all ranks have about the same work
        mine = sorted(batch, key=lambda row: len(row[0]))[ranks.RANK::ranks.WORLD_SIZE]
        x, y = pad(mine, vocab.end, block_size)
        return (x, y, None), digest

    fit(cfg, model, run, optimizer_states, get_batch)


def encode_examples(examples, block_size, vocab):
    """Return (ids, targets) of every example that fits a block, if need be with a cut context."""
    rows = [encode_example(example, block_size, vocab) for example in examples]
    return [row for row in rows if row is not None]


def examples_of_batch(cfg, step, n):
    """Return the numbers, below n, of the examples of update `step`. Each example comes once per
    epoch, in an order that depends on the seed and the epoch alone."""
    places = range(step * cfg.batch_size, (step + 1) * cfg.batch_size)
    epochs = {place // n for place in places}  # a batch may begin in one and end in the next
    # drawn again for each batch: a stored order would be state that a resume must restore
    orders = {epoch: permutation(cfg.seed, "sft", epoch, n) for epoch in epochs}
    return [orders[place // n][place % n] for place in places]


if __name__ == "__main__":
    launch(main)
