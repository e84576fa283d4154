#!/usr/bin/env bash
# mlx-lm: LongRoPE (Phi-3, Phi-4-mini) takes the factors for long texts in short ones, too
# Versions: mlx-lm 0.32.2, mlx 0.32.4 (CPU), transformers 5.24.0, torch 2.13.0 (CPU; a random Phi-3).
# Guess: short_factor up to original_max_position_embeddings and long_factor beyond it, as in transformers and in the
#   description of the two arguments.
# True: short_factor is an argument that nothing reads. Beyond the original length the logits agree to four digits. Up to
#   it, where most prompts are, they are those of another RoPE.
# Hurt: Phi-3, Phi-3.5 and Phi-4-mini on Macs: quality at short length beside a 128k model of transformers, quantization
#   that is blamed for it, and LoRA trained in mlx-lm and used elsewhere.
# Output seen:
#   short and long factors, 40 tokens: largest logit 9.2, largest difference 11.8
#   short and long factors, 120 tokens: largest logit 12.3, largest difference 0.0
#   the long ones twice, 40 tokens: largest logit 10.3, largest difference 0.0
#   the long ones twice, 120 tokens: largest logit 12.3, largest difference 0.0
. "$(dirname "$0")/common.sh"
venv mlx-lm==0.32.2 mlx==0.32.4 mlx-cpu==0.32.4 transformers==5.24.0 torch==2.13.0 numpy==2.4.6

WORK="$work" "$python" - <<'PY'
import json
import os
from pathlib import Path
import mlx.core as mx
import numpy as np
import torch
from mlx_lm.utils import load_model
from transformers import Phi3Config, Phi3ForCausalLM

def model_with(folder, **factors):
    """Save a random Phi-3 that was trained on 64 tokens and stretched to 256. Return it and mlx-lm's."""
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 64, "rope_theta": 10000.0, **factors}
    torch.manual_seed(0)
    theirs = Phi3ForCausalLM(Phi3Config(
        vocab_size=100, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=256, original_max_position_embeddings=64, pad_token_id=0,
        rope_parameters=rope, initializer_range=0.3)).eval()
    theirs.save_pretrained(folder)
    path = Path(folder, "config.json")
    content = json.loads(path.read_text())
    del content["rope_parameters"]  # as in the published files, which are of transformers 4
    content |= {"rope_theta": 10000.0, "rope_scaling": {"type": "longrope", **factors}}
    path.write_text(json.dumps(content))
    return theirs, load_model(Path(folder))[0]

short = [1 + 0.01 * i for i in range(16)]
long = [1 + 3.0 * i for i in range(16)]
models = {"short and long factors": model_with(os.environ["WORK"] + "/a", short_factor=short, long_factor=long),
          "the long ones twice": model_with(os.environ["WORK"] + "/b", short_factor=long, long_factor=long)}
for name, (theirs, mlxs) in models.items():
    for T in (40, 120):
        ids = np.random.default_rng(0).integers(3, 100, (1, T))
        with torch.no_grad():
            wanted = theirs(torch.tensor(ids)).logits[0].numpy()
        difference = abs(wanted - np.array(mlxs(mx.array(ids)))[0]).max()
        print(f"{name}, {T} tokens: largest logit {abs(wanted).max():.1f}, largest difference {difference:.1f}")
        assert (difference > 1) == (name.startswith("short") and T < 64)
PY
