#!/usr/bin/env bash
# With the cache of the turn before, Mamba, Mamba 2, Falcon Mamba and Jamba answer another text
# Versions: transformers 5.24.0, torch 2.13.0 (random small models, 40 + 5 tokens, then 3 new ones).
# Guess: generate(text, cache=cache) of a second turn has the tokens of generate(text), as documented for
#   chats, or a model whose cache cannot do this refuses. Speculative decoding is refused for these models.
# True: the selective scan of Mamba 1 (Mamba, Falcon Mamba, Jamba) takes the state for a single token only: a piece of
#   several tokens starts from zero. A cache without attention has no length, so that generate feeds a pure Mamba the
#   whole text again, on top of the state that has it: Mamba 2 too, whose scan takes a state. prefill_chunk_size does
#   the same to Jamba. Falcon H1 and OLMo Hybrid are right.
# Hurt: chats, prefixes that are computed once, and long prompts read in pieces.
# Output seen:
#   mamba: with the cache of the first turn 10% of 20 second answers are the same
#   falcon_mamba: with the cache of the first turn 25% of 20 second answers are the same
#   mamba2: with the cache of the first turn 55% of 20 second answers are the same
#   jamba: with the cache of the first turn 5% of 20 second answers are the same, with a prompt in pieces of 16 15%
#   falcon_h1: with the cache of the first turn 100% of 20 second answers are the same, with a prompt in pieces of 16 100%
#   olmo_hybrid: with the cache of the first turn 100% of 20 second answers are the same, with a prompt in pieces of 16 100%
#   llama: with the cache of the first turn 95% of 20 second answers are the same, with a prompt in pieces of 16 100%
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0

"$python" - <<'PY'
import torch
from transformers import AutoModelForCausalLM, CONFIG_MAPPING
def config(name, **options):
    return CONFIG_MAPPING[name](vocab_size=99, hidden_size=64, num_hidden_layers=2, pad_token_id=0, bos_token_id=1,
        eos_token_id=None, **options)
attention = dict(intermediate_size=96, num_attention_heads=4, num_key_value_heads=2)
heads = dict(mamba_n_heads=8, mamba_d_head=16, mamba_n_groups=1, mamba_d_state=16, mamba_chunk_size=8)
configs = (
    config("mamba", state_size=16, time_step_rank=8),
    config("falcon_mamba", state_size=16, time_step_rank=8),
    config("mamba2", num_heads=8, head_dim=16, expand=2, n_groups=1, state_size=16, chunk_size=8),
    config("jamba", num_experts=4, attn_layer_period=2, attn_layer_offset=1, mamba_dt_rank=8, mamba_d_state=16,
           use_mamba_kernels=False, **attention),
    config("falcon_h1", head_dim=16, mamba_d_ssm=128, **attention, **heads),
    config("olmo_hybrid", **attention),
    config("llama", **attention))
for small in configs:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(small).eval()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.3)
    first, new = torch.randint(3, 90, (20, 40)), torch.randint(3, 90, (20, 3))
    def generate(text, tokens, **options):
        return model.generate(text, max_new_tokens=tokens, do_sample=False, return_dict_in_generate=True, **options)
    turn = generate(first, 5)
    text = torch.cat([turn.sequences, new], 1)
    alone = generate(text, 20).sequences
    def share(**options):
        return (generate(text, 20, **options).sequences == alone).all(1).float().mean().item()
    same = share(cache=turn.cache)
    line = f"{small.model_type}: with the cache of the first turn {same:.0%} of 20 second answers are the same"
    right = small.model_type in ("falcon_h1", "olmo_hybrid", "llama")
    if right or small.model_type == "jamba":
        pieces = share(prefill_chunk_size=16)
        line += f", with a prompt in pieces of 16 {pieces:.0%}"
        assert pieces > 0.85 if right else pieces < 0.7
    print(line)
    assert same > 0.85 if right else same < 0.7
PY
