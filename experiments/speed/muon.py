"""
Train with Muon instead of AdamW, to see what it would gain (README.md here). The programs do not
have it as a setting.

    python -m experiments.speed.muon config/text.py --out_dir=out/muon/1 --seed=1

All arguments are those of train.py. The matrices of the blocks are updated by torch.optim.Muon
(torch 2.9 or newer), and everything else by AdamW as before: embeddings, norms, and s, b and g.
Muon's steps are scaled to the size of AdamW's (match_rms_adamw), so that the same learning rate and
weight decay fit both.
"""
import torch

import train
from lib.runtime import UserError, launch


class Together:
    """Two optimizers with the methods of one that train.py calls."""

    def __init__(self, muon, adamw):
        self.muon, self.adamw = muon, adamw

    @property
    def param_groups(self):
        return [*self.adamw.param_groups, *self.muon.param_groups]

    def step(self):
        self.adamw.step()
        self.muon.step()

    def zero_grad(self, set_to_none=True):
        self.adamw.zero_grad(set_to_none)
        self.muon.zero_grad(set_to_none)

    def state_dict(self):
        return {"adamw": self.adamw.state_dict(), "muon": self.muon.state_dict()}

    def load_state_dict(self, state):
        self.adamw.load_state_dict(state["adamw"])
        self.muon.load_state_dict(state["muon"])


def make_optimizer(cfg, model):
    """Return Muon for the matrices of the blocks and AdamW, as train.py makes it, for the rest."""
    if cfg.switch_iter:
        raise UserError("the moments of Muon are not kept at the switch of (f): leave switch_iter "
                        "out")
    matrices = [p for p in model.blocks.parameters() if p.dim() == 2]
    adamw = adamw_of_train(cfg, model)
    taken = {id(p) for p in matrices}
    for group in adamw.param_groups:
        group["params"] = [p for p in group["params"] if id(p) not in taken]
    muon = torch.optim.Muon(matrices, lr=cfg.learning_rate, weight_decay=cfg.weight_decay,
                            adjust_lr_fn="match_rms_adamw")
    return Together(muon, adamw)


adamw_of_train = train.make_optimizer


def main():
    if not hasattr(torch.optim, "Muon"):
        raise UserError(f"torch {torch.__version__} has no Muon: take 2.9 or newer")
    train.make_optimizer = make_optimizer
    train.main()


if __name__ == "__main__":
    launch(main)
