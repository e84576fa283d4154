"""
Fine-tune on SQuAD 2.0, to answer questions about a context (section 3.3, Appendix C of the paper).

    python prepare.py --squad --hf=rajpurkar/squad_v2 --name=squad --val_fraction=0.02
    python sft.py --init_from=out/b_ssmax --out_dir=out/sft/b_ssmax
    python sft.py --init_from=out/a_softmax --attention_type=ssmax --out_dir=out/sft/e    (e)

Loop, log, checkpoints, ranks, resume: train.py's. Ends with exact match and F1, held out.
"""
from dataclasses import dataclass
from pathlib import Path

import torch

from lib import evaluate, runtime
from lib.config import complete, configure
from lib.data import permutation
from lib.runtime import UserError, print0
from lib.squad import encode_example, exact_and_f1, pad, read_examples
from lib.text import decode, end_of_text, until_end
from train import Decay, TrainConfig, find_resumable, fit, from_checkpoint, resume


@dataclass(frozen=True)
class SFTConfig(TrainConfig):
    """Defaults: the paper's fine-tuning (Appendix C)."""
    # data
    out_dir: str = "out/sft"  # ckpt.pt, log.jsonl and squad.json go here
    data_dir: str = "data/squad"  # questions made by prepare.py --squad
    # optimization
    batch_size: int = 128  # examples an update, over all ranks
    epochs: float = 10.0  # passes over the examples
    warmup_epochs: float = 1.0  # of them warm-up
    max_iters: int = 0  # updates; 0: what `epochs` says
    warmup_iters: int = 0  # updates of warm-up; 0: what `warmup_epochs` says
    learning_rate: float = 2e-5  # after the warm-up
    decay: Decay = "cosine"  # to min_lr at the end
    beta2: float = 0.999  # AdamW
    weight_decay: float = 0.0  # the paper decays nothing here
    # evaluation
    eval_interval: int = 500  # updates between validation losses (and at both ends); 0: never
    n_generate: int = 500  # held-out questions to answer at the end; 0: none
    # log and checkpoints
    save_interval: int = 500  # updates between checkpoints
    # machine
    loss_chunk: int = 4096  # rows of logits at once; this way only answer tokens have logits
    compile: bool = False  # the lengths of batches differ, each would be compiled

    def __post_init__(self):
        super().__post_init__()
        if not self.init_from or not self.epochs:
            raise ValueError("give --init_from=CHECKPOINT to fine-tune, and more than 0 epochs")
        for key in ("loss_on", "data_order", "doc_mask"):
            if getattr(self, key) != getattr(TrainConfig, key):
                raise ValueError(f"{key} is train.py's: here the answers are trained; leave it out")

    def without_effect(self):
        reasons = super().without_effect()
        if self.max_iters:
            reasons["epochs"] = f"with max_iters={self.max_iters}"
        if self.warmup_iters:
            reasons["warmup_epochs"] = f"with warmup_iters={self.warmup_iters}"
        return reasons


def main():
    cfg = configure(SFTConfig)
    cfg.check_effects()
    device = runtime.setup(cfg.device)
    examples, digest = read_examples(cfg.data_dir, cfg.train_split)
    used = cfg.eval_interval or cfg.n_generate  # else its file may be missing
    held_out = read_examples(cfg.data_dir, cfg.val_split)[0] if used else []
    updates = len(examples) / cfg.batch_size  # per epoch; fit counts in updates
    cfg = complete(cfg, dtype=runtime.dtype_name(device, cfg.dtype),
                   max_iters=cfg.max_iters or max(1, round(cfg.epochs * updates)),
                   warmup_iters=cfg.warmup_iters or round(cfg.warmup_epochs * updates))

    data = {"digest": digest, "source": {"squad": cfg.train_split}}
    resumed = find_resumable(cfg, data)
    if resumed:
        model, about = resume(cfg, resumed, device)
    else:
        model, about = from_checkpoint(cfg, None, data, device)

    vocab, block_size = about["vocab"], model.config.block_size
    rows = encode_examples(examples, block_size, vocab)
    val_rows = encode_examples(held_out, block_size, vocab)
    if not rows or used and not val_rows:
        raise UserError(f"no question of {cfg.data_dir} fits a block of {block_size} tokens")
    misfits = f"({len(examples) - len(rows)} do not fit {block_size} tokens)"
    print0(f"{about['variant']}: {len(rows):,} examples {misfits}, {cfg.max_iters:,} updates of "
           f"{cfg.batch_size}, {cfg.warmup_iters:,} of them warm-up")

    path = Path(cfg.out_dir) / "squad.json"
    if not resumed and runtime.RANK == 0:
        path.unlink(missing_ok=True)  # of an earlier run
    fit(cfg, model, about, resumed, Batches(cfg, rows, val_rows, end_of_text(vocab)))
    if cfg.n_generate:
        scores = answer_questions(cfg, model.eval(), val_rows[:cfg.n_generate], vocab, device)
        exact, f1 = (sum(column) / len(scores) for column in zip(*scores, strict=True))
        runtime.write_json(path, {"questions": len(scores), "exact_match": exact, "f1": f1})
        print0(f"{len(scores)} held-out questions: exact match {100 * exact:.1f}, F1 "
               f"{100 * f1:.1f}")


