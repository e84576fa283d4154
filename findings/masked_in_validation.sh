#!/usr/bin/env bash
# x-transformers: mask_prob hides keys in eval mode, too: the validation loss is another one in each call, and too high
# Versions: x-transformers 2.31.10, torch 2.13.0 (CPU; a decoder learns to repeat 16 random tokens of 16 kinds).
# Guess: AutoregressiveWrapper(mask_prob=0.15) hides 15 % of the keys in training. Like dropout it is off after eval().
# True: the mask is drawn whenever the loss is computed. The trained model repeats each text without an error, and its
#   loss is 1.35, where 1.34, for the random half, is the lowest possible. In eval mode, under no_grad, it shows 1.53 to
#   1.55, from other masks in each call. generate() does not mask.
# Hurt: comparisons of runs with and without mask_prob, or with several of them, by the validation loss: the masked ones
#   look worse at the same quality; early stopping; perplexities.
# Output seen:
#   tokens of the second half that are predicted right: 100.0 %
#   validation loss, mask_prob=.15: 1.5509 1.5318 1.5338
#   the same model, mask_prob set to 0: 1.3534 1.3534 1.3534
#   the lowest possible: 1.3416
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 x-transformers==2.31.10

"$python" - <<'PY'
import math
import torch
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

torch.set_num_threads(1)
torch.manual_seed(0)

def texts(n, seed):
    half = torch.randint(0, 16, (n, 16), generator=torch.Generator().manual_seed(seed))
    return torch.cat([half, half], 1)

model = AutoregressiveWrapper(TransformerWrapper(num_tokens=16, max_seq_len=32, attn_layers=Decoder(
    dim=64, depth=2, heads=4, rotary_pos_emb=True)), mask_prob=0.15)
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
for step in range(350):
    model(texts(32, step)).backward()
    optimizer.step()
    optimizer.zero_grad()
validation = texts(256, 1000)
model.eval()
with torch.no_grad():
    shown = [model(validation).item() for _ in range(3)]
    right = (model.net(validation).argmax(-1)[:, 16:-1] == validation[:, 17:]).float().mean().item()
    model.mask_prob = 0.
    true = [model(validation).item() for _ in range(3)]
print(f"tokens of the second half that are predicted right: {right * 100:.1f} %")
print("validation loss, mask_prob=.15:", *(f"{loss:.4f}" for loss in shown))
print("the same model, mask_prob set to 0:", *(f"{loss:.4f}" for loss in true))
print(f"the lowest possible: {15 * math.log(16) / 31:.4f}")
assert right > 0.99 and max(true) - min(true) < 1e-6 and abs(true[0] - 15 * math.log(16) / 31) < 0.05
assert min(shown) > true[0] + 0.1 and max(shown) - min(shown) > 1e-3
PY
