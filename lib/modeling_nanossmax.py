"""
nanoSSMax for transformers: q is multiplied by s f(n) + b, n being the number of keys that it sees,
and f(n) log n or learned for each n. A factor that is blind to n is b, with s = 0.

It builds on Qwen3, whose layers may see a window of recent keys only (`layer_types` in
config.json). Layers that see all keys may be without position (`global_rope` false).

hf.py writes this file into an exported folder where transformers has no class of its own for the
model. Load it with AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).
"""
import torch
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3Attention,
    apply_rotary_pos_emb,
    eager_attention_forward,
)


class NanoSSMaxConfig(Qwen3Config):
    model_type = "nanossmax"
    ssmax_length = 0  # how many n f is learned for; 0: it is log n
    qk_norm = False
    global_rope = True  # RoPE also in the layers that see all keys


class NanoSSMaxAttention(Qwen3Attention):
    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        # of no meaning until the weights are loaded
        self.s = nn.Parameter(torch.ones(config.num_attention_heads))
        self.b = nn.Parameter(torch.zeros(config.num_attention_heads))
        if config.ssmax_length:
            self.p_n = nn.Parameter(torch.ones(config.ssmax_length))
        if not config.qk_norm:
            self.q_norm = self.k_norm = nn.Identity()
        self.rotates = config.global_rope or self.sliding_window is not None

    def forward(self, hidden_states, position_embeddings=None, attention_mask=None,
                past_key_values=None, position_ids=None, **kwargs):
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        q = self.q_norm(self.q_proj(hidden_states).view(shape)).transpose(1, 2)
        k = self.k_norm(self.k_proj(hidden_states).view(shape)).transpose(1, 2)
        v = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        if self.rotates:
            q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
        # padding on the left has no position, generate counts behind it: n is position + 1.
        # p_n fails beyond the length that it was learned at
        f = self.p_n[position_ids] if self.config.ssmax_length else (position_ids + 1).float().log()
        # as in model.py: in fp32, behind RoPE, cast once
        scale = self.s.float()[:, None] * f[:, None] + self.b.float()[:, None]
        q = (q * scale[..., None]).to(v.dtype)
        # keys are cached turned and without the factor, which is the query's alone
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward)
        y, weights = attend(self, q, k, v, attention_mask, dropout=0.0, scaling=self.scaling,
                            sliding_window=self.sliding_window, **kwargs)
        return self.o_proj(y.reshape(*hidden_states.shape[:-1], -1)), weights


class NanoSSMaxForCausalLM(Qwen3ForCausalLM):
    config_class = NanoSSMaxConfig

    def __init__(self, config):
        super().__init__(config)
        for layer_idx, layer in enumerate(self.model.layers):
            layer.self_attn = NanoSSMaxAttention(config, layer_idx)
        self.post_init()


# save_pretrained copies this file beside the weights
NanoSSMaxConfig.register_for_auto_class()
NanoSSMaxForCausalLM.register_for_auto_class("AutoModelForCausalLM")
