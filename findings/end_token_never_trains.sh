#!/usr/bin/env bash
# With pad = eos in its config, a model never trains the embedding of the end token
# Versions: transformers 5.24.0, torch 2.13.0 (small Llama).
# Guess: pad_token_id says which labels and keys to leave out. With pad = eos, the usual choice where there is no
#   padding token, an end of text between two packed texts is still a token like others.
# True: the config's pad_token_id is the padding_idx of the embedding. Its row gets no gradient as an input, and a
#   model from random weights begins with 0 there: it reads each end of text as a vector of zeros, for ever. Loaded
#   weights stay as they are. pad_token_id set after the model is made does not do this.
# Hurt: pretraining on packed texts, and fine-tuning on a new end or turn token.
# Output seen:
#   no padding token: the end token's embedding has norm 0.12, and 10 updates move it by 0.14
#   pad of its own: the end token's embedding has norm 0.12, and 10 updates move it by 0.14
#   pad = eos: the end token's embedding has norm 0.00, and 10 updates move it by 0.00
#   pad = eos, loaded: the end token's embedding has norm 0.12, and 10 updates move it by 0.00
#   pad = eos, set later: the end token's embedding has norm 0.12, and 10 updates move it by 0.14
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0

"$python" - "$work" <<'PY'
import sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM
def new(pad):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=100, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=4, eos_token_id=2, pad_token_id=pad))
new(None).save_pretrained(sys.argv[1])
set_later = LlamaForCausalLM.from_pretrained(sys.argv[1])
set_later.config.pad_token_id = 2
cases = {"no padding token": new(None), "pad of its own": new(0), "pad = eos": new(2),
    "pad = eos, loaded": LlamaForCausalLM.from_pretrained(sys.argv[1], pad_token_id=2), "pad = eos, set later": set_later}
ids = torch.randint(3, 100, (4, 30))
ids[:, 10] = ids[:, 20] = 2  # three texts in a row
moved = {}
for name, model in cases.items():
    row = model.get_input_embeddings().weight[2]
    before = row.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
    for _ in range(10):
        optimizer.zero_grad()
        model(ids, labels=ids).loss.backward()
        optimizer.step()
    after = model.get_input_embeddings().weight[2].detach()
    moved[name] = before.norm().item(), (after - before).norm().item()
    print(f"{name}: the end token's embedding has norm {moved[name][0]:.2f}, and 10 updates move it by {moved[name][1]:.2f}")
assert moved["pad = eos"] == (0, 0) and moved["pad = eos, loaded"][1] == 0 < moved["pad = eos, loaded"][0]
assert min(moved[name][1] for name in ("no padding token", "pad of its own", "pad = eos, set later")) > 0.1
PY
