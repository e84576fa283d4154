"""out_dir/log.jsonl and log.json of a training run, and Weights & Biases."""
import dataclasses
import json
import os
import uuid
from pathlib import Path

import torch

from lib import ranks, storage
from lib.errors import MALFORMED, describe, explain
from lib.ranks import print0


class Log:
    """
    Writes log.jsonl, with a record for each update (iter, loss, lr, grad_norm, ...) and for each
    validation (iter, val_loss, and the learned scales s, b, ... as [layer][head]). Each has the
    variant and the seed of the run. What the numbers depend on stands beside it, in log.json. The
    numbers also go to Weights & Biases if wandb_log is set.

    A resumed run keeps the records up to its checkpoint, and runs the later updates again. It goes
    on with its run in wandb.
    """

    def __init__(self, cfg, model, run):
        self.run = {"variant": run["variant"], "seed": cfg.seed}
        self.file = self.wandb = None
        if ranks.RANK != 0:
            return
        path = Path(cfg.out_dir) / "log.jsonl"
        meta_path = path.with_suffix(".json")
        records, wandb_id = [], None
        with explain(f"{path} or {meta_path.name} is damaged; move both away", MALFORMED):
            if run["iter"] and path.exists():  # at update 0 the run begins again
                records = [r for r in storage.read_lines(path) if r["iter"] <= run["iter"]]
            if run["iter"] and meta_path.exists():
                wandb_id = json.loads(meta_path.read_text()).get("wandb_id")
        if cfg.wandb_log and not wandb_id:
            wandb_id = uuid.uuid4().hex
        storage.write_lines(meta_path, [{
            "evaluation": "log", **self.run, "tag": "",
            "settings": dataclasses.asdict(cfg) | {"attention_code": run["attention_code"]},
            "data": run["data"], "base": run["base"], "code": run["code"],
            "torch": torch.__version__, "block_size": model.config.block_size,
            "params": model.num_params(), "wandb_id": wandb_id}])
        storage.write_lines(path, records)
        self.file = open(path, "a", encoding="utf-8")
        if cfg.wandb_log:
            # there may be no key, network or package
            with explain("wandb does not start; WANDB_MODE=offline needs no network"):
                import wandb
                self.wandb = wandb.init(
                    project=cfg.wandb_project, name=path.parent.name,
                    dir=os.environ.get("WANDB_DIR", cfg.out_dir),
                    config=dataclasses.asdict(cfg), id=wandb_id, resume="allow")

    def __call__(self, record):
        if self.file:
            storage.append_lines(self.file, [self.run | record])
        if self.wandb:
            numbers = {}
            for name, value in record.items():
                if isinstance(value, list):  # wandb cannot plot lists: the mean of each layer
                    numbers |= {f"{name}/layer {layer}": sum(head_scales) / len(head_scales)
                                for layer, head_scales in enumerate(value) if head_scales}
                elif name != "digest":
                    numbers[name] = value
            try:
                self.wandb.log(numbers, step=record["iter"])
            except Exception as e:  # its own process may have ended: the run goes on without it
                self.wandb = None
                print0(f"note: wandb is off ({describe(e)})")


def scales_by_layer(model):
    """Return {name: [layer][head]} of the parameters with one number for each head: s, b, ... A
    layer without them has None."""
    scales = {}
    for layer, block in enumerate(model.blocks):
        for name, p in block.attn.named_parameters(recurse=False):
            if p.shape == (block.attn.n_head,):
                by_layer = scales.setdefault(name, [None] * len(model.blocks))
                by_layer[layer] = p.detach().cpu().double().round(decimals=5).tolist()
    return scales
