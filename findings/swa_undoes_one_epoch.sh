#!/usr/bin/env bash
# Lightning's weight averaging gives the untrained model after one epoch, and never counts the last
# Versions: lightning 2.6.6, torch 2.13.0 (CPU; one weight that is fitted to 1 from 0, 8 updates an epoch).
# Guess: StochasticWeightAveraging averages the weights at the ends of the last epochs, by default of the last fifth.
#   With a single epoch the average is the trained model.
# True: the callback takes the weights when an epoch starts, from one epoch before the one that swa_epoch_start names.
#   In a training of one epoch it takes the weights before it alone, and gives them back at the end: the training is
#   undone. With two epochs half of the average is the random start. The weights after the last epoch, the best ones,
#   are never part of the average. The loss and the validation while training are those of the model that is thrown
#   away.
# Hurt: language models, which are trained for one or a few epochs: the saved model is the start, or close to it.
# Output seen:
#   epochs 1: trained weight 0.279, with averaging 0.000, which is the mean after epochs [0]
#   epochs 2: trained weight 0.480, with averaging 0.139, which is the mean after epochs [0, 1]
#   epochs 5: trained weight 0.805, with averaging 0.677, which is the mean after epochs [3, 4]
#   epochs 10: trained weight 0.962, with averaging 0.924, which is the mean after epochs [7, 8, 9]
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 lightning==2.6.6

"$python" - <<'PY' 2> "$work/log" | grep '^epochs' || { cat "$work/log"; exit 1; }
import lightning, torch
from lightning.pytorch.callbacks import StochasticWeightAveraging
from torch.utils.data import DataLoader
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.ends = [0.0]                                      # the weight before the training and after each epoch
    def training_step(self, batch, index):
        return (self.weight - batch).square().mean()
    def on_train_epoch_end(self):
        self.ends.append(self.weight.item())
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.02)
def train(epochs, *callbacks):
    model = Model()
    trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False, callbacks=list(callbacks))
    trainer.fit(model, DataLoader(torch.ones(64), batch_size=8))
    return model.weight.item(), model.ends
for epochs, averaged in ((1, [0]), (2, [0, 1]), (5, [3, 4]), (10, [7, 8, 9])):
    plain, _ = train(epochs)
    weight, ends = train(epochs, StochasticWeightAveraging(swa_lrs=0.02))
    mean = sum(ends[i] for i in averaged) / len(averaged)
    print(f"epochs {epochs}: trained weight {plain:.3f}, with averaging {weight:.3f}, which is the mean after epochs "
          f"{averaged}")
    assert abs(ends[-1] - plain) < 1e-6 and abs(weight - mean) < 1e-6
PY
