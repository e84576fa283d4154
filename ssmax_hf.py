"""
Scalable-Softmax (SSMax, arXiv 2501.19399) in a causal language model of transformers 5. Copy this
file beside your script; it needs torch and transformers alone.

    from transformers import AutoModelForCausalLM
    from ssmax_hf import add_ssmax

    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B")
    add_ssmax(model)                            # to be trained: s log n + b, starts as the model
    add_ssmax(model, "logn_clip", length=8192)  # or without training: the same up to 8,192 tokens

Each query is multiplied by s f(n) + b in fp32, and then the model's own attention runs (sdpa,
flash, flex or eager). n is the number of keys that the query sees. It is counted in the mask that
the attention gets, so padding, caches, packed rows and windows are right.

s and b are in a module `ssmax_norm` of each layer. To train them beside LoRA:
LoraConfig(modules_to_save=["ssmax_norm"]). (PEFT finds modules, not parameters. Trainer gives names
that end in _norm no weight decay.) Save the merged model: PEFT puts an adapter also into a model
without the factor, and leaves s and b out without a word.

save_pretrained and from_pretrained keep the factor, if this file is imported. A process that has
not imported it refuses such a folder, since its config.json has layer_types that transformers does
not know.
"""
import functools
import inspect
import json
import math

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_utils import AttentionInterface

# -----------------------------------------------------------------------------
# the factors s f(n, N) + b, for an fp32 tensor n; N: the training length


def log_n(n, N):
    return n.log()


def mean_log_n(n, N):  # of log 1, ..., log N
    return torch.full_like(n, math.lgamma(N + 1) / N)


def logn_clip(n, N):
    return (n.log() / math.log(N)).clamp(min=1)


