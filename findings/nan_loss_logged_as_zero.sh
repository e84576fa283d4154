#!/usr/bin/env bash
# Trainer logs a NaN loss as 0, and its training loss at the end is finite
# Versions: transformers 5.24.0, accelerate 1.15.0, torch 2.13.0 (random small Llama).
# Guess: when the loss becomes NaN, the logged loss is NaN, and so is the training loss at the end.
# True: logging_nan_inf_filter is on. With logging_steps=1 each NaN is logged as 0. The final train_loss counts
#   the broken steps as 0 too: the earlier a run breaks, the better it looks. All weights are NaN.
# Hurt: whoever watches the loss alone, or chooses a run by its lowest train_loss.
# Output seen:
#   NaN from step 3, filter True: logged [0.0132, 0.0131, 0.013, 0.0, 0.0, 0.0], train_loss 0.0066, weights NaN True
#   NaN from step 0, filter True: logged [0.0, 0.0, 0.0, 0.0, 0.0, 0.0], train_loss 0.0000, weights NaN True
#   NaN from step 3, filter False: logged [0.0132, 0.0131, 0.013, nan, nan, nan], train_loss nan, weights NaN True
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0 accelerate==1.15.0

"$python" - "$work" <<'PY'
import sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
def run(broken_from, nan_filter):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=100, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=4))
    steps = iter(range(100))
    def loss(outputs, labels, **kwargs):
        return outputs.logits.square().mean() * (float("nan") if next(steps) >= broken_from else 1)
    rows = [{"input_ids": list(range(3, 23)), "labels": list(range(3, 23))}] * 8
    trainer = Trainer(model, TrainingArguments(sys.argv[1], report_to=[], use_cpu=True, disable_tqdm=True, max_steps=6,
        logging_steps=1, save_strategy="no", logging_nan_inf_filter=nan_filter),
        train_dataset=rows, compute_loss_func=loss)
    logged = []
    trainer.log = lambda logs, *_: logged.append(round(logs["loss"], 4)) if "loss" in logs else None
    final = trainer.train().training_loss
    return logged, final, next(model.parameters()).isnan().all().item()
for broken_from, nan_filter in ((3, True), (0, True), (3, False)):
    logged, final, nan_weights = run(broken_from, nan_filter)
    print(f"NaN from step {broken_from}, filter {nan_filter}: logged {logged}, train_loss {final:.4f}, weights NaN {nan_weights}")
    assert nan_weights and (final == final) == nan_filter and (logged[-1] == 0) == nan_filter
PY
