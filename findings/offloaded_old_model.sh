#!/usr/bin/env bash
# A model offloaded to a folder that an earlier model used runs with the earlier model's weights
# Versions: accelerate 1.15.0, transformers 5.24.0, torch 2.13.0 (two random small Llamas of the same shape).
# Guess: dispatch_model and disk_offload write the weights of the model that they are given into the folder, over
#   what is there.
# True: if the folder has an index.json, nothing is written, and the offloaded layers are read from the old files.
#   With disk_offload the second model is wholly the first one. With dispatch_model it is a mixture of both. The one
#   hint is half a sentence in the documentation of disk_offload: a folder "where the weights are already offloaded".
# Hurt: evaluations of several checkpoints with one offload folder: they all have the results of the first one.
# Output seen:
#   disk_offload: losses of models 0 and 1 before [5.5128, 4.9343], offloaded to one folder [5.5128, 5.5128]
#   dispatch_model: losses of models 0 and 1 before [5.5128, 4.9343], offloaded to one folder [5.5128, 4.8457]
#   disk_offload, a folder for each: losses of models 0 and 1 before [5.5128, 4.9343], offloaded [5.5128, 4.9343]
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0 accelerate==1.15.0

"$python" - "$work" <<'PY'
import sys
import torch
from accelerate import disk_offload, dispatch_model
from transformers import LlamaConfig, LlamaForCausalLM
ids = torch.arange(3, 40)[None]
parts = {"model.embed_tokens": "cpu", "model.layers": "disk", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "disk"}
ways = {"disk_offload": lambda model, folder: disk_offload(model, folder, execution_device="cpu"),
    "dispatch_model": lambda model, folder: dispatch_model(model, parts, main_device="cpu", offload_dir=folder)}
def losses(way, folders):
    before, offloaded = [], []
    for seed, folder in enumerate(folders):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig(vocab_size=100, hidden_size=32, intermediate_size=32,
            num_hidden_layers=2, num_attention_heads=4, initializer_range=0.2)).eval()
        with torch.no_grad():
            before.append(round(model(ids, labels=ids).loss.item(), 4))
            model = ways[way](model, f"{sys.argv[1]}/{folder}")
            offloaded.append(round(model(ids, labels=ids).loss.item(), 4))
    return before, offloaded
one = {}
for way in ways:
    before, one[way] = losses(way, (way, way))
    print(f"{way}: losses of models 0 and 1 before {before}, offloaded to one folder {one[way]}")
_, two = losses("disk_offload", ("first", "second"))
print(f"disk_offload, a folder for each: losses of models 0 and 1 before {before}, offloaded {two}")
assert two == before and one["disk_offload"] == [before[0]] * 2
assert one["dispatch_model"][0] == before[0] and abs(one["dispatch_model"][1] - before[1]) > 0.05
PY
