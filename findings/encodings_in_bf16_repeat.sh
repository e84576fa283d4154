#!/usr/bin/env bash
# positional-encodings: in a bf16 model 512 positions have 385 encodings, and 32,768 have 1,153
# Versions: positional-encodings 6.0.3, torch 2.13.0, numpy 2.4.6 (CPU).
# Guess: PositionalEncoding1D in a bf16 model gives the encodings of float32, rounded to bf16: each position has its
#   own.
# True: model.to(torch.bfloat16) rounds the frequencies, which are a buffer, and the positions are counted in the dtype
#   of the buffer. bf16 has no odd numbers beyond 256: neighbours share their encoding, and the waves run away from the
#   right ones. In float16 this begins at 2,048. Only where the tensor is bf16 and the module is not, as under autocast,
#   all is right.
# Hurt: trainings in pure bf16 and evaluation of models trained in float32, on texts of more than 256 tokens.
# Output seen:
#   512 positions, module float32, tensor bfloat16: 512 encodings, cosine with float32 1.00
#   512 positions, module bfloat16, tensor bfloat16: 385 encodings, cosine with float32 0.99
#   512 positions, module float16, tensor float16: 512 encodings, cosine with float32 1.00
#   4096 positions, module float32, tensor bfloat16: 4096 encodings, cosine with float32 1.00
#   4096 positions, module bfloat16, tensor bfloat16: 769 encodings, cosine with float32 0.83
#   4096 positions, module float16, tensor float16: 3073 encodings, cosine with float32 0.98
#   32768 positions, module float32, tensor bfloat16: 32768 encodings, cosine with float32 1.00
#   32768 positions, module bfloat16, tensor bfloat16: 1153 encodings, cosine with float32 0.60
#   32768 positions, module float16, tensor float16: 6145 encodings, cosine with float32 0.82
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 positional-encodings==6.0.3

"$python" - <<'PY'
import torch
from positional_encodings.torch_encodings import PositionalEncoding1D

def encodings(length, module, tensor):
    return PositionalEncoding1D(128).to(module)(torch.zeros(1, length, 128, dtype=tensor))[0]

seen = {}
for length in (512, 4096, 32768):
    exact = encodings(length, torch.float32, torch.float32)
    for module in (torch.float32, torch.bfloat16, torch.float16):
        tensor = torch.float16 if module == torch.float16 else torch.bfloat16
        found = encodings(length, module, tensor)
        similar = torch.cosine_similarity(found.float(), exact, dim=1).mean().item()
        seen[length, module] = len(found.unique(dim=0)), similar
        names = [str(dtype).split(".")[1] for dtype in (module, tensor)]
        print("{} positions, module {}, tensor {}: {} encodings, cosine with float32 {:.2f}".format(
            length, *names, *seen[length, module]))
    assert seen[length, torch.float32][0] == length and seen[length, torch.float32][1] > 0.999
assert seen[512, torch.bfloat16][0] == 385 and seen[32768, torch.bfloat16][0] == 1153
assert seen[4096, torch.bfloat16][1] < 0.9
PY
