#!/usr/bin/env bash
# In a mixture of experts, torchao leaves the experts as they are
# Versions: torchao 0.18.0, transformers 5.24.0, accelerate 1.15.0, torch 2.13.0 (small random Mixtral and Llama), CPU.
# Guess: int8 for a model quantizes the matrices of its layers, of all kinds; those of the experts are most of Mixtral.
# True: version 5 of transformers keeps all experts of a layer in one parameter of three dimensions, and torchao looks
#   for nn.Linear. Only the attention and the head become int8, by quantize_ as by quantization_config. No warning.
# Hurt: tables of quality by number of bits (int8 or less seems to cost nothing), and whoever counts on the memory.
# Output seen:
#   Llama, quantize_: 100% of the numbers in the layers' matrices are int8
#   Llama, quantization_config: 100% of the numbers in the layers' matrices are int8
#   Mixtral, quantize_: 8% of the numbers in the layers' matrices are int8
#   Mixtral, quantization_config: 8% of the numbers in the layers' matrices are int8
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0 accelerate==1.15.0 torchao==0.18.0

"$python" - "$work" <<'PY'
import sys, tempfile
import torch
from torchao.quantization import Int8WeightOnlyConfig, quantize_
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM, TorchAoConfig
size = dict(vocab_size=100, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=4, eos_token_id=None)
models = {"Llama": LlamaForCausalLM(LlamaConfig(**size)), "Mixtral": MixtralForCausalLM(MixtralConfig(**size))}
share = {}
for name, model in models.items():
    folder = tempfile.mkdtemp(dir=sys.argv[1])
    model.bfloat16().save_pretrained(folder)
    by_config = type(model).from_pretrained(folder, dtype=torch.bfloat16,
        quantization_config=TorchAoConfig(Int8WeightOnlyConfig()))
    quantize_(model, Int8WeightOnlyConfig())
    for how, quantized in (("quantize_", model), ("quantization_config", by_config)):
        matrices = [(p.numel(), type(p.data) is not torch.Tensor)
            for key, p in quantized.named_parameters() if ".layers." in key and p.dim() > 1]
        share[name, how] = sum(n for n, is_int8 in matrices if is_int8) / sum(n for n, _ in matrices)
        print(f"{name}, {how}: {share[name, how]:.0%} of the numbers in the layers' matrices are int8")
assert share["Llama", "quantize_"] == share["Llama", "quantization_config"] == 1
assert max(share["Mixtral", "quantize_"], share["Mixtral", "quantization_config"]) < 0.1
PY
