#!/usr/bin/env bash
# With PiSSA or OLoRA, disable_adapter() does not give the base model
# Versions: peft 0.21.2, transformers 5.24.0, torch 2.13.0 (random small Llama, rank 4, no training).
# Guess: "use this to run inference on the base model", says its page, whatever the initialisation.
# True: PiSSA and OLoRA take the adapter's part out of the base weights. With the adapter the model is the base model,
#   and with the adapter disabled it is what is left: another model. The other initialisations leave the base as it is.
# Hurt: DPO and GRPO, where the reference is the model with its adapter disabled: the two differ before any training,
#   and the penalty pulls towards a broken model. Comparisons with the base model, too.
# Output seen:
#   init_lora_weights=True: off from the base model by 0 with the adapter, by 0 with it disabled; KL of the two 0.00 nats a token
#   init_lora_weights=gaussian: off from the base model by 0 with the adapter, by 0 with it disabled; KL of the two 0.00 nats a token
#   init_lora_weights=orthogonal: off from the base model by 2e-06 with the adapter, by 0 with it disabled; KL of the two 0.00 nats a token
#   init_lora_weights=pissa: off from the base model by 3e-06 with the adapter, by 4 with it disabled; KL of the two 0.56 nats a token
#   init_lora_weights=olora: off from the base model by 2e-06 with the adapter, by 4 with it disabled; KL of the two 0.47 nats a token
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0 peft==0.21.2 accelerate==1.15.0

"$python" - "$work" <<'PY'
import sys
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
LlamaForCausalLM(LlamaConfig(vocab_size=100, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
    num_attention_heads=4, initializer_range=0.2)).save_pretrained(sys.argv[1])
load = lambda: LlamaForCausalLM.from_pretrained(sys.argv[1]).eval()
ids = torch.randint(3, 100, (1, 20))
off = {}
with torch.no_grad():
    base = load()(ids).logits.log_softmax(-1)
    for init in (True, "gaussian", "orthogonal", "pissa", "olora"):
        config = LoraConfig(target_modules=["q_proj", "v_proj"], r=4, lora_alpha=4, init_lora_weights=init)
        model = get_peft_model(load(), config).eval()
        enabled = model(ids).logits.log_softmax(-1)
        with model.disable_adapter():
            disabled = model(ids).logits.log_softmax(-1)
        off[init] = (enabled - base).abs().max().item(), (disabled - base).abs().max().item()
        kl = (enabled.exp() * (enabled - disabled)).sum(-1).mean()
        print(f"init_lora_weights={init}: off from the base model by {off[init][0]:.1g} with the adapter,",
              f"by {off[init][1]:.1g} with it disabled; KL of the two {kl:.2f} nats a token")
assert max(enabled for enabled, _ in off.values()) < 1e-3 and min(off["pissa"][1], off["olora"][1]) > 0.5
assert max(off[True][1], off["gaussian"][1], off["orthogonal"][1]) < 1e-3
PY
