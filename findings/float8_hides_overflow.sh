#!/usr/bin/env bash
# An infinite number becomes 448 when it is stored as float8
# Versions: torch 2.13.0, CPU.
# Guess: float8_e4m3fn has no infinity, so inf becomes NaN and an overflow is seen at the next check.
# True: inf and whatever is too large become 448. In e5m2 inf stays inf, and in e4m3fnuz it becomes NaN. An
#   overflow that went through e4m3fn passes each isfinite() after it.
# Hurt: float8 activations and caches: a broken layer gives finite, wrong logits.
# Output seen:
#   inf, -inf, 1e6, nan as torch.float8_e4m3fn: [448.0, -448.0, 448.0, nan]
#   inf, -inf, 1e6, nan as torch.float8_e5m2: [inf, -inf, inf, nan]
#   inf, -inf, 1e6, nan as torch.float8_e4m3fnuz: [nan, nan, nan, nan]
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6

"$python" - <<'PY'
import torch
values = torch.tensor([float("inf"), -float("inf"), 1e6, float("nan")])
stored = {dtype: values.to(dtype).float() for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz)}
for dtype, back in stored.items():
    print(f"inf, -inf, 1e6, nan as {dtype}: {back.tolist()}")
assert stored[torch.float8_e4m3fn][:3].tolist() == [448, -448, 448] and stored[torch.float8_e5m2][0].isinf()
assert stored[torch.float8_e4m3fnuz][0].isnan()
PY
