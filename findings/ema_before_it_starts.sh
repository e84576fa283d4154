#!/usr/bin/env bash
# Until Lightning's EMA starts it validates and saves the untrained model; a short run ends with it
# Versions: lightning 2.6.6, torch 2.13.0 (CPU; one weight that is fitted to 1 from 0, 5 epochs of 8 updates).
# Guess: with update_starting_at_step=24 the average follows the model until then, or is not used: validation and
#   checkpoints show the model that is trained. With update_starting_at_epoch=3 the average starts in epoch 3.
# True: the average is a copy from before the first update, and it is swapped in for each validation, saved as the
#   checkpoint's state_dict, and copied into the model at the end. Before the start all of these are the untrained
#   model. A start after the last update, as with a shorter run, undoes the training. update_starting_at_epoch alone
#   postpones nothing: the average is updated after each update from the first on, and once more at the end of each
#   epoch from the one named on. With update_every_n_steps=0 it starts there, and is updated once an epoch.
# Hurt: early stopping and the choice of the best checkpoint; short trials of a long recipe.
# Output seen:
#   no EMA: validated 0.57 0.81 0.92 0.97 0.99 saved 0.57 0.81 0.92 0.97 0.99 at the end 0.99
#   EMA from the first update: validated 0.27 0.54 0.74 0.86 0.93 saved 0.27 0.54 0.74 0.86 0.93 at the end 0.93
#   from update 24: validated 0.00 0.00 0.00 0.94 0.96 saved 0.00 0.00 0.00 0.94 0.96 at the end 0.96
#   from update 50: validated 0.00 0.00 0.00 0.00 0.00 saved 0.00 0.00 0.00 0.00 0.00 at the end 0.00
#   from epoch 3: validated 0.27 0.54 0.74 0.86 0.93 saved 0.27 0.54 0.74 0.87 0.94 at the end 0.94
#   from epoch 3, 0 steps: validated 0.00 0.00 0.00 0.00 0.97 saved 0.00 0.00 0.00 0.97 0.97 at the end 0.97
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 lightning==2.6.6

"$python" - "$work" <<'PY' 2> "$work/log" | grep : || { cat "$work/log"; exit 1; }
import sys
import lightning, torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from torch.utils.data import DataLoader
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.validated = []
    def training_step(self, batch, index):
        return (self.weight - batch).square().mean()
    def validation_step(self, batch, index):
        self.validated.append(self.weight.item())
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)
results = {}
starts = {"no EMA": None, "EMA from the first update": {}, "from update 24": dict(update_starting_at_step=24),
          "from update 50": dict(update_starting_at_step=50), "from epoch 3": dict(update_starting_at_epoch=3),
          "from epoch 3, 0 steps": dict(update_starting_at_epoch=3, update_every_n_steps=0)}
for name, options in starts.items():
    model, saved = Model(), ModelCheckpoint(sys.argv[1] + "/" + name, save_top_k=-1)
    callbacks = [saved] if options is None else [saved, EMAWeightAveraging(decay=0.9, **options)]
    trainer = lightning.Trainer(max_epochs=5, accelerator="cpu", logger=False, callbacks=callbacks,
                                num_sanity_val_steps=0, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, DataLoader(torch.ones(64), batch_size=8), DataLoader(torch.ones(1)))
    files = [f"{saved.dirpath}/epoch={epoch}-step={8 * epoch + 8}.ckpt" for epoch in range(5)]
    files = [torch.load(file, weights_only=False)["state_dict"]["weight"].item() for file in files]
    results[name] = model.validated, files, model.weight.item()
    print(f"{name}: validated", *(f"{weight:.2f}" for weight in model.validated), "saved",
          *(f"{weight:.2f}" for weight in files), f"at the end {model.weight.item():.2f}")
validated, files, last = results["from update 24"]
assert max(validated[:3] + files[:3]) == 0 and last > 0.8
assert results["from update 50"] == ([0] * 5, [0] * 5, 0) and results["no EMA"][2] > 0.9
assert results["from epoch 3"][0][:3] == results["EMA from the first update"][0][:3]
assert max(results["from epoch 3, 0 steps"][0][:3]) == 0
PY
