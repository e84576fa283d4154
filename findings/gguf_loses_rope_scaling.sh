#!/usr/bin/env bash
# transformers reads a GGUF file of Llama 3.1, or of a model with YaRN, without its RoPE scaling
# Versions: transformers 5.24.0, gguf 0.19.0, torch 2.13.0 (random small models, written as llama.cpp's converter does).
# Guess: from_pretrained(gguf_file=...) gives the model that was converted: the file has all that llama.cpp needs, and
#   transformers has these types of RoPE. What it could not read, it would refuse or warn about.
# True: the tensor rope_freqs.weight, which holds Llama 3.1's scaling, is dropped, and so are the keys rope.scaling.*
#   (linear, YaRN) of all models but gpt-oss. The model has rope_type "default". Nothing is printed at the default
#   verbosity.
# Hurt: evaluation and fine-tuning from GGUF files: every position is rotated by wrong frequencies, most of all in
#   long texts.
# Output seen:
#   default: largest logit 3.1, off by 0; read as {'rope_theta': 10000.0, 'rope_type': 'default'}
#   llama3: largest logit 3.4, off by 2.2; read as {'rope_theta': 10000.0, 'rope_type': 'default'}
#   yarn: largest logit 3.2, off by 2.7; read as {'rope_theta': 10000.0, 'rope_type': 'default'}
#   linear: largest logit 3.3, off by 2.4; read as {'rope_theta': 10000.0, 'rope_type': 'default'}
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0 accelerate==1.15.0 gguf==0.19.0

TQDM_DISABLE=1 TRANSFORMERS_VERBOSITY=warning "$python" - "$work" <<'PY'
import sys
import gguf
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
theta, dim, heads = 1e4, 32, 2
def write(path, model, rope):
    config, file = model.config, gguf.GGUFWriter(path, "llama")
    file.add_context_length(config.max_position_embeddings)
    file.add_embedding_length(config.hidden_size)
    file.add_feed_forward_length(config.intermediate_size)
    file.add_block_count(config.num_hidden_layers)
    file.add_head_count(heads)
    file.add_head_count_kv(heads)
    file.add_layer_norm_rms_eps(config.rms_norm_eps)
    file.add_rope_dimension_count(dim)
    file.add_rope_freq_base(theta)
    file.add_vocab_size(config.vocab_size)
    file.add_tokenizer_model("gpt2")
    file.add_token_list([f"token{i}" for i in range(config.vocab_size)])
    if rope["rope_type"] == "llama3":
        plain = theta ** (-torch.arange(0, dim, 2) / dim)
        file.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq).numpy())
    if rope["rope_type"] in ("yarn", "linear"):
        file.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        file.add_rope_scaling_factor(rope["factor"])
        file.add_rope_scaling_orig_ctx_len(64)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if "q_proj" in name or "k_proj" in name:  # llama.cpp rotates neighbours
            weight = weight.view(heads, 2, dim // 2, -1).transpose(1, 2).reshape(weight.shape)
        file.add_tensor(names.get_name(name, try_suffixes=(".weight",)), weight.contiguous().numpy())
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
off = {}
scaled = {"original_max_position_embeddings": 64, "factor": 4.0}
for rope in ({"rope_type": "default"},
             {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **scaled},
             {"rope_type": "yarn", **scaled},
             {"rope_type": "linear", "factor": 4.0}):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=100, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=heads, initializer_range=0.1, rope_parameters={"rope_theta": theta, **rope},
        max_position_embeddings=256)).eval()
    ids = torch.randint(3, 100, (1, 200))
    write(f"{sys.argv[1]}/model.gguf", model, rope)
    loaded = AutoModelForCausalLM.from_pretrained(sys.argv[1], gguf_file="model.gguf").eval()
    with torch.no_grad():
        logits, read = model(ids).logits, loaded(ids).logits
    name = rope["rope_type"]
    off[name] = (logits - read).abs().max().item()
    print(f"{name}: largest logit {logits.abs().max():.1f}, off by {off[name]:.2g}; read as",
          dict(sorted(loaded.config.rope_parameters.items())))
assert off.pop("default") < 1e-4 and min(off.values()) > 0.5
PY
