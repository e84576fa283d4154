"""out_dir/log.jsonl of a training run, and Weights & Biases."""
import dataclasses
import os
import uuid
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

    A resumed run keeps the lines up to its checkpoint, and runs the later updates again. It goes on
    with its run in wandb.
    """

    def __init__(self, cfg, model, run):
        self.file = self.wandb = None
        if ranks.RANK != 0:
            return
        path, config = Path(cfg.out_dir) / "log.jsonl", dataclasses.asdict(cfg)
        header = {
            "config": config,
            "params": model.num_params(),
            "model_config": dataclasses.asdict(model.config),
            "torch": torch.__version__,
            "code": run["code"],
            "variant": run["variant"],
            "base": run["base"],
            "data": run["data"],
        }
        records = []
        if run["optimizer"] and path.exists():  # resumed
            with explain(f"{path} is not a log of this program; move it away", MALFORMED):
                begun, *old = storage.read_lines(path)
                # a run that became longer has another max_iters
                header = begun | {"config": config, "code": run["code"]}
                records = [record for record in old if record["iter"] <= run["iter"]]
        if cfg.wandb_log:
            header.setdefault("wandb_id", uuid.uuid4().hex)
        storage.write_lines(path, [header, *records])
        self.file = open(path, "a", encoding="utf-8")
        if cfg.wandb_log:
            try:
                import wandb
                self.wandb = wandb.init(project=cfg.wandb_project, config=config,
                                        dir=os.environ.get("WANDB_DIR", cfg.out_dir),
                                        name=cfg.wandb_run_name or path.parent.name,
                                        id=header["wandb_id"], resume="allow")
            except Exception as e:  # there may be no key, network or package
                self.wandb_is_off(e)

    def wandb_is_off(self, error):
        """Train on without it."""
        self.wandb = None
        print0(f"wandb is off ({describe(error)}); WANDB_MODE=offline needs no network")

    def __call__(self, record):
        if self.file:
            storage.append_lines(self.file, [record])
        if self.wandb:
            # wandb cannot plot lists: s of each head stays in log.jsonl
            numbers = {k: v for k, v in record.items() if not isinstance(v, list)}
            try:
                self.wandb.log(numbers, step=record["iter"])
            except Exception as e:
                self.wandb_is_off(e)


def scales_by_layer(model):
    """Return {name: a list for each layer, or None} of the learned scales: s, b, ..."""
    scales = {}
    for name, p in model.learned_scales().items():
        if name.startswith("blocks."):  # leaves out p_n, which stays in the checkpoint
            _, layer, *_, letter = name.split(".")
            by_layer = scales.setdefault(letter, [None] * len(model.blocks))
            by_layer[int(layer)] = p.detach().cpu().double().round(decimals=5).tolist()
    return scales