def llama4(n, N):
    return 1 + 0.1 * (1 + n // N).log()


def log_floor(n, N):
    return 1 + 0.1 * (n / N).clamp(min=1).log()


def power(n, N):
    return (1 + n / N) ** 0.1


# {name in ATTENTION of model.py: (f, which of s and b are learned, b before training)}
KINDS = {
    "ssmax": (log_n, "s", 0.0),            # (b), Eq. 2; in a trained model (e)
    "ssmax_s1": (log_n, "", 0.0),          # (c)
    "ssmax_bias": (log_n, "sb", 0.0),      # (d), Eq. 4
    "ssmax_bias_s0": (log_n, "sb", 1.0),   # (d) from s = 0, which is softmax
    "residual": (log_n, "s", 1.0),
    "head_scale": (mean_log_n, "s", 0.0),  # the control: a constant, the same for every n
    "logn_clip": (logn_clip, "", 0.0),     # Qwen, Grok-2
    "llama4": (llama4, "", 0.0),
    "log_floor": (log_floor, "", 0.0),     # Inkling
    "power": (power, "", 0.0),             # Beam
}


def start_of_s(kind, scale, N):
    """Return the s with which the mean factor over n = 1, ..., N is `scale`. A factor that is 1 for
    all n below N, such as the clip, is multiplied by `scale` alone."""
    f, _, b = KINDS[kind]
    values = f(torch.arange(1, N + 1, dtype=torch.float64, device="cpu"), N)
    if (values[:-1] == 1).all():
        return scale
    return (scale - b) / values.mean().item()


class SSMax(nn.Module):
    """The factor of one layer on its queries. It is a module so that PEFT can find it."""

    def __init__(self, heads, kind, s, N):
        super().__init__()
        self.N = N
        self.f, learned, b = KINDS[kind]
        for name, value in (("s", s), ("b", b)):
            values = torch.full((heads,), value, dtype=torch.float32)
            setattr(self, name, nn.Parameter(values) if name in learned else nn.Buffer(values))

    def forward(self, query, n):
        """Return query (B, H, T, D) times the factor, for n (B or 1, H or 1, T)."""
        factor = self.s[:, None] * self.f(n.float(), self.N) + self.b[:, None]
        return (query.float() * factor[..., None]).to(query.dtype)

    def _apply(self, fn, recurse=True):
        """Stay in fp32 when the model becomes bf16: near log 20,000 bf16 has steps of 0.06."""
        def move(tensor):
            moved = fn(tensor)
            return moved if tensor.is_meta or moved.is_meta else tensor.to(moved.device)

        return super()._apply(move, recurse)


# -----------------------------------------------------------------------------
# the number of keys


def keys_seen(name, query, key, mask, sliding_window=None, position_ids=None, cu_seq_lens_q=None,
              **_):
    """
    Return how many keys each query sees, (B or 1, H or 1, T). name: of the attention, such as sdpa.
    The other arguments are those of an attention function of transformers.
    """
    T, S = query.shape[2], key.shape[2]
    queries = torch.arange(T, device=query.device)
    if hasattr(mask, "mask_mod"):  # flex_attention
        if not hasattr(mask, "ssmax_n"):  # counted once for all layers
            from torch.nn.attention.flex_attention import create_mask
            seen = create_mask(mask.mask_mod, len(query), 1, T, S, query.device)
            mask.ssmax_n = seen.sum(-1)
        n = mask.ssmax_n
    elif mask is not None and mask.dim() == 4:
        # bool, or a number that is added to the logits, which is very negative for a hidden key
        seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
        n = seen[..., :S].sum(-1)
    elif mask is not None:  # flash attention with padding: (B, S), 0 for padding
        n = mask.cumsum(-1)[:, None, -T:]
    elif "flash" in name:  # the queries stand at the last of the keys
        start = start_of_text(queries, S, position_ids, cu_seq_lens_q)
        n = (queries + 1 + S - T - start)[None, None]
    elif T > 1:  # causal from the first key on; a static cache has more keys
        n = (queries + 1)[None, None]
    else:
        n = torch.full_like(queries, S)[None, None]
    return n.clamp(1, sliding_window)  # a query that is padding may see no key


def start_of_text(queries, S, position_ids, cu_seq_lens_q):
    """Return the index of the first token of each query's text. Flash attention finds the texts of
    a packed row in cu_seq_lens_q, or where position_ids begin again."""
    if cu_seq_lens_q is not None:
        return cu_seq_lens_q[torch.searchsorted(cu_seq_lens_q, queries, right=True) - 1]
    T = len(queries)
    if position_ids is None or T != S or position_ids.shape != (1, T):
        return 0
    first = position_ids[0] == position_ids.min()
    return torch.where(first, queries, 0).cummax(0).values


def attend(attention, name, module, query, key, value, mask, *args, **kwargs):
    """Call an attention function of transformers with the factor on the queries."""
    if hasattr(module, "ssmax_norm"):
        known = name in ("eager", "sdpa", "flex_attention") or "flash" in name
        if not known or name.startswith("paged|") or "read_index" in kwargs:
            raise NotImplementedError(
                f"SSMax needs the number of keys, which attn_implementation={name} with this cache "
                "does not show; use sdpa, eager, flex_attention or flash_attention_2 without "
                "paged caches")
        query = module.ssmax_norm(query, keys_seen(name, query, key, mask, **kwargs))
    return attention(module, query, key, value, mask, *args, **kwargs)


# -----------------------------------------------------------------------------
# into a model


def attention_modules(model):
    """
    Return {layer: its attention module}. ValueError if a layer's attention is not one causal call
    of an attention function of transformers.
    """
    modules = {}
    for name, module in model.get_decoder().named_modules():
        layer = getattr(module, "layer_idx", None)
        if type(layer) is not int or not hasattr(module, "is_causal"):
            continue
        code = inspect.unwrap(type(module).forward).__code__
        if "get_interface" not in code.co_names:
            raise ValueError(f"{name} ({type(module).__name__}) computes attention by itself, and "
                             "not by transformers' AttentionInterface, so SSMax cannot be put in")
        if layer in modules or not module.is_causal:
            raise ValueError(f"{name} is not causal, or a second attention of its layer, so SSMax "
                             "cannot be put in")
        modules[layer] = module
    return modules


def sees_all(module, layer):
    """Return whether the attention of a layer has no window."""
    if types := getattr(module.config, "layer_types", None):
        return types[layer] == "full_attention"
    return not getattr(module.config, "sliding_window", None)


def add_ssmax(model, kind="ssmax_bias_s0", scale=1.0, length=None, layers=None, s=None):
    """
    Multiply the queries of `model`, in place, by the factor of a `kind` of KINDS. Return the model.

    scale: the mean factor over n = 1 to `length`, from which s follows. A softmax model has 1. With
        kind="head_scale" this is a constant for all n.
    length: the training length N in tokens; None: max_position_embeddings, which is too large for a
        model that was trained on less.
    layers: indices of layers; None: all that see all keys. Layers with a window are left alone.
    s: a value for s instead of the one that follows from `scale`; 1 is the paper's start of a
        training from random weights.

    What the start does to a trained model: ssmax_bias_s0 and residual leave it as it is, and
    logn_clip, llama4 and log_floor leave it as it is below N tokens. The kinds with log n alone
    flatten attention in short contexts and sharpen it in long ones. The loss of SmolLM2-135M at 512
    tokens, 2.870, becomes 2.931 with ssmax and length=512, 3.532 with length=8192, and 6.320 with
    s=1.

    ValueError if the model has no such layers, or an attention that SSMax cannot be put into.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind {kind}; choose one of {', '.join(KINDS)}")
    modules = attention_modules(model)
    if layers is None:
        layers = [layer for layer, module in modules.items() if sees_all(module, layer)]
    if not layers or not set(layers) <= modules.keys():
        raise ValueError(f"layers={layers} must name some of the layers that have an attention in "
                         f"{type(model).__name__}: {list(modules)} (None: those that see all keys)")
    config = model.config.get_text_config()
    N = length or config.max_position_embeddings
    s = start_of_s(kind, scale, N) if s is None else s
    for layer in layers:
        module = modules[layer]
        if hasattr(module, "ssmax_norm"):
            raise ValueError(f"layer {layer} of this model has a factor already: load it again")
        factor = SSMax(config.num_attention_heads, kind, s, N)
        module.ssmax_norm = factor.to(next(module.parameters()).device)
    config.ssmax = {"kind": kind, "length": N, "layers": list(layers), "s": s}
    keep = model._keep_in_fp32_modules_strict or ()
    model._keep_in_fp32_modules_strict = {*keep, "ssmax_norm"}
    return model


# -----------------------------------------------------------------------------
# saving and loading

MARK = "SSMax: import ssmax_hf before you load this model"


def configs_with_ssmax(content):
    """Yield the dicts with a factor in a config.json; a model with images has it in text_config."""
    if "ssmax" in content:
        yield content
    for value in content.values():
        if isinstance(value, dict):
            yield from configs_with_ssmax(value)


def to_json_string(self, *args, **kwargs):
    """Mark what is saved, so that transformers alone refuses to load it."""
    content = json.loads(originals["to_json_string"](self, *args, **kwargs))
    for config in configs_with_ssmax(content):
        config["ssmax"] |= {"layer_types": config.get("layer_types")}
        config["layer_types"] = [MARK]
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def read_json(cls, path):
    """Take the mark away when a config.json is read."""
    content = originals["_dict_from_json_file"].__func__(cls, path)
    for config in configs_with_ssmax(content):
        if config.get("layer_types") == [MARK]:
            config["layer_types"] = config["ssmax"].pop("layer_types")
            if config["layer_types"] is None:
                del config["layer_types"]
    return content


def post_init(self):
    """Add the factor at the end of a model's __init__, before weights are loaded."""
    originals["post_init"](self)
    saved = getattr(self.config.get_text_config(), "ssmax", None)
    if saved and not any(hasattr(module, "ssmax_norm") for module in self.modules()):
        add_ssmax(self, **saved)


def get_interface(self, attn_implementation, *args, **kwargs):
    """Return the attention function of this name, with the factor in front."""
    attention = originals["get_interface"](self, attn_implementation, *args, **kwargs)
    return functools.partial(attend, attention, attn_implementation or "eager")


# A second copy of this file must not multiply a second time.
if not hasattr(AttentionInterface, "has_ssmax"):
    AttentionInterface.has_ssmax = True
    originals = {
        "get_interface": AttentionInterface.get_interface,
        "post_init": PreTrainedModel.post_init,
        "to_json_string": PreTrainedConfig.to_json_string,
        "_dict_from_json_file": PreTrainedConfig._dict_from_json_file,
    }
    AttentionInterface.get_interface = get_interface
    PreTrainedModel.post_init = post_init
    PreTrainedConfig.to_json_string = to_json_string
    PreTrainedConfig._dict_from_json_file = classmethod(read_json)
