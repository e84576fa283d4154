#!/usr/bin/env bash
# mlflow: a run's metric is the one of the highest step: a final test without a step does not count
# Versions: mlflow-skinny 3.17.2, SQLAlchemy 2.1.9, alembic 1.20.1 (its store in SQLite; the one in files does the same).
# Guess: run.data.metrics and search_runs give the value that was logged last; the docstring says "the latest timestamp".
# True: the stores compare (step, timestamp, value), and a value without a step has step 0. So a test after training
#   does not replace the last validation, and a run resumed from an earlier checkpoint shows the old values until it has
#   passed the old end. With equal steps in one millisecond the largest value wins: a loss looks worse, an accuracy better.
#   get_metric_history has all values.
# Hurt: tables of runs and choices of the best run by search_runs; resumed runs.
# Output seen:
#   accuracy: steps 1, 2, 3: 0.70, 0.80, 0.90, test without a step 0.60: run.data.metrics 0.90
#   another run, test 0.85 alone: 0.85; the better test by search_runs: run a, with 0.90 shown
#   loss: 0.9 at step 300, resumed from step 100, 0.7 at step 250: run.data.metrics 0.90
#   loss: 3.0, 2.0 and 1.0 in one batch without steps: run.data.metrics 3.00
#   history of the accuracy: [0.7, 0.8, 0.9, 0.6]
. "$(dirname "$0")/common.sh"
venv mlflow-skinny==3.17.2 SQLAlchemy==2.1.9 alembic==1.20.1 pandas==3.1.1 numpy==2.4.6

"$python" - "$work" 2>/dev/null <<'PY'
import sys
import time
import mlflow
from mlflow.entities import Metric
mlflow.set_tracking_uri(f"sqlite:///{sys.argv[1]}/runs.db")
mlflow.set_registry_uri(f"file:{sys.argv[1]}/models")
client = mlflow.MlflowClient()

def shown(run, name):
    return client.get_run(run.info.run_id).data.metrics[name]

with mlflow.start_run(run_name="a") as first:
    for step, accuracy in ((1, 0.7), (2, 0.8), (3, 0.9)):
        mlflow.log_metric("accuracy", accuracy, step=step)
    time.sleep(0.01)
    mlflow.log_metric("accuracy", 0.6)                         # the test
    for step, loss in ((100, 1.1), (200, 1.0), (300, 0.9), (200, 0.8), (250, 0.7)):
        mlflow.log_metric("loss", loss, step=step)
        time.sleep(0.01)
print(f"accuracy: steps 1, 2, 3: 0.70, 0.80, 0.90, test without a step 0.60: run.data.metrics {shown(first, 'accuracy'):.2f}")
with mlflow.start_run(run_name="b") as second:
    mlflow.log_metric("accuracy", 0.85)
best = mlflow.search_runs(order_by=["metrics.accuracy DESC"]).iloc[0]
print(f"another run, test 0.85 alone: {shown(second, 'accuracy'):.2f}; the better test by search_runs: run "
      f"{best['tags.mlflow.runName']}, with {best['metrics.accuracy']:.2f} shown")
print(f"loss: 0.9 at step 300, resumed from step 100, 0.7 at step 250: run.data.metrics {shown(first, 'loss'):.2f}")
now = int(time.time() * 1000)
client.log_batch(second.info.run_id, metrics=[Metric("loss", loss, now, 0) for loss in (3.0, 2.0, 1.0)])
print(f"loss: 3.0, 2.0 and 1.0 in one batch without steps: run.data.metrics {shown(second, 'loss'):.2f}")
history = [metric.value for metric in client.get_metric_history(first.info.run_id, "accuracy")]
print(f"history of the accuracy: {history}")
assert shown(first, "accuracy") == 0.9 and history[-1] == 0.6 and best["tags.mlflow.runName"] == "a"
assert shown(first, "loss") == 0.9 and shown(second, "loss") == 3
PY