def encode_examples(examples, block_size, vocab):
    """(ids, targets) of every example that fits a block. Once, as tokenizing is slow."""
    rows = (encode_example(example, block_size, vocab) for example in examples)
    return [row for row in rows if row is not None]


@dataclass
class Batches:
    """The micro-batches of every update and of the validation loss: what `fit` trains on."""
    cfg: SFTConfig
    rows: list
    val_rows: list
    end: int  # the id of the end of text, with which rows are padded

    def train(self, step, m):
        """Every example once an epoch, in an order that follows from the seed and the epoch."""
        size, n = self.cfg.batch_size, len(self.rows)
        places = range(step * size, (step + 1) * size)
        epochs = {place // n for place in places}  # a batch may cross from one to the next
        # drawn anew for each batch: an order kept would be state that a resume must restore
        order = {epoch: permutation(self.cfg.seed, "sft", epoch, n) for epoch in epochs}
        return self.micro_batches(
            [self.rows[order[place // n][place % n]] for place in places], m)

    def val(self, m):
        return self.micro_batches(self.val_rows[:self.cfg.eval_seqs], m)

    def micro_batches(self, rows, m):
        """As in train.py: this rank's ([(x, y, None), ...], answer tokens of the global batch)."""
        # sorted before they are shared, so that all ranks have about the same work
        mine = sorted(rows, key=lambda row: len(row[0]))[runtime.RANK::runtime.WORLD_SIZE]
        # of all ranks: a mean of the ranks' means would weigh their answers unequally
        answer_tokens = sum(int((targets >= 0).sum()) for _, targets in rows)
        padded = [pad(mine[i:i + m], self.end) for i in range(0, len(mine), m)]
        return [(x, y, None) for x, y in padded], answer_tokens


@torch.no_grad()
def answer_questions(cfg, model, rows, vocab, device):
    """Greedy answers to encoded examples, shared by the ranks -> [(exact match, F1)]."""
    jobs, all_scores = [], []
    for ids, targets in rows:
        length = int((targets >= 0).argmax()) + 1  # where the first answer token is due
        truth = decode(until_end(targets[length - 1:].tolist(), vocab), vocab)
        jobs.append((length, ids[:length].tolist(), truth))

    def measure(jobs):  # prompts of one length need no padding
        length, scores = jobs[0][0], []
        room = max(1, min(30, model.max_len - length))  # tokens, so that one without an end stops
        prompts = torch.tensor([ids for _, ids, _ in jobs], device=device)
        with runtime.autocast(device, cfg.dtype):
            new = model.generate(prompts, room, temperature=0)
        for ids, (_, _, truth) in zip(new[:, length:].tolist(), jobs, strict=True):
            # the answer is one line; what a model without its end adds does not count
            text = decode(until_end(ids, vocab), vocab).strip().split("\n")[0]
            scores.append(exact_and_f1(text, truth))
        return scores

    for _, scores in evaluate.work(device, "questions", sorted(jobs), measure,
                                   cfg.micro_batch_size):
        all_scores += scores
    return all_scores


if __name__ == "__main__":
    runtime.launch(main)
