#!/usr/bin/env bash
# Trainer's weight decay pulls on attention sinks, Mamba's rates of decay, and norms with other names
# Versions: transformers 5.24.0, accelerate 1.15.0, torch 2.13.0 (random small models).
# Guess: biases, gains of norms and other parameters with one dimension have no weight decay in Trainer, whatever the
#   model.
# True: it leaves out nn.LayerNorm and names with "bias", "layernorm", "rmsnorm" or "norm" at the end. In Llama and
#   GPT-2 no vector decays. In GPT-OSS the sinks do, in Mamba 2 A_log, D and the last norm, norm_f; in DiffLlama the
#   lambdas, in RWKV the rates of time.
# Hurt: fine-tuning with weight_decay: a model is pulled towards other sinks and another memory, gradient or not.
# Output seen:
#   llama: vectors with weight decay: none
#   gpt2: vectors with weight decay: none
#   gpt_oss: vectors with weight decay: self_attn.sinks
#   mamba2: vectors with weight decay: mixer.A_log, mixer.D, norm_f.weight
#   diffllama: vectors with weight decay: self_attn.lambda_k1, self_attn.lambda_k2, self_attn.lambda_q1, self_attn.lambda_q2
#   rwkv: vectors with weight decay: attention.time_decay, attention.time_first, attention.time_mix_key, attention.time_mix_receptance, attention.time_mix_value, feed_forward.time_mix_key, feed_forward.time_mix_receptance
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0 accelerate==1.15.0

"$python" - "$work" <<'PY'
import sys
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments
size = dict(vocab_size=100, hidden_size=32, num_hidden_layers=2, bos_token_id=1, eos_token_id=2, pad_token_id=0)
attention = dict(num_attention_heads=4, num_key_value_heads=4, intermediate_size=32)
kinds = {"llama": attention, "gpt2": dict(num_attention_heads=4), "gpt_oss": {**attention, "head_dim": 8, "num_local_experts": 2},
    "mamba2": dict(num_heads=8, head_dim=8, n_groups=1, state_size=8), "diffllama": attention, "rwkv": {}}
decayed = {}
for kind, settings in kinds.items():
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **size, **settings))
    trainer = Trainer(model, TrainingArguments(sys.argv[1], report_to=[], use_cpu=True, weight_decay=0.1))
    groups = trainer.create_optimizer().param_groups
    vectors = {id(p) for group in groups if group["weight_decay"] for p in group["params"] if p.numel() == max(p.shape)}
    decayed[kind] = sorted({".".join(name.split(".")[-2:]) for name, p in model.named_parameters() if id(p) in vectors})
    print(f"{kind}: vectors with weight decay: {', '.join(decayed[kind]) or 'none'}")
assert not decayed["llama"] and not decayed["gpt2"] and decayed["gpt_oss"] == ["self_attn.sinks"]
assert {"mixer.A_log", "mixer.D", "norm_f.weight"} <= set(decayed["mamba2"])
assert "self_attn.lambda_q1" in decayed["diffllama"] and "attention.time_decay" in decayed["rwkv"]
PY
