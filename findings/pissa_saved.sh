#!/usr/bin/env bash
# A saved adapter of fast PiSSA is another model when it is loaded
# Versions: peft 0.21.2, transformers 5.24.0, torch 2.13.0 (random small Llama, rank 4).
# Guess: save_pretrained and from_pretrained on the same base model give the model back, as with each other
#   initialisation.
# True: PiSSA moves a part of each base weight into the adapter, and only the adapter is saved. Loading repeats
#   the decomposition to find the rest. "pissa_niter_N" decomposes with random numbers, so that the rest is
#   another one. "pissa" is exact, and loads right.
# Hurt: whoever follows the advice to use pissa_niter for its speed: training looks right, each reloaded model is
#   wrong.
# Output seen:
#   largest logit 3.8; after saving and loading off by: pissa 0, pissa_niter_4 5, pissa_niter_16 5.7, olora 0, gaussian 0
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0 peft==0.21.2 accelerate==1.15.0

"$python" - "$work" <<'PY'
import sys, tempfile
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
base = sys.argv[1] + "/base"
LlamaForCausalLM(LlamaConfig(vocab_size=100, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
    num_attention_heads=4, initializer_range=0.2)).save_pretrained(base)
ids = torch.randint(3, 100, (1, 20))
off = {}
for init in ("pissa", "pissa_niter_4", "pissa_niter_16", "olora", "gaussian"):
    config = LoraConfig(target_modules=["q_proj", "v_proj"], r=4, lora_alpha=4, init_lora_weights=init)
    torch.manual_seed(1)
    model = get_peft_model(LlamaForCausalLM.from_pretrained(base), config)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data += torch.randn_like(parameter) * 0.02  # a little training
    folder = tempfile.mkdtemp(dir=sys.argv[1])
    model.save_pretrained(folder)
    torch.manual_seed(2)
    loaded = PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(base), folder)
    with torch.no_grad():
        before, after = model.eval()(ids).logits, loaded.eval()(ids).logits
    off[init] = (before - after).abs().max().item()
print(f"largest logit {before.abs().max():.1f}; after saving and loading off by:",
      ", ".join(f"{init} {d:.2g}" for init, d in off.items()))
assert min(off["pissa_niter_4"], off["pissa_niter_16"]) > 0.1 and max(off["pissa"], off["olora"], off["gaussian"]) < 1e-4
PY
