#!/usr/bin/env bash
# torchtune's Gemma 2 caps hidden states for logits, with the two caps exchanged, and generates with the wrong window
# Versions: torchtune 0.6.1, torchao 0.14.1, torch 2.13.0, transformers 5.24.0 (CPU; a random Gemma 2 of 2 layers,
#   window 8).
# Guess: weights converted with gemma2_hf_to_tune give the logits of transformers, in training and in generate().
# True: three faults, no message. Gemma2FinalNorm caps the normed hidden states, where Gemma 2 caps the logits: they
#   are not capped. gemma2_2b, _9b and _27b pass 30 for attention and 50 for the end, where Gemma 2 has 50 and 30. And
#   the window of Gemma2Attention is a band from the top left corner (triu and tril of the mask's shape). The one query
#   of a step with the cache is row 0: half of the layers see the first 4,096 places of the text, and from there on
#   none of the last ones.
# Hurt: Gemma 2 fine-tuned or evaluated in torchtune: probabilities, perplexities and distillation; answers beyond
#   4,096 tokens; fine-tuned weights that go back to a library with the right caps.
# Output seen:
#   gemma2_2b, gemma2_9b, gemma2_27b: cap 30 in attention, 50 at the end; transformers' Gemma2Config: 50, 30
#   torchtune with the caps of its builders: logits off by 33 %, the largest 123.7 for 30.0
#   torchtune with caps 50 and 30: logits off by 30 %, the largest 119.3 for 30.0
#   torchtune with caps 50 and 30, the second one on the logits: logits off by 0 %, the largest 30.0 for 30.0
#   the same with the cache, prompt of 8: token 9 to 40 off by 45 %
#   tokens before it that token 30 sees in the first layer: 23 to 29 in the whole text, 1 to 8 with the cache
. "$(dirname "$0")/common.sh"
venv torchtune==0.6.1 torchao==0.14.1 torch==2.13.0 transformers==5.24.0 numpy==2.4.6

"$python" - <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
import torch
from torchtune.models.gemma2 import gemma2, gemma2_2b, gemma2_9b, gemma2_27b
from torchtune.models.gemma2._convert_weights import gemma2_hf_to_tune
from transformers import Gemma2Config, Gemma2ForCausalLM
caps = set()
for builder in (gemma2_2b, gemma2_9b, gemma2_27b):
    with torch.device("meta"):
        model = builder()
    caps.add((model.layers[0].attn.softcapping, model.norm.capping_value))
(attention_cap, final_cap), = caps
config = Gemma2Config(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                      num_key_value_heads=1, head_dim=16, query_pre_attn_scalar=16, sliding_window=8,
                      initializer_range=0.5)
print(f"gemma2_2b, gemma2_9b, gemma2_27b: cap {attention_cap:.0f} in attention, {final_cap:.0f} at the end; "
      f"transformers' Gemma2Config: {config.attn_logit_softcapping:.0f}, {config.final_logit_softcapping:.0f}")
torch.manual_seed(0)
right_model = Gemma2ForCausalLM(config).eval()
right_model.model.norm.weight.data.fill_(7)                    # logits that reach the cap
weights = gemma2_hf_to_tune(right_model.state_dict(), num_heads=2, num_kv_heads=1, dim=32, head_dim=16)

def make(attention_cap, final_cap):
    model = gemma2(vocab_size=64, num_layers=2, num_heads=2, head_dim=16, num_kv_heads=1, embed_dim=32,
                   intermediate_dim=64, max_seq_len=64, sliding_window_size=8, hidden_capping_value=attention_cap,
                   final_capping_value=final_cap)
    model.load_state_dict(weights, strict=False)               # the output weight, which is tied, stands there twice
    return model.eval()

torch.set_grad_enabled(False)
tokens = torch.randint(1, 64, (1, 40))
right = right_model(tokens).logits.double()

def compare(name, logits):
    off = ((logits.double() - right).abs().mean() / right.abs().mean()).item()
    largest = logits.max().item()
    print(f"torchtune with {name}: logits off by {100 * off:.0f} %, the largest {largest:.1f} for {right.max():.1f}")
    return off, largest

seen = [compare("the caps of its builders", make(attention_cap, final_cap)(tokens)),
        compare("caps 50 and 30", make(50, 30)(tokens))]
model = make(50, 30)
model.norm.logit_capping = torch.nn.Identity()                 # and the cap where it belongs
whole = 30 * torch.tanh(model(tokens) / 30)
seen.append(compare("caps 50 and 30, the second one on the logits", whole))
assert seen[0][0] > 0.1 and seen[0][1] > 35 and seen[1][0] > 0.1 and seen[1][1] > 35 and seen[2][0] < 1e-4
assert (attention_cap, final_cap) == (30, 50)
mask, places = torch.tril(torch.ones(1, 64, 64, dtype=torch.bool)), torch.arange(64)[None]
model.setup_caches(batch_size=1, dtype=torch.float32, decoder_max_seq_len=64)
pieces = [(0, 8)] + [(i, i + 1) for i in range(8, 40)]         # masks and places as generate() gives them
cached = torch.cat([model(tokens[:, a:b], mask=mask[:, a:b], input_pos=places[:, a:b]) for a, b in pieces], 1)
off = ((30 * torch.tanh(cached / 30) - whole)[:, 8:].abs().mean() / whole[:, 8:].abs().mean()).item()
print(f"the same with the cache, prompt of 8: token 9 to 40 off by {100 * off:.0f} %")

x = torch.randn(1, 40, 32)

def output(x, cached):                                         # of the first layer at token 30
    layer = make(50, 30).layers[0].attn
    if not cached:
        return layer(x, x, input_pos=places[:, :40])[:, 29]
    layer.setup_cache(1, torch.float32, 64)
    for a, b in ((0, 29), (29, 30)):
        last = layer(x[:, a:b], x[:, a:b], mask=mask[:, a:b], input_pos=places[:, a:b])[:, -1]
    return last

def seen_keys(cached):
    changed = [x + 3 * (torch.arange(40) == i)[:, None] for i in range(29)]
    keys = [i for i in range(29) if (output(changed[i], cached) - output(x, cached)).abs().max() > 1e-9]
    assert keys == list(range(keys[0], keys[-1] + 1))
    return f"{keys[0] + 1} to {keys[-1] + 1}"

spans = seen_keys(False), seen_keys(True)
print("tokens before it that token 30 sees in the first layer: {} in the whole text, {} with the cache".format(*spans))
assert off > 0.1 and spans == ("23 to 29", "1 to 8")
PY
