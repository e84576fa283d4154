#!/usr/bin/env bash
# ring-attention-pytorch ignores the padding mask of a causal model: a text with padding before it has other logits
# Versions: ring-attention-pytorch 0.5.20, einops 0.8.2, torch 2.13.0 (CPU, one process; 4 layers, random weights).
# Guess: mask hides the padding from the text in any model, so that padding on the left changes nothing: positions are
#   relative (RoPE), and the package's models without causal=True give the same logits with and without padding.
# True: with causal=True the mask is set to None, and all tokens of the text attend to the padding before them. The
#   logits are exactly those of a call without a mask, in blocks and with force_regular_attn, too. Nothing warns.
# Hurt: batches of prompts of different lengths, padded on the left to read the answer from the last place: the result
#   of a text depends on the longest one in its batch.
# Output seen:
#   causal=True, 8 tokens of padding: logits off by 16.1 %, best token the same 73 %; as without a mask: True
#   causal=True, 32 tokens of padding: logits off by 31.4 %, best token the same 61 %; as without a mask: True
#   causal=True, 128 tokens of padding: logits off by 45.1 %, best token the same 45 %; as without a mask: True
#   causal=False, 8 tokens of padding: logits off by 0.0 %, best token the same 100 %; as without a mask: False
#   causal=False, 32 tokens of padding: logits off by 0.0 %, best token the same 100 %; as without a mask: False
#   causal=False, 128 tokens of padding: logits off by 0.0 %, best token the same 100 %; as without a mask: False
. "$(dirname "$0")/common.sh"
venv ring-attention-pytorch==0.5.20 einops==0.8.2 torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import torch
from ring_attention_pytorch import RingTransformer

texts = torch.randint(1, 256, (64, 32), generator=torch.Generator().manual_seed(0))
for causal in (True, False):
    for count in (8, 32, 128):
        padded = torch.cat([torch.zeros(64, count, dtype=torch.long), texts], 1)
        seen = []
        for regular in (False, True):
            torch.manual_seed(0)
            model = RingTransformer(num_tokens=256, dim=64, depth=4, causal=causal, dim_head=16, heads=4,
                                    bucket_size=16, ring_seq_size=16, force_regular_attn=regular).eval()
            with torch.no_grad():
                right = model(texts)[:, -1]
                masked = model(padded, mask=padded != 0)[:, -1]
                unmasked = model(padded)[:, -1]
            error = 100 * ((masked - right).norm() / right.norm()).item()
            same = 100 * (masked.argmax(-1) == right.argmax(-1)).double().mean().item()
            seen.append((error, same, torch.equal(masked, unmasked)))
        print("causal={}, {} tokens of padding: logits off by {:.1f} %, best token the same {:.0f} %; as without a "
              "mask: {}".format(causal, count, *seen[0]))
        for error, same, ignored in seen:
            assert ignored == causal and (error > 10 and same < 90 if causal else error < 1e-3 and same == 100)
PY
