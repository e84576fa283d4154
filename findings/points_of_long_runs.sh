#!/usr/bin/env bash
# TensorBoard's reader gives 10,000 random points of a longer run: the best value, and a spike, are lost without a word
# Versions: tensorboard 2.21.0, numpy 2.4.6 (runs with one loss for each step, written by its own writer).
# Guess: EventAccumulator reads all that is in the file. If it did not, two metrics of a run would at least have the
#   same steps.
# True: it keeps 10,000 values of each tag, drawn at random; the last one always stays. The lowest loss of
#   a run of 50,000 steps, and the step at which the gradient exploded, are there in one of five cases. Nothing tells
#   that 40,000 values are missing: the list looks like a log every few steps. A metric that is written every fifth step
#   is complete, and four fifths of its values have no loss of the same step. size_guidance={"scalars": 0} reads all.
# Hurt: tables of best values, counts of spikes, plots made from event files; runs of more than 10,000 steps.
# Output seen:
#   10,000 steps, as it is: 10,000 points, 100 of 100 spikes, of 2,000 values of the other metric 2,000 have a loss
#   10,000 steps, all: 10,000 points, 100 of 100 spikes, of 2,000 values of the other metric 2,000 have a loss
#   50,000 steps, as it is: 10,000 points, 18 of 100 spikes, of 10,000 values of the other metric 1,975 have a loss
#   50,000 steps, all: 50,000 points, 100 of 100 spikes, of 10,000 values of the other metric 10,000 have a loss
. "$(dirname "$0")/common.sh"
venv tensorboard==2.21.0 numpy==2.4.6

"$python" - "$work" <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
import sys
import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

seen = {}
for steps in (10_000, 50_000):
    rng = np.random.default_rng(0)
    loss = 3 + rng.normal(size=steps) / 10
    spikes = rng.choice(steps, 100, replace=False)
    loss[spikes] += 50                                         # a hundred steps with an exploding loss
    folder = f"{sys.argv[1]}/{steps}"
    writer = EventFileWriter(folder)
    for step, value in enumerate(loss):
        values = [Summary.Value(tag=tag, simple_value=value) for tag in ("loss", "other")[:1 + (step % 5 == 0)]]
        writer.add_event(Event(step=step, wall_time=step, summary=Summary(value=values)))
    writer.close()
    for name, options in (("as it is", {}), ("all", {"size_guidance": {"scalars": 0}})):
        reader = EventAccumulator(folder, **options)
        reader.Reload()
        points = {tag: {point.step: point.value for point in reader.Scalars(tag)} for tag in ("loss", "other")}
        read = points["loss"]
        seen[steps, name] = len(read), sum(value > 20 for value in read.values()), max(read) == steps - 1
        shared = len(read.keys() & points["other"].keys())
        print(f"{steps:,} steps, {name}: {len(read):,} points, {seen[steps, name][1]} of 100 spikes,",
              f"of {len(points['other']):,} values of the other metric {shared:,} have a loss")
for name in ("as it is", "all"):
    assert seen[10_000, name] == (10_000, 100, True)
assert seen[50_000, "all"] == (50_000, 100, True)
assert seen[50_000, "as it is"][0] == 10_000 and seen[50_000, "as it is"][1] < 40 and seen[50_000, "as it is"][2]
PY
