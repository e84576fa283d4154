#!/usr/bin/env bash
# mlx-lm reads files of transformers 5 for Llama, Mistral and Qwen 2.5 with another theta and without RoPE scaling
# Versions: mlx-lm 0.32.2, mlx 0.32.4 (CPU), transformers 5.24.0, torch 2.13.0 (CPU; random models).
# Guess: a model that was fine-tuned and saved with transformers is the same model in mlx-lm, or is refused.
# True: transformers 5 writes theta and the scaling into one entry, rope_parameters. from_dict of mlx-lm drops the
#   entries that a model's ModelArgs does not name. The newer models name it, Qwen 3 among them. Llama, Mistral, SmolLM
#   3, OLMo 2 and Seed-OSS do not, and run with the default of their class, 10,000, and without scaling; Qwen 2.5 and
#   Phi 3, whose default is right, lose the scaling alone. mlx_lm.convert hands it on. No message; a class without a
#   default raises an error. With rope_theta and rope_scaling written beside it, as transformers 4 did, all is right.
# Hurt: fine-tuned Llama 3, Mistral and Qwen 2.5 on a Mac; comparisons of the fine-tuned model with its base, whose
#   file is older and is read as it should be.
# Output seen:
#   Llama 3.1: logits differ by 31 %; with rope_theta and rope_scaling by 0 %
#   Mistral 0.3: logits differ by 32 %; with rope_theta and rope_scaling by 0 %
#   Qwen 2.5 with YaRN: logits differ by 22 %; with rope_theta and rope_scaling by 0 %
#   Qwen 3 with YaRN: logits differ by 0 %; with rope_theta and rope_scaling by 0 %
. "$(dirname "$0")/common.sh"
venv mlx-lm==0.32.2 mlx==0.32.4 mlx-cpu==0.32.4 transformers==5.24.0 torch==2.13.0 numpy==2.4.6

HF_HUB_DISABLE_PROGRESS_BARS=1 "$python" - "$work" <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
import json
import sys
from pathlib import Path
import mlx.core as mx
import numpy as np
import torch
from mlx_lm.utils import load_model
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config
mx.set_default_device(mx.cpu)
llama3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}
yarn = {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0, "original_max_position_embeddings": 32768}
plain = {"rope_type": "default", "rope_theta": 1000000.0}
tokens = np.random.default_rng(0).integers(64, size=(1, 96))
for name, Config, rope in (("Llama 3.1", LlamaConfig, llama3), ("Mistral 0.3", MistralConfig, plain),
                           ("Qwen 2.5 with YaRN", Qwen2Config, yarn), ("Qwen 3 with YaRN", Qwen3Config, yarn)):
    torch.manual_seed(0)
    config = Config(vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                    num_key_value_heads=2, head_dim=32, initializer_range=0.1, max_position_embeddings=131072,
                    sliding_window=None, rope_parameters=rope)
    model = AutoModelForCausalLM.from_config(config).eval()
    folder = Path(sys.argv[1]) / name
    model.save_pretrained(folder)
    with torch.no_grad():
        right = model(torch.tensor(tokens)).logits.numpy()

    def difference():
        logits = np.array(load_model(folder)[0](mx.array(tokens)))
        return np.abs(logits - right).mean() / np.abs(right).mean()

    as_saved = difference()
    file = folder / "config.json"
    values = json.loads(file.read_text())
    assert "rope_theta" not in values and "rope_scaling" not in values
    values.update(rope_theta=rope["rope_theta"], rope_scaling=None if rope is plain else rope)
    file.write_text(json.dumps(values))
    mended = difference()
    print(f"{name}: logits differ by {100 * as_saved:.0f} %; with rope_theta and rope_scaling by {100 * mended:.0f} %")
    assert mended < 1e-5 and (as_saved < 1e-5 if Config is Qwen3Config else as_saved > 0.1)
PY
