#!/usr/bin/env bash
# x-transformers: with an end token in a prompt, also as its padding, the answer consists of padding alone
# Versions: x-transformers 2.31.10, torch 2.13.0 (CPU; an untrained decoder, greedy, six new tokens).
# Guess: generate(..., eos_token=2) ends an answer at the first end token that the model writes. A prompt that holds
#   one, as GPT-2's texts begin with it and few-shot examples are joined by it, is answered as without the option.
# True: the end token is searched in prompt and answer together. Such a prompt counts as finished: all of its answer is
#   replaced by pad_value, and alone it stops after one token. If the end token is the pad_value, too, the left padding
#   of shorter prompts is enough: in a batch of unequal prompts only the longest has an answer.
# Hurt: evaluations by answers, in batches and with few-shot prompts: the answers read as empty ones.
# Output seen:
#   without eos_token: [34, 27, 27, 27, 27, 27] [27, 36, 23, 36, 23, 36] [20, 36, 26, 36, 51, 16]
#   eos_token=2, the second prompt begins with it: [34, 27, 27, 27, 27, 27] [0, 0, 0, 0, 0, 0] [20, 36, 26, 36, 51, 16]
#   the second prompt alone: [0]
#   unequal prompts, pad_value=0: [34, 27, 27, 27, 27, 27] [36, 51, 41, 20, 36, 51] [44, 27, 36, 51, 41, 20]
#   unequal prompts, pad_value=2: [34, 27, 27, 27, 27, 27] [2, 2, 2, 2, 2, 2] [2, 2, 2, 2, 2, 2]
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 x-transformers==2.31.10

"$python" - <<'PY'
import torch
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

torch.manual_seed(0)
net = TransformerWrapper(num_tokens=64, max_seq_len=128,
                         attn_layers=Decoder(dim=64, depth=2, heads=4, rotary_pos_emb=True))
prompts = torch.randint(4, 64, (3, 8))
prompts[1, 0] = 2                                              # begins with the end token, as GPT-2's texts
uneven = [prompts[0], prompts[2, :5], prompts[2, :6]]          # no end token in them

def answers(prompts, pad_value, **options):
    return AutoregressiveWrapper(net, pad_value=pad_value).generate(prompts, 6, temperature=0., **options).tolist()

free = answers(prompts, 0)
stopped = answers(prompts, 0, eos_token=2)
alone = answers(prompts[1:2], 0, eos_token=2)
assert all(2 not in row for row in free)                       # the model writes no end token
for name, rows in (("without eos_token", free), ("eos_token=2, the second prompt begins with it", stopped),
                   ("the second prompt alone", alone)):
    print(f"{name}: {' '.join(map(str, rows))}")
short = {pad: answers(uneven, pad, eos_token=2) for pad in (0, 2)}
for pad, rows in short.items():
    print(f"unequal prompts, pad_value={pad}: {' '.join(map(str, rows))}")
assert stopped == [free[0], [0] * 6, free[2]] and alone == [[0]]
assert all(2 not in row for row in short[0]) and short[2] == [short[0][0], [2] * 6, [2] * 6]
PY
