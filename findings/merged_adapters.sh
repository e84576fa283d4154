#!/usr/bin/env bash
# Two LoRA adapters merged by svd, which is called precise, lose half of their mean
# Versions: peft 0.21.2, transformers 5.24.0, torch 2.13.0 (random small Llama, adapters of rank 4).
# Guess: add_weighted_adapter(["a", "b"], [.5, .5]) gives the mean of the two updates. Its page calls "linear" a very
#   rough approximation, and "svd", which is taken if nothing is named, and "cat" precise.
# True: "svd" keeps the rank of the adapters, and a sum has twice their rank: half of it is lost. "cat" is the mean.
# Hurt: merged adapters, and arithmetic with tasks (weights 1 and -1).
# Output seen:
#   linear: off by 105% of the mean, 97% of the difference
#   svd: off by 49% of the mean, 48% of the difference
#   cat: off by 0% of the mean, 0% of the difference
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0 peft==0.21.2 accelerate==1.15.0

"$python" - <<'PY'
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
lora = LoraConfig(target_modules=["q_proj"], r=4, init_lora_weights=False)
model = get_peft_model(LlamaForCausalLM(LlamaConfig(vocab_size=100, hidden_size=32, intermediate_size=32,
    num_hidden_layers=1, num_attention_heads=4)), lora, adapter_name="a")
model.add_adapter("b", lora)
layer = next(module for module in model.modules() if hasattr(module, "lora_A"))
a, b = layer.get_delta_weight("a"), layer.get_delta_weight("b")
error = {}
for kind in ("linear", "svd", "cat"):
    for weights in ([0.5, 0.5], [1.0, -1.0]):
        name = f"{kind}{weights[1] > 0}"
        model.add_weighted_adapter(["a", "b"], weights, name, combination_type=kind)
        wanted = weights[0] * a + weights[1] * b
        error[kind, weights[1]] = ((layer.get_delta_weight(name) - wanted).norm() / wanted.norm()).item()
for kind in ("linear", "svd", "cat"):
    print(f"{kind}: off by {error[kind, 0.5]:.0%} of the mean, {error[kind, -1.0]:.0%} of the difference")
assert error["linear", 0.5] > 0.5 and error["svd", 0.5] > 0.2 and error["cat", 0.5] < 1e-5 and error["cat", -1.0] < 1e-5
PY
