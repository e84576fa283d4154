#!/usr/bin/env bash
# ring-attention-pytorch counts a window in whole blocks: with one of 256 every 512th token sees itself alone
# Versions: ring-attention-pytorch 0.5.20, einops 0.8.2, torch 2.13.0 (CPU, one process; 2,048 random vectors).
# Guess: max_lookback_seq_len=256 lets each token see 256 tokens before it, as a window does, and bucket_size is only the
#   size of the blocks in which the attention is computed.
# True: the window is max_lookback_seq_len // bucket_size blocks before the token's own one. The default of bucket_size
#   is 512, and so a window of 256 is no block: a token sees the beginning of its block, and nothing before it. The
#   first one sees itself alone, the last one 511 others. A window of 1,000 is one of 512 to 1,023. With
#   force_regular_attn=True, which one takes to compare with, the window is ignored. No combination warns.
# Hurt: training and evaluation with windows on a CPU: perplexities depend on bucket_size, and texts are cut to pieces.
# Output seen:
#   window 256, bucket_size 512: tokens seen before token 1023: 511, 1024: 0, 1025: 1, 1300: 276
#   window 256, bucket_size 256: tokens seen before token 1023: 511, 1024: 256, 1025: 257, 1300: 276
#   window 256, bucket_size 64: tokens seen before token 1023: 319, 1024: 256, 1025: 257, 1300: 276
#   window 1000, bucket_size 512: tokens seen before token 1023: 1023, 1024: 512, 1025: 513, 1300: 788
#   window 256, force_regular_attn: tokens seen before token 1023: 1023, 1024: 1024, 1025: 1025, 1300: 1300
. "$(dirname "$0")/common.sh"
venv ring-attention-pytorch==0.5.20 einops==0.8.2 torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import torch
from ring_attention_pytorch import RingAttention

torch.manual_seed(0)
text = torch.randn(1, 2048, 32)
places = 1023, 1024, 1025, 1300

def seen_before(window, **options):
    attention = RingAttention(32, dim_head=16, heads=2, causal=True, max_lookback_seq_len=window, **options)
    counts = []
    for place in places:
        tokens = text.clone().requires_grad_()
        attention(tokens)[0, place].sum().backward()           # a token that is not seen has no gradient
        counts.append((tokens.grad[0] != 0).any(-1)[:place].sum().item())
    return counts

counts = {}
for window, options in ((256, {"bucket_size": 512}), (256, {"bucket_size": 256}), (256, {"bucket_size": 64}),
                        (1000, {"bucket_size": 512}), (256, {"force_regular_attn": True})):
    name = ", ".join(f"{key} {value}" for key, value in options.items()).replace(" True", "")
    counts[window, name] = seen_before(window, **options)
    print(f"window {window}, {name}: tokens seen before token",
          ", ".join(f"{place}: {count}" for place, count in zip(places, counts[window, name])))
assert counts[256, "bucket_size 512"] == [511, 0, 1, 276] == seen_before(256)
assert counts[256, "force_regular_attn"] == list(places) and counts[1000, "bucket_size 512"] == [1023, 512, 513, 788]
PY
