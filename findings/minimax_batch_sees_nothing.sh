#!/usr/bin/env bash
# In a batch with left padding, MiniMax's full attention sees nothing for the shorter prompts after the first new token
# Versions: transformers 5.24.0, torch 2.13.0 (random small models, greedy, sdpa, padding on the left with its mask).
# Guess: generate gives a prompt the same answer in a batch with left padding as alone. It is so for Llama and Jamba,
#   and for MiniMax if its first layer is full attention.
# True: if the first layer is linear, as in MiniMax-Text-01, the cache reports a length of 0. The mask of a step is then
#   made for one key, the first of the row; where this is padding, it hides all keys, and the full attention returns 0
#   (eager: the mean over the text and its padding). The first new token is right, and so is the longest prompt.
# Hurt: batched evaluations by answers: a prompt's answer depends on whether a neighbour is longer.
# Output seen:
#   llama: the short prompt's scores differ from those alone by 2.4e-06 at the first new token, by 3.2e-06 after it, the long one's by 3.8e-06; output of the short one's full attention after the first 6.1 to 7.6; length of the cache 35
#   jamba: the short prompt's scores differ from those alone by 1.3e-06 at the first new token, by 4.5e-06 after it, the long one's by 2.8e-06; output of the short one's full attention after the first 6.6 to 12; length of the cache 35
#   minimax, full attention first: the short prompt's scores differ from those alone by 2.1e-06 at the first new token, by 3e-06 after it, the long one's by 2.4e-06; output of the short one's full attention after the first 6.5 to 9.2; length of the cache 35
#   minimax, linear attention first: the short prompt's scores differ from those alone by 3.5e-06 at the first new token, by 6.1 after it, the long one's by 4e-06; output of the short one's full attention after the first 0 to 0; length of the cache 0
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0

"$python" - <<'PY'
import torch
from transformers import AutoConfig, AutoModelForCausalLM
torch.manual_seed(0)
prompts, pad = torch.randint(10, 100, (2, 30)), 11
mask = torch.ones(2, 30, dtype=torch.long)
mask[1, :pad] = 0
def scores(model, ids, mask):
    answer = model.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False, eos_token_id=None,
        pad_token_id=0, output_scores=True, return_dict_in_generate=True)
    return torch.stack(answer.scores, 1), answer.past_key_values.get_seq_length()
minimax = dict(block_size=16, num_local_experts=2, head_dim=16)
cases = {"llama": ("llama", {}),
    "jamba": ("jamba", dict(mamba_d_state=8, attn_layer_period=2, attn_layer_offset=1, num_experts=2, num_experts_per_tok=1)),
    "minimax, full attention first": ("minimax", dict(layer_types=["full_attention", "linear_attention"], **minimax)),
    "minimax, linear attention first": ("minimax", dict(layer_types=["linear_attention", "full_attention"], **minimax))}
for name, (kind, options) in cases.items():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, vocab_size=100, hidden_size=64,
        intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, **options)).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    last = []
    layer = next(layer for layer in model.model.layers if hasattr(getattr(layer, "self_attn", None), "o_proj"))
    layer.self_attn.o_proj.register_forward_pre_hook(lambda module, inputs: last.append(inputs[0][:, -1].norm(dim=-1)))
    batch, length = scores(model, prompts, mask)
    norms = torch.stack(last[1:])[:, 1]
    alone = [scores(model, prompts[:1], mask[:1])[0][0], scores(model, prompts[1:, pad:], mask[1:, pad:])[0][0]]
    off = [(batch[row] - alone[row]).abs().amax(-1) for row in (0, 1)]
    print(f"{name}: the short prompt's scores differ from those alone by {off[1][0]:.2g} at the first new token, by "
          f"{off[1][1:].max():.2g} after it, the long one's by {off[0].max():.2g}; output of the short one's full "
          f"attention after the first {norms.min():.2g} to {norms.max():.2g}; length of the cache {length}")
    wrong = name.endswith("linear attention first")
    assert off[0].max() < 1e-3 and off[1][0] < 1e-3 and (off[1][1:].max() > 1) == wrong == (length == 0)
    assert (norms == 0).all() if wrong else norms.min() > 1
PY
