#!/usr/bin/env bash
# keras on jax: a model whose logits are NaN has a top-k accuracy of 1, and its checkpoint is kept as the best
# Versions: keras 3.15.1 (jax 0.10.2, CPU), numpy 2.4.6 (1,000 random targets of 100 classes).
# Guess: an answer of NaN is wrong, or the metric is NaN.
# True: on jax a target's rank is 1 and the number of classes that score more, and nothing is more than -inf among NaN:
#   each target of a text whose logits are NaN is at the top. The more texts overflow, the better is the metric, and a
#   model that has diverged has 1.00, for k = 1, too. ModelCheckpoint keeps it as the best one. The plain accuracy falls
#   to .01, and on torch the top-k accuracy to 0.
# Hurt: checkpoints, early stopping and sweeps that go by a top-k accuracy: the run that has diverged wins; validation
#   in half precision, where a few texts overflow.
# Output seen:
#     0% of the texts are NaN: top-1 0.31, top-5 0.59, accuracy 0.31
#    10% of the texts are NaN: top-1 0.38, top-5 0.63, accuracy 0.28
#    50% of the texts are NaN: top-1 0.65, top-5 0.79, accuracy 0.15
#   100% of the texts are NaN: top-1 1.00, top-5 1.00, accuracy 0.01
#   four epochs, loss 4.6, 4.5, 4.6, nan and top-5 accuracy 0.07, 0.11, 0.08, 1.00: the best checkpoint is 100% NaN
. "$(dirname "$0")/common.sh"
venv keras==3.15.1 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6

KERAS_BACKEND=jax "$python" - "$work/best.keras" <<'PY'
import sys
import keras
import numpy as np

rng = np.random.default_rng(0)
targets = rng.integers(100, size=1000)
logits = rng.normal(size=(1000, 100)).astype(np.float32)
logits[np.arange(1000), targets] += 2
names = {f"top-{k}": keras.metrics.SparseTopKCategoricalAccuracy(k) for k in (1, 5)}
names["accuracy"] = keras.metrics.SparseCategoricalAccuracy()
seen = []
for share in (0, 0.1, 0.5, 1):
    broken = logits.copy()
    broken[:int(1000 * share)] = np.nan
    row = []
    for metric in names.values():
        metric.reset_state()
        metric.update_state(targets, broken)
        row.append(float(metric.result()))
    seen.append(row)
    print(f"{share:4.0%} of the texts are NaN: " + ", ".join(f"{name} {value:.2f}" for name, value in zip(names, row)))
assert seen[0][1] < seen[1][1] < seen[2][1] < seen[3][1] == 1 == seen[3][0] and seen[3][2] < 0.05

best = keras.callbacks.ModelCheckpoint(sys.argv[1], monitor="val_sparse_top_k_categorical_accuracy", mode="max",
                                       save_best_only=True)
model = keras.Sequential([keras.Input((8,)), *[keras.layers.Dense(64) for _ in range(4)], keras.layers.Dense(100)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True),
              metrics=["sparse_top_k_categorical_accuracy"])
rates = keras.callbacks.LearningRateScheduler(lambda epoch: (0.01, 0.1, 1.0, 100.0)[epoch])
x = rng.normal(size=(1000, 8))
history = model.fit(x, targets, validation_data=(x, targets), epochs=4, verbose=0, callbacks=[best, rates]).history
scores, losses = history[best.monitor], history["val_loss"]
kept = keras.saving.load_model(sys.argv[1]).get_weights()[0]
print("four epochs, loss " + ", ".join(f"{loss:.1f}" for loss in losses), "and top-5 accuracy "
      + ", ".join(f"{score:.2f}" for score in scores) + f": the best checkpoint is {np.isnan(kept).mean():.0%} NaN")
assert scores[3] == 1 > 0.3 > max(scores[:3]) and np.isnan(kept).all()
PY
