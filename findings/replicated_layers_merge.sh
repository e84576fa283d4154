#!/usr/bin/env bash
# peft merges the adapters of replicated layers all into the one weight that these share: the merged model is another
# Versions: peft 0.21.2, transformers 5.24.0, torch 2.13.0 (random small Llama, 40 steps on one batch).
# Guess: merge_and_unload gives a plain model with the adapter's outputs, as without layer_replication, or refuses, as
#   peft does for lora_bias.
# True: with layer_replication=[[0, 2], [0, 2]] layers 0 and 2, and 1 and 3, have adapters of their own on the same base
#   weight. Each of them is added to that weight, so that every copy runs with the sum of both, without a warning.
# Hurt: deeper models made by replication: what is trained and tested is not what is merged and deployed.
# Output seen:
#   four layers: 4 layers, loss trained 0.065, merged 0.065; logits off by 4.1e-05; 0 warnings
#   two layers, replicated to four: 4 layers, loss trained 0.076, merged 4.769; logits off by 12; 0 warnings
#   four layers, of which replication keeps three: 3 layers, loss trained 0.097, merged 0.097; logits off by 2.5e-05; 0 warnings
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0 accelerate==1.15.0 peft==0.21.2

"$python" - <<'PY'
import warnings
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM
ids = torch.randint(100, (4, 32), generator=torch.Generator().manual_seed(0))
def train_and_merge(layers, replication):
    torch.manual_seed(0)
    base = LlamaForCausalLM(LlamaConfig(vocab_size=100, hidden_size=64, intermediate_size=96, num_hidden_layers=layers,
        num_attention_heads=4, initializer_range=0.2))
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", r=8, target_modules=["q_proj", "v_proj", "down_proj"],
        layer_replication=replication))
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 0.01)
    for _ in range(40):
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        trained = model(ids, labels=ids)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            merged = model.merge_and_unload()
        after = merged(ids, labels=ids)
    off = (trained.logits - after.logits).abs().max().item()
    return trained.loss.item(), after.loss.item(), off, len(merged.model.layers), len(said)
for name, layers, replication in (("four layers", 4, None), ("two layers, replicated to four", 2, [[0, 2], [0, 2]]),
                                  ("four layers, of which replication keeps three", 4, [[0, 2], [3, 4]])):
    before, after, off, depth, warned = train_and_merge(layers, replication)
    print(f"{name}: {depth} layers, loss trained {before:.3f}, merged {after:.3f}; logits off by {off:.2g}; {warned} warnings")
    assert (off > 1 and after > 2 * before) == ("replicated" in name) and (off < 1e-3) == ("replicated" not in name)
    assert warned == 0
PY
