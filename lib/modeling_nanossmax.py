"""
nanoSSMax for transformers: q is multiplied by s f(n) + b, n being the number of keys that it sees.
Written into an exported folder by hf.py where transformers has no class of its own for it; load it
with AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).
"""
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaModel,
    LlamaRMSNorm,
    apply_rotary_pos_emb,
    eager_attention_forward,
)


class NanoSSMaxConfig(LlamaConfig):
    model_type = "nanossmax"
    ssmax_f = "log_n"  # log_n, constant (its value is in s and b) or p_n
    ssmax_length = 0  # of p_n
    qk_norm = False


class NanoSSMaxAttention(LlamaAttention):
    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        self.s = nn.Parameter(torch.ones(config.num_attention_heads))
        self.b = nn.Parameter(torch.zeros(config.num_attention_heads))
        self.p_n = nn.Parameter(torch.ones(config.ssmax_length)) if config.ssmax_length else None
        norm = LlamaRMSNorm if config.qk_norm else lambda *args: nn.Identity()
        self.q_norm = norm(self.head_dim, config.rms_norm_eps)
        self.k_norm = norm(self.head_dim, config.rms_norm_eps)

    def f(self, position_ids):
        n = position_ids + 1  # padding on the left has no position: generate counts behind it
        if self.config.ssmax_f == "p_n":
            return self.p_n[n - 1]  # fails beyond the length that it was trained at
        if self.config.ssmax_f == "log_n":
            return n.float().log()
        return torch.ones_like(n, dtype=torch.float32)

    def forward(self, hidden_states, position_embeddings=None, attention_mask=None,
                past_key_values=None, position_ids=None, **kwargs):
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        q = self.q_norm(self.q_proj(hidden_states).view(shape)).transpose(1, 2)
        k = self.k_norm(self.k_proj(hidden_states).view(shape)).transpose(1, 2)
        v = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
        # as in model.py: in fp32, behind RoPE, cast once
        scale = self.s.float()[:, None] * self.f(position_ids)[:, None] + self.b.float()[:, None]
        q = (q * scale[..., None]).to(v.dtype)
        # keys are cached turned and without the factor, which is the query's alone
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward)
        y, weights = attend(self, q, k, v, attention_mask, dropout=0.0, scaling=self.scaling,
                            **kwargs)
        return self.o_proj(y.reshape(*hidden_states.shape[:-1], -1)), weights


class NanoSSMaxModel(LlamaModel):
    config_class = NanoSSMaxConfig

    def __init__(self, config):
        super().__init__(config)
        for layer_idx, layer in enumerate(self.layers):
            layer.self_attn = NanoSSMaxAttention(config, layer_idx)
        self.post_init()


class NanoSSMaxForCausalLM(LlamaForCausalLM):
    config_class = NanoSSMaxConfig

    def __init__(self, config):
        super().__init__(config)
        self.model = NanoSSMaxModel(config)
        self.post_init()


# save_pretrained copies this file beside the weights
NanoSSMaxConfig.register_for_auto_class()
NanoSSMaxForCausalLM.register_for_auto_class("AutoModelForCausalLM")
