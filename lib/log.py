"""out_dir/log.jsonl of a training run, and Weights & Biases."""
import dataclasses
import os
from pathlib import Path

import torch

from lib import ranks, storage
from lib.errors import MALFORMED, describe, explain
from lib.ranks import print0


class Log:
    """
    Writes out_dir/log.jsonl. Its first line is about the run. Each update has a line with iter,
    loss, lr, grad_norm and more, and each validation one with iter, val_loss and the learned scales
    (s, b, ...), [layer][head]. The numbers also go to Weights & Biases if wandb_log is set.

    start: None for a new run. A run that resumes after `start` updates drops the lines of later
    updates, which it runs again.
    """

    def __init__(self, cfg, model, metadata, start):
        self.file = self.wandb = None
        if ranks.RANK != 0:
            return
        path, config = Path(cfg.out_dir) / "log.jsonl", dataclasses.asdict(cfg)
        header = {
            "config": config,
            "params": model.num_params(),
            "model_config": dataclasses.asdict(model.config),
            "torch": torch.__version__,
            "code": metadata["code"],
            "variant": metadata["variant"],
            "base": metadata["base"],
            "data": metadata["data"],
        }
        records = []
        if start is not None and path.exists():
            with explain(f"{path} is not a log of this program; move it away", MALFORMED):
                old_header, *old = storage.read_lines(path)
                # a run that became longer has another max_iters
                header = old_header | {"config": config, "code": metadata["code"]}
                records = [record for record in old if record["iter"] <= start]
        elif start:
            print0(f"note: {path} is missing, so the log begins again after iter {start:,}")
        storage.write_lines(path, [header, *records])
        self.file = open(path, "a", encoding="utf-8")
        if cfg.wandb_log:
            try:
                import wandb
                self.wandb = wandb.init(project=cfg.wandb_project, config=config,
                                        dir=os.environ.get("WANDB_DIR", cfg.out_dir),
                                        name=cfg.wandb_run_name or path.parent.name)
            except Exception as e:  # training goes on without a key, network or package
                print0(f"wandb is off ({describe(e)}); WANDB_MODE=offline needs no network")

    def __call__(self, record):
        if self.file:
            storage.append_lines(self.file, [record])
        if self.wandb:
            # wandb cannot plot lists: s of each head stays in log.jsonl
            numbers = {k: v for k, v in record.items() if not isinstance(v, list)}
            self.wandb.log(numbers, step=record["iter"])


def scales_by_layer(model):
    """Return {name: [layer][head]} of the learned scales (s, b, ...); a layer without is None."""
    scales = {}
    for name, p in model.learned_scales().items():
        if name.startswith("blocks."):  # leaves out p_n, which stays in the checkpoint
            _, layer, *_, letter = name.split(".")
            by_layer = scales.setdefault(letter, [None] * len(model.blocks))
            by_layer[int(layer)] = p.detach().cpu().double().round(decimals=5).tolist()
    return scales
