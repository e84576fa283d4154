"""
nanoSSMax for transformers: each query is multiplied by s f(n) + b. n is the number of keys that it
sees, and f(n) is log n or learned for each n. hf.py exports this file with a model for which
transformers has no class. (Qwen3's layers can be limited to a window: `layer_types`.)
"""
import torch
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3Model
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3Attention,
    apply_rotary_pos_emb,
    eager_attention_forward,
)


class NanoSSMaxConfig(Qwen3Config):
    model_type = "nanossmax"
    ssmax_length = 0  # number of n for which f(n) is learned; 0: f(n) is log n
    qk_norm = False  # normalize queries and keys, as Qwen3 does
    global_rope = True  # RoPE also in layers that see all keys
    learned = ()  # which of s and b are parameters, in layers that see all keys
    nanossmax_type = ""  # its attention_type in nanoSSMax, which hf.py import needs


class NanoSSMaxAttention(Qwen3Attention):
    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        for name in ("s", "b"):
            learned = name in config.learned and self.sliding_window is None
            # these values have no meaning until the weights are loaded
            numbers = torch.ones(config.num_attention_heads)
            setattr(self, name, nn.Parameter(numbers) if learned else nn.Buffer(numbers))
        if config.ssmax_length:
            # not trained here, because all layers have the same p_n
            self.p_n = nn.Buffer(torch.ones(config.ssmax_length))
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
        # n is position + 1, also with padding on the left: generate begins to count positions after
        # the padding.
        if self.config.ssmax_length:
            f = self.p_n[position_ids]  # positions beyond the learned p_n are an error
        else:
            f = (position_ids + 1).float().log()
        # after RoPE and in fp32, as in model.py (where RoPE is in fp32 as well)
        scale = self.s.float()[:, None] * f[:, None] + self.b.float()[:, None]
        q = (q * scale[..., None]).to(v.dtype)
        # keys are cached after RoPE; they have no factor, because only queries are multiplied
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward)
        y, weights = attend(self, q, k, v, attention_mask, dropout=0.0, scaling=self.scaling,
                            sliding_window=self.sliding_window, **kwargs)
        return self.o_proj(y.reshape(*hidden_states.shape[:-1], -1)), weights


class NanoSSMaxModel(Qwen3Model):
    config_class = NanoSSMaxConfig

    def __init__(self, config):
        super().__init__(config)
        for layer_idx, layer in enumerate(self.layers):
            layer.self_attn = NanoSSMaxAttention(config, layer_idx)
        self.post_init()


class NanoSSMaxForCausalLM(Qwen3ForCausalLM):
    config_class = NanoSSMaxConfig

    def __init__(self, config):
        super().__init__(config)
        self.model = NanoSSMaxModel(config)
        self.post_init()


# save_pretrained copies this file beside the weights
NanoSSMaxConfig.register_for_auto_class()
NanoSSMaxForCausalLM.register_for_auto_class("AutoModelForCausalLM")
