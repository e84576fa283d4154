#!/usr/bin/env bash
# litgpt refuses a prompt longer than the window, "use chunked prefill", and reads the chunks with the future in sight
# Versions: litgpt 0.5.13, lightning 2.6.6, torch 2.13.0 (CPU; Gemma-3-1b-it's settings, made small, window 16).
# Guess: a prompt read in chunks of at most the window, as the error tells one to, gives the logits of model(prompt).
# True: the window's cache is a ring of as many places as the window. From there on each token of a chunk sees the
#   whole ring: the later tokens of its chunk, too, which have moreover overwritten keys that it should see. The error
#   says that a larger prompt "silently violates causality"; so do chunks of 2. Only the first window and single tokens
#   are right.
# Hurt: Gemma 3 (window 512), Gemma 2, Mistral 7B v0.1 and Phi-3 in litgpt on longer prompts, if one follows the error.
# Output seen:
#   chunks of 32: Please use chunked prefill with chunk size <= 16 to avoid this issue.
#   chunks of 1: first 16 logits differ by 0.0, later ones by 0.0, best token the same 100 %; future seen: False
#   chunks of 2: first 16 logits differ by 0.0, later ones by 12.9, best token the same 35 %; future seen: True
#   chunks of 4: first 16 logits differ by 0.0, later ones by 12.4, best token the same 17 %; future seen: True
#   chunks of 16: first 16 logits differ by 0.0, later ones by 15.1, best token the same 4 %; future seen: True
. "$(dirname "$0")/common.sh"
venv litgpt==0.5.13 lightning==2.6.6 torch==2.13.0 numpy==2.4.6

"$python" - <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
import torch
from litgpt import GPT, Config

torch.manual_seed(0)
windows = [1, 1, 1, 1, 1, 0]                                   # 1: a layer with a window, as in Gemma 3
model = GPT(Config.from_name("Gemma-3-1b-it", n_layer=6, n_embd=64, n_head=4, head_size=16, intermediate_size=128,
                             vocab_size=64, padded_vocab_size=64, block_size=128, attention_scores_scalar=16,
                             sliding_window_size=16, sliding_window_indices=windows, rope_indices=windows)).eval()
for weight in model.parameters():
    if weight.dim() == 2:
        torch.nn.init.normal_(weight, std=0.2)
prompt = torch.randint(64, (1, 64))
changed = prompt.clone()
changed[0, 47] = (changed[0, 47] + 1) % 64

def read(tokens, size):
    model.set_kv_cache(1)
    chunks = [model(tokens[:, start:start + size], torch.arange(start, start + size), input_pos_maxp1=start + size)
              for start in range(0, 64, size)]
    return torch.cat(chunks, 1)[0]

seen = {}
with torch.no_grad():
    full = model(prompt)[0]
    try:
        read(prompt, 32)
    except ValueError as error:
        print("chunks of 32:", str(error)[str(error).index("Please"):])
    for size in (1, 2, 4, 16):
        logits = read(prompt, size)
        error = (logits - full).abs().amax(1)
        same = (logits.argmax(1) == full.argmax(1))[16:].double().mean().item()
        future = (logits - read(changed, size))[:47].abs().max().item() > 0.01
        seen[size] = error[:16].max().item(), error[16:].max().item(), 100 * same, future
        print("chunks of {}: first 16 logits differ by {:.1f}, later ones by {:.1f}, best token the same {:.0f} %; future "
              "seen: {}".format(size, *seen[size]))
assert max(seen[1][:2]) < 1e-3 and seen[1][2:] == (100, False)
assert all(seen[size][0] < 1e-3 and seen[size][1] > 5 and seen[size][2] < 50 and seen[size][3] for size in (2, 4, 16))
PY
