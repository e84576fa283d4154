#!/usr/bin/env bash
# A shuffled stream with repeat(n) has the same order and the same batches in each epoch
# Versions: datasets 5.2.0 (400 rows in 4 shards, batches of 8).
# Guess: shuffle(...).repeat(3) shuffles each repetition anew, as the same two calls of tf.data do, and as torch's and
#   Trainer's loaders shuffle each epoch.
# True: the generator of the shuffle is copied at the start of each repetition, and so are the orders of the shards
#   and of the buffer. set_epoch, which Trainer and own loops call, changes the order of the whole stream, not of its
#   repetitions, as the stream with repeat(n) is one epoch. Without repeat, set_epoch gives each pass another order.
#   repeat(3).shuffle(...) keeps the order of the shards, too, and with a buffer smaller than the data lets rows of two
#   repetitions meet: of the first 400 rows about 30 come twice, and as many are missing.
# Hurt: training for several epochs on streams by repeat, which max_steps suggests: each row meets the same neighbours
#   in its batch each time (contrastive losses see the same negatives), and the loss has a period.
# Output seen:
#   shuffle, repeat(3): 50 different batches of 150, all repetitions in one order: True
#   the same after set_epoch(1): 50 different batches of 150, all repetitions in one order: True
#   shuffle, three passes with set_epoch: 150 different batches of 150, all repetitions in one order: False
#   repeat(3), shuffle: 150 different batches of 150, all repetitions in one order: False; rows in the first 400: 370
. "$(dirname "$0")/common.sh"
venv numpy==2.4.6 datasets==5.2.0

"$python" - <<'PY'
from datasets import Dataset
stream = Dataset.from_dict({"row": list(range(400))}).to_iterable_dataset(num_shards=4)
def rows(stream, epoch=0):
    stream.set_epoch(epoch)
    return [row["row"] for row in stream]
def show(name, order, end=""):
    batches = [tuple(order[i:i + 8]) for i in range(0, len(order), 8)]
    different = len(set(batches))
    same = order[:400] == order[400:800] == order[800:]
    print(f"{name}: {different} different batches of {len(batches)}, all repetitions in one order: {same}{end}")
    return different, same
shuffled = stream.shuffle(seed=0, buffer_size=100)
repeated = shuffled.repeat(3)
assert show("shuffle, repeat(3)", rows(repeated)) == (50, True)
assert show("the same after set_epoch(1)", rows(repeated, 1)) == (50, True)
passes = sum((rows(shuffled, epoch) for epoch in range(3)), [])
assert show("shuffle, three passes with set_epoch", passes) == (150, False)
mixed = rows(stream.repeat(3).shuffle(seed=0, buffer_size=100))
first = len(set(mixed[:400]))
assert show("repeat(3), shuffle", mixed, f"; rows in the first 400: {first}") == (150, False) and 300 < first < 395
PY
