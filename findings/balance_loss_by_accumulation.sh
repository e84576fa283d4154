#!/usr/bin/env bash
# Trainer multiplies the balance loss of experts by the number of accumulation steps
# Versions: transformers 5.24.0, accelerate 1.15.0, torch 2.13.0 (random small OLMoE, 8 experts, factor .01).
# Guess: Trainer's gradient is that of the whole batch, however it is cut into micro-batches, as it is for models
#   without experts.
# True: the loss of the tokens is divided by the tokens of all micro-batches, the balance loss is added to each of
#   them in full. With 8 accumulation steps it has 8 times its factor. It is also part of eval_loss, so that
#   exp(eval_loss) is no perplexity.
# Hurt: fine-tuning of Mixtral, OLMoE or Qwen MoE on small cards: the same settings with more steps train another
#   objective.
# Output seen:
#   factor 0.0, 1 accumulation steps: above the loss of the tokens, 4.6015: training 0.0000, evaluation 0.0000
#   factor 0.0, 8 accumulation steps: above the loss of the tokens, 4.6015: training 0.0000, evaluation 0.0000
#   factor 0.01, 1 accumulation steps: above the loss of the tokens, 4.6015: training 0.0201, evaluation 0.0201
#   factor 0.01, 8 accumulation steps: above the loss of the tokens, 4.6015: training 0.1617, evaluation 0.0201
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0 accelerate==1.15.0

"$python" - "$work" <<'PY'
import sys
import torch
from transformers import OlmoeConfig, OlmoeForCausalLM, Trainer, TrainingArguments
torch.manual_seed(0)
rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(3, 100, (8, 40))]
def losses(factor, accumulation):
    torch.manual_seed(0)
    model = OlmoeForCausalLM(OlmoeConfig(vocab_size=100, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=4, num_experts=8, num_experts_per_tok=2, eos_token_id=None,
        output_router_logits=True, router_aux_loss_coef=factor))
    trainer = Trainer(model, TrainingArguments(sys.argv[1], report_to=[], use_cpu=True, disable_tqdm=True,
        learning_rate=0.0, max_steps=1, save_strategy="no", per_device_train_batch_size=8 // accumulation,
        gradient_accumulation_steps=accumulation), train_dataset=rows, eval_dataset=rows)
    trainer.log = lambda logs, *_: None
    return trainer.train().training_loss, trainer.evaluate()["eval_loss"]
tokens, _ = losses(0.0, 1)
extra = {}
for factor in (0.0, 0.01):
    for accumulation in (1, 8):
        trained, evaluated = losses(factor, accumulation)
        extra[factor, accumulation] = trained - tokens, evaluated - tokens
        print(f"factor {factor}, {accumulation} accumulation steps: above the loss of the tokens, {tokens:.4f}: "
              f"training {trained - tokens:.4f}, evaluation {evaluated - tokens:.4f}")
assert max(abs(extra[0.0, n][i]) for n in (1, 8) for i in (0, 1)) < 1e-4
once = extra[0.01, 1][0]
assert once > 0.01 and abs(extra[0.01, 8][0] / once - 8) < 0.4 and abs(extra[0.01, 8][1] / once - 1) < 0.1
PY
