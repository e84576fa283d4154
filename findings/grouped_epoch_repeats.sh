#!/usr/bin/env bash
# With batches grouped by length, Trainer resumes the second epoch with rows that it has had, and leaves out others
# Versions: transformers 5.24.0, accelerate 1.15.0, torch 2.13.0 (80 rows, 20 updates an epoch, stopped after 10 or 25).
# Guess: a resumed run sees the rows of an uninterrupted one, as with random batches: Trainer skips the batches that
#   it has had, "to resume from the exact training state".
# True: the sampler of train_sampling_strategy="group_by_length" draws its order from the global generator, which at
#   the start of a resumed run stands where the first epoch began. Another order of the epoch is skipped than was seen.
#   Only in the first epoch are the two the same.
# Hurt: interrupted fine-tuning on texts of different lengths: a resumed epoch is not one, and results differ.
# Output seen:
#   random, stopped after 10 updates: of 80 rows the epoch has 80 places, 0 rows never
#   random, stopped after 25 updates: of 80 rows the epoch has 80 places, 0 rows never
#   group_by_length, stopped after 10 updates: of 80 rows the epoch has 80 places, 0 rows never
#   group_by_length, stopped after 25 updates: of 80 rows the epoch has 80 places, 15 rows never
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0 accelerate==1.15.0

"$python" - "$work" <<'PY'
import sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
generator = torch.Generator().manual_seed(0)
lengths = torch.randint(4, 30, (80,), generator=generator).tolist()
rows = [{"input_ids": [row + 3] + [1] * length, "labels": [row + 3] + [1] * length} for row, length in enumerate(lengths)]
def collate(batch):
    longest = max(len(row["input_ids"]) for row in batch)
    return {name: torch.tensor([row[name] + [fill] * (longest - len(row[name])) for row in batch])
            for name, fill in (("input_ids", 0), ("labels", -100))}
def train(strategy, stop=None, checkpoint=None):
    seen = []
    def collate_and_note(batch):
        seen.append([row["input_ids"][0] for row in batch])
        return collate(batch)
    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == stop:
                control.should_training_stop = control.should_save = True
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=99, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2))
    trainer = Trainer(model, TrainingArguments(f"{sys.argv[1]}/{strategy}{stop}", report_to=[], use_cpu=True,
        disable_tqdm=True, num_train_epochs=2, save_strategy="no", logging_strategy="no", per_device_train_batch_size=4,
        train_sampling_strategy=strategy, remove_unused_columns=False), train_dataset=rows,
        data_collator=collate_and_note, callbacks=[Stop()])
    trainer.log = lambda logs, *_: None
    trainer.train(resume_from_checkpoint=checkpoint)
    return seen
for strategy in ("random", "group_by_length"):
    for stop in (10, 25):
        before = train(strategy, stop)[:stop]
        after = train(strategy, None, f"{sys.argv[1]}/{strategy}{stop}/checkpoint-{stop}")[-(40 - stop):]
        start = stop // 20 * 20
        epoch = [row for batch in (before + after)[start:start + 20] for row in batch]
        never = 80 - len(set(epoch))
        print(f"{strategy}, stopped after {stop} updates: of 80 rows the epoch has {len(epoch)} places, {never} rows never")
        assert len(epoch) == 80 and (never > 0) == (strategy == "group_by_length" and stop == 25)
PY
