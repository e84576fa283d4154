#!/usr/bin/env bash
# With peft's Lily adapter a token's logits depend on later tokens and on the rest of the batch
# Versions: peft 0.21.2, transformers 5.24.0, torch 2.13.0 (random small Llama, float32, eval mode).
# Guess: as with LoRA, an adapter of a linear layer works on each token by itself: the model stays causal, a batch equals
#   its rows, and decoding with the cache equals the whole pass. Lily's page calls its router data-dependent.
# True: the router's probabilities are averaged over all tokens of all rows of the batch, padding included, and the mean
#   mixes one matrix for all of them. A step with the cache averages over its own token alone.
# Hurt: training: the loss can fall far below what is possible, as the mean tells what comes later.
#   Evaluation: results depend on the batch, and generated text comes from another model than the one that was trained.
# Output seen:
#   LoRA: largest logit 7.4, changed by other tokens after it: 0, no second row: 0, the first tokens in the cache: 2.6e-06
#   LoRA: loss of a first token, which is one of eight at random: 2.27 (no model can have less than 2.08)
#   Lily: largest logit 5.3, changed by other tokens after it: 0.56, no second row: 3.6, the first tokens in the cache: 1.5
#   Lily: loss of a first token, which is one of eight at random: 0.15 (no model can have less than 2.08)
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0 peft==0.21.2 accelerate==1.15.0

"$python" - <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
import math
import torch
from peft import LilyConfig, LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM
modules = ["q_proj", "v_proj", "up_proj", "down_proj", "lm_head"]
def adapted(config):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, initializer_range=0.2))
    return get_peft_model(model, config)
def differences(model):
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.3)
    model.eval()
    ids = torch.randint(3, 100, (2, 12))
    other = ids.clone()
    other[:, 8:] = torch.randint(3, 100, (2, 4))
    with torch.no_grad():
        def logits(text, **settings):
            return model(input_ids=text, **settings).logits
        whole = logits(ids)
        cache = model(input_ids=ids[:, :8], use_cache=True).past_key_values
        changes = {"other tokens after it": (logits(other) - whole)[:, :8], "no second row": logits(ids[:1]) - whole[:1],
                   "the first tokens in the cache": logits(ids[:, 8:], past_key_values=cache) - whole[:, 8:]}
    return {name: change.abs().max().item() for name, change in changes.items()}, whole.abs().max().item()
def first_token_loss(model):
    model.train()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-2)
    losses = []
    for step in range(300):
        text = torch.full((4, 17), 1)  # after the start, one of eight tokens, 16 times
        text[:, 1:] = torch.randint(3, 11, (1,))
        loss = torch.nn.functional.cross_entropy(model(input_ids=text).logits[:, :1].flatten(0, 1), text[:, 1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-100:]) / 100
for name, config in (("LoRA", LoraConfig(target_modules=modules, r=8)), ("Lily", LilyConfig(target_modules=modules, r=8, num_B=4))):
    changes, largest = differences(adapted(config))
    print(f"{name}: largest logit {largest:.1f}, changed by", ", ".join(f"{what}: {change:.2g}" for what, change in changes.items()))
    loss = first_token_loss(adapted(config))
    print(f"{name}: loss of a first token, which is one of eight at random: {loss:.2f} (no model can have less than {math.log(8):.2f})")
    if name == "LoRA":
        assert max(changes.values()) < 1e-4 and loss > math.log(8)
    else:
        assert min(changes.values()) > 0.1 and loss < math.log(8) - 0.5
PY
