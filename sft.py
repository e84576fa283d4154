"""
Fine-tune on SQuAD 2.0 (section 3.3 and Appendix C of the paper), so that a model answers questions about its context.

    python prepare.py --squad --hf=rajpurkar/squad_v2 --name=squad --val_fraction=0.05
    python sft.py --init_from=out/b_ssmax/ckpt.pt --out_dir=out/sft_b
    python sft.py --init_from=out/a_softmax/ckpt.pt --attention_type=ssmax --out_dir=out/sft_e      (e): swapped on the way

The loop, its log, checkpoints, ranks and resume are those of train.py. Ends with exact match and F1 on held-out questions.
"""
import collections
import dataclasses
import re
import string
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import runtime
from configurator import configure
from data import QA_FORMAT, decode, encode_example, end_of_text, pad, read_examples, shuffled
from runtime import UserError, print0
from train import TrainConfig, fit, start_model


@dataclass(frozen=True)
class SFTConfig(TrainConfig):
    """Defaults: the paper's fine-tuning (Appendix C)."""
    out_dir: str = "out/sft"  # ckpt.pt, log.jsonl and squad.json go here
    data_dir: str = "data/squad"  # questions made by prepare.py --squad
    batch_size: int = 128  # examples an update, over all ranks
    micro_batch_size: int = 32  # examples that a rank computes at once
    epochs: float = 10.0  # passes over the examples
    warmup_epochs: float = 1.0  # of them warm-up
    max_iters: int = 0  # updates; 0: what `epochs` says
    warmup_iters: int = 0  # updates of warm-up; 0: what `warmup_epochs` says
    learning_rate: float = 2e-5  # after the warm-up
    decay: str = "cosine"  # to min_lr at the end
    beta2: float = 0.999  # AdamW
    weight_decay: float = 0.0  # the paper decays nothing here
    eval_interval: int = 500  # updates between validation losses (and at start and end); 0: never
    save_interval: int = 500  # updates between checkpoints
    loss_chunk: int = 4096  # rows of logits that exist at once; this way only answer tokens have logits
    compile: bool = False  # the lengths of batches differ, each would be compiled
    qa_format: str = QA_FORMAT  # of an example; the needle's prompt has the same
    train_eot: bool = True  # also train the end of text behind the answer, so that the model learns to stop
    n_generate: int = 500  # held-out questions to answer at the end; 0: none

    def __post_init__(self):
        super().__post_init__()
        if not self.init_from:
            raise ValueError("name the checkpoint to fine-tune: --init_from=out/b_ssmax/ckpt.pt")
        if not all(part in self.qa_format for part in ("{context}", "{question}", "{answer}")) or self.epochs <= 0 or self.warmup_epochs < 0:
            raise ValueError("qa_format needs {context}, {question} and {answer}; epochs must be positive, warmup_epochs not negative")


def normalize(text):
    """SQuAD's official normalisation: lower case, no punctuation, no articles, single spaces."""
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_and_f1(prediction, truth):
    """SQuAD's exact match and F1 over words, each 0 to 1."""
    p, t = normalize(prediction).split(), normalize(truth).split()
    common = sum((collections.Counter(p) & collections.Counter(t)).values())
    f1 = 2 * common / (len(p) + len(t)) if common else float(p == t)
    return float(p == t), f1


@torch.no_grad()
def answer_questions(cfg, model, rows, vocab):
    """Greedy answers to encoded examples (ids, targets), equal lengths together; ranks share them -> mean (exact match, F1)."""
    model.eval()
    device, eot = next(model.parameters()).device, end_of_text(vocab)
    groups = collections.defaultdict(list)
    for ids, targets in rows[runtime.rank()::runtime.world_size()]:
        first = int((targets >= 0).argmax())  # the prompt ends where the first answer token is the target
        truth = [t for t in targets[first:].tolist() if t not in (-1, eot)]
        groups[first + 1].append((ids[:first + 1], decode(truth, vocab)))
    totals = torch.zeros(2, device=device)
    for length, group in groups.items():
        for i in range(0, len(group), cfg.micro_batch_size):
            part = group[i:i + cfg.micro_batch_size]
            idx = torch.from_numpy(np.stack([ids for ids, _ in part])).to(device)
            room = cfg.block_size - length if model.config.attention_type == "pn" else 30
            with runtime.autocast(device, cfg.dtype):
                new = model.generate(idx, max(1, min(30, room)), temperature=0)[:, length:].tolist()
            for ids, (_, truth) in zip(new, part):
                text = decode(ids[:ids.index(eot)] if eot in ids else ids, vocab).strip().split("\n")[0]
                totals += torch.tensor(exact_and_f1(text, truth), device=device)
    runtime.all_reduce([totals])
    return (totals / len(rows)).tolist()


def main():
    cfg = configure(SFTConfig)
    device = runtime.get_device(cfg.device)
    runtime.init_ranks(device)
    examples, digest = read_examples(cfg.data_dir, cfg.train_split)
    held_out = read_examples(cfg.data_dir, cfg.val_split)[0] if cfg.eval_interval or cfg.n_generate else []
    updates = len(examples) / cfg.batch_size  # an epoch
    cfg = dataclasses.replace(cfg, max_iters=cfg.max_iters or max(1, round(cfg.epochs * updates)),
                              warmup_iters=cfg.warmup_iters or round(cfg.warmup_epochs * updates))
    cfg, model, resumed, vocab = start_model(cfg, device, digest)

    def encoded(examples):
        rows = [encode_example(e, cfg.qa_format, cfg.block_size, vocab, cfg.train_eot) for e in examples]
        return [r for r in rows if r is not None]

    rows, val_rows = encoded(examples), encoded(held_out)
    if not rows or (held_out and not val_rows):
        raise UserError(f"no question of {cfg.data_dir} fits a block of {cfg.block_size} tokens")

    def micro_batches(rows):
        """This rank's rows as micro-batches of similar length. The loss is a sum over answer tokens, a mean over sequences."""
        mine = sorted(rows, key=lambda r: len(r[0]))[runtime.rank()::runtime.world_size()]
        m = cfg.micro_batch_size
        return [pad(mine[i:i + m], end_of_text(vocab)) for i in range(0, len(mine), m)], len(rows)

    def train_batch(step):
        epoch, k = np.divmod(np.arange(step * cfg.batch_size, (step + 1) * cfg.batch_size, dtype=np.uint64), np.uint64(len(rows)))
        return micro_batches([rows[i] for i in shuffled(k, len(rows), cfg.seed, epoch).tolist()])

    print0(f"{model.config.attention_type}: {len(rows):,} examples ({len(examples) - len(rows)} do not fit {cfg.block_size} tokens), "
           f"{cfg.max_iters:,} updates of {cfg.batch_size}, {cfg.warmup_iters:,} of them warm-up")
    fit(cfg, model, train_batch, lambda: micro_batches(val_rows[:cfg.eval_seqs]), vocab=vocab, resumed=resumed, digest=digest)
    if cfg.n_generate:
        asked = val_rows[:cfg.n_generate]
        exact, f1 = answer_questions(cfg, model, asked, vocab)
        runtime.write_json(Path(cfg.out_dir) / "squad.json", {"questions": len(asked), "exact_match": exact, "f1": f1})
        print0(f"{len(asked)} held-out questions: exact match {100 * exact:.1f}, F1 {100 * f1:.1f}")


if __name__ == "__main__":
    runtime.launch(main)
