"""
Scalable-Softmax (SSMax, arXiv 2501.19399) in a causal language model of transformers 5. Copy this
file beside your script; it needs torch and transformers alone.

    from transformers import AutoModelForCausalLM
    from ssmax_hf import add_ssmax

    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B")
    add_ssmax(model)                            # to be trained: s log n + b, starts as the model
    add_ssmax(model, "logn_clip", length=8192)  # or without training: the same up to 8,192 tokens

Each query is multiplied by s f(n) + b in fp32, and then the model's own attention runs (sdpa,
flash, flex or eager). n is the number of keys that the query sees, counted in the attention mask:
so padding, caches, packed rows and windows count as they should. (Rows that are packed by
position_ids alone need use_cache=False: with a cache transformers lets their texts see each other.)

save_pretrained and from_pretrained keep the factor, if this file is imported. A process that has
not imported it refuses such a folder, since its config.json has layer_types that transformers does
not know.

To train s and b, which are in a module `ssmax_norm` of each layer:

- beside LoRA: LoraConfig(modules_to_save=["ssmax_norm"]). Save the merged model: PEFT puts an
  adapter also into a model without the factor, and silently leaves s and b out.
- DPO and GRPO of TRL load their reference from the folder that the model came from: save the model
  with its factor first, and load it from there.
- FSDP2 wants one dtype in what it shards, and s and b stay in fp32: shard each SSMax before its
  layer, fully_shard(layer.self_attn.ssmax_norm). Accelerate does, unless you name the classes.
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


def step(n, N, c):
    return torch.where(n > N, c, 1.0)


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
    "step_1.5": (functools.partial(step, c=1.5), "", 0.0),
    "step_2": (functools.partial(step, c=2.0), "", 0.0),
    "step_3": (functools.partial(step, c=3.0), "", 0.0),
}


def start_of_s(kind, scale, N):
    """Return the s with which the mean factor over n = 1, ..., N is `scale`. A factor that is 1
    below N is multiplied by `scale` alone."""
    f, _, b = KINDS[kind]
    values = f(torch.arange(1, N + 1, dtype=torch.float64, device="cpu"), N)
    return scale if (values[:-1] == 1).all() else (scale - b) / values.mean().item()


class SSMax(nn.Module):
    """The factor of one layer on its queries. It is a module, because PEFT's modules_to_save names
    modules."""

    def __init__(self, heads, kind, s, N):
        super().__init__()
        self.N = N
        self.f, learned, b = KINDS[kind]
        for name, value in (("s", s), ("b", b)):
            values = torch.full((heads,), value, dtype=torch.float32)
            setattr(self, name, nn.Parameter(values) if name in learned else nn.Buffer(values))

    def forward(self, query, n):
        """Return query (B, H, T, D) times the factor, for n as keys_seen returns it."""
        factor = self.s[:, None] * self.f(n.to(self.s), self.N) + self.b[:, None]
        return (query.float() * factor[..., None].to(query.device)).to(query.dtype)

    def _apply(self, fn, recurse=True):
        """Stay in fp32 when the model becomes bf16: near log 20,000 bf16 has steps of 0.06."""
        def move(tensor):
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        return super()._apply(move, recurse)


# -----------------------------------------------------------------------------
# the number of keys


def keys_seen(name, module, query, key, mask, is_causal=None, sliding_window=None, **kwargs):
    """Return how many keys each query sees, (T,) or (B or 1, H or 1, T). name: of an attention
    function of transformers, such as sdpa. The other arguments are those of the function."""
    T, K = query.shape[2], key.shape[2]
    queries = torch.arange(T, device=query.device)
    causal = module.is_causal if is_causal is None else is_causal
    if mask is not None and len(mask.shape) == 4:
        return count(mask, queries, K)
    if name in ("eager", "sdpa", "flex_attention"):
        # Causal sdpa lets query 0 see key 0 alone, also with a static cache, whose last keys are
        # empty.
        return queries + 1 if name == "sdpa" and causal and T > 1 else torch.full_like(queries, K)
    if "flash" not in name or not causal:
        raise NotImplementedError(
            f"SSMax cannot count the keys that attn_implementation={name} sees with no mask and "
            f"is_causal={causal}: use sdpa")
    if mask is None:
        n = queries + 1 - first_key(queries, K, **kwargs)
    else:  # (B, K), 0 for padding
        n = mask.cumsum(-1)[:, None, -T:]
    return n.clamp(1, sliding_window)  # a query that is padding may see no key


def first_key(queries, K, position_ids=None, cu_seq_lens_q=None, cu_seq_lens_k=None, **_):
    """Return where the first key of each query's text stands, counted from the first query. Flash
    attention finds the texts of a row in cu_seq_lens, or where position_ids begin again."""
    T = len(queries)
    if cu_seq_lens_q is not None:
        if isinstance(cu_seq_lens_k, dict):  # generate_batch has one for each type of layer
            cu_seq_lens_k = cu_seq_lens_k["full_attention"]
        cached = cu_seq_lens_k.diff() - cu_seq_lens_q.diff()
        text = torch.searchsorted(cu_seq_lens_q[1:-1], queries, right=True)
        return (cu_seq_lens_q[:-1] - cached)[text]
    if position_ids is None or T != K or position_ids.shape != (1, T):
        return T - K
    begins = position_ids[0] == position_ids.min()
    return torch.where(begins, queries, 0).cummax(0).values


def count(mask, queries, K):
    """Return how many keys each query sees in a mask (B or 1, H or 1, T, K)."""
    if hasattr(mask, "mask_mod"):  # of flex_attention
        from torch.nn.attention.flex_attention import create_mask
        mask = create_mask(mask.mask_mod, mask.shape[0], 1, len(queries), K, queries.device)
    # Summing copies the mask, so half a million keys are counted at a time. The counts share one
    # tensor: kept apart they fragmented the memory (4 GB for a mask of 32,768 x 32,768).
    n = torch.empty(mask.shape[:3], dtype=torch.int32, device=mask.device)
    rows = len(queries) if torch.compiler.is_compiling() else max(1, 2**19 // K)
    for part, counted in zip(mask.split(rows, dim=2), n.split(rows, dim=2), strict=True):
        # A mask is bool, or a number that is added to the logits: below -1,000 the weight is 0.
        seen = part if part.dtype == torch.bool else part > -1000
        counted.copy_(seen.sum(-1, dtype=torch.int32))
    return n.clamp(min=1)


def attend(attention, name, module, query, key, value, attention_mask=None, *args, **kwargs):
    """Call an attention function of transformers with the factor on the queries."""
    if hasattr(module, "ssmax_norm"):
        n = keys_seen(name, module, query, key, attention_mask, **kwargs)
        query = module.ssmax_norm(query, n)
    return attention(module, query, key, value, attention_mask, *args, **kwargs)


# -----------------------------------------------------------------------------
# into a model


def attention_modules(model):
    """Return {layer: (name, its attention module)}. ValueError if SSMax cannot be put into one."""
    modules = {}
    for name, module in model.get_decoder().named_modules():
        layer = getattr(module, "layer_idx", None)
        causal = getattr(module, "is_causal", None)
        # an attention that asks transformers for its kernel names get_interface in its forward
        calls = "get_interface" in inspect.unwrap(type(module).forward).__code__.co_names
        if causal is None or not calls and layer is None:
            continue  # not an attention, or one on images
        by_itself = not calls or getattr(module, "reorder_and_upcast_attn", False)  # of GPT-2
        if by_itself or not causal or type(layer) is not int or layer in modules:
            raise ValueError(f"SSMax cannot be put into {name} ({type(module).__name__}): this is "
                             "not causal, or not the only attention of a layer_idx, or does not "
                             "call transformers' AttentionInterface")
        modules[layer] = name, module
    return modules


def sees_all(config, layer):
    """Return whether a layer has no window."""
    if types := getattr(config, "layer_types", None):
        return types[layer] == "full_attention"
    return not getattr(config, "sliding_window", None)


def rope_of(config):
    """Return the rope_parameters of the layers that see all keys, {} if there are none."""
    rope = getattr(config, "rope_parameters", None) or {}
    # some models have one dict for each kind of layer, and Beam None for those without RoPE
    return rope.get("full_attention", rope) or {}


# settings by which models of transformers have a factor of n, and families without such a setting
OWN_FACTORS = ("attn_temperature_tuning", "llama_4_scaling_beta", "log_scaling_n_floor")
WITH_OWN_FACTOR = ("beam", "mistral_large4")


def own_factor(config):
    """Return what gives a model a factor of n of its own: a setting or its family, "" if it has
    none."""
    settings = config.to_dict() | rope_of(config)
    names = [name for name in OWN_FACTORS if settings.get(name)]
    names += [config.model_type] if config.model_type in WITH_OWN_FACTOR else []
    return ", ".join(names)


def training_length(config):
    """Return the length in tokens at which a model was trained, None if its config, that of the
    text, does not say it."""
    return (getattr(config, "training_length", None)  # of a model that hf.py has exported
            or getattr(config, "ssmax", {}).get("length")  # the N of its factor
            or rope_of(config).get("original_max_position_embeddings")  # RoPE was stretched
            or getattr(config, "max_position_embeddings", None))


def add_ssmax(model, kind="ssmax_bias_s0", scale=1.0, length=None, layers=None, s=None):
    """
    Multiply the queries of `model`, in place, by the factor of a `kind` of KINDS. Return the model.

    scale: the mean factor over n = 1 to `length`, from which s follows. A softmax model has 1. With
        kind="head_scale" this is a constant for all n.
    length: the training length N in tokens; None: what the config says, see `training_length`,
        which is too large for a model that was trained on less.
    layers: indices of layers; None: all that see all keys. Layers with a window are left alone.
    s: a value for s instead of the one that follows from `scale`; 1 is the paper's start of a
        training from random weights.

    ssmax_bias_s0 and residual leave a trained model as it is, and logn_clip, llama4, log_floor and
    the steps leave it as it is below N tokens. The kinds with log n alone flatten attention in
    short contexts and sharpen it in long ones. The loss of SmolLM2-135M at 512 tokens, 2.870,
    becomes 2.931 with ssmax and length=512, 3.532 with length=8192, and 6.320 with s=1.

    ValueError if the model has no such layers, an attention that SSMax cannot be put into, or a
    factor of n of its own.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind {kind}; choose one of {', '.join(KINDS)}")
    if any(isinstance(module, SSMax) for module in model.modules()):
        raise ValueError("this model has a factor already: load one that has none")
    config = model.config.get_text_config()
    if own := own_factor(config):
        raise ValueError(f"this model has a factor of n of its own ({own}), and a second one would "
                         "multiply it: turn it off in the config, or choose another model")
    modules = attention_modules(model)
    if layers is None:
        layers = [i for i, (_, module) in modules.items() if sees_all(module.config, i)]
        if modules and not layers:
            raise ValueError(f"no layer of {type(model).__name__} sees all keys, and in a window n "
                             "is limited: leave the factor out, or name `layers`")
    if not layers or not set(layers) <= modules.keys():
        raise ValueError(f"layers={layers} must name layers of {type(model).__name__} that SSMax "
                         f"can be put into: {list(modules)} (None: those that see all keys)")
    N = length or training_length(config)
    if type(N) is not int or N < 2:  # log 1 is 0
        raise ValueError(f"the config of this {type(model).__name__} does not say at which length "
                         f"it was trained, and length={length}: give `length` in tokens")
    if s is None:
        s = start_of_s(kind, scale, N)
    elif scale != 1:
        raise ValueError(f"scale={scale} has no effect beside s={s}: leave one of the two out")
    # An offloaded layer has its weights on the meta device. (Only matrices tell the device, because
    # DiffLlama makes vectors on the CPU, wherever the model is.)
    device = next((p.device for p in model.parameters() if p.dim() > 1 and not p.is_meta), "meta")
    for layer in layers:
        name, module = modules[layer]
        heads = getattr(module, "num_heads", None) or config.num_attention_heads
        # "_norm" in the name keeps s and b free of weight decay in transformers' Trainer.
        module.ssmax_norm = SSMax(heads, kind, s, N).to(device)
        # The attention moves to the end of its layer, because transformers' MtpModel takes the
        # class of a layer's first module with "norm" in its name.
        parent, _, attribute = name.rpartition(".")
        siblings = model.get_decoder().get_submodule(parent)._modules
        siblings[attribute] = siblings.pop(attribute)
    config.ssmax = {"kind": kind, "length": N, "layers": list(layers), "s": s}
    model._keep_in_fp32_modules_strict = {*(model._keep_in_fp32_modules_strict or ()), "ssmax_norm"}
    # FSDP wants one dtype in what it shards: accelerate shards these modules by themselves.
    model._no_split_modules = {*(model._no_split_modules or ()), "SSMax"}
    return model


# -----------------------------------------------------------------------------
# saving and loading

MARK = "SSMax: import ssmax_hf before you load this model"


def mark(config):
    """Mark the dict of a config that has a factor. transformers refuses unknown layer_types, so a
    process without this file cannot load the folder as plain softmax."""
    if "ssmax" in config:
        config["ssmax"]["layer_types"] = config.get("layer_types")
        config["layer_types"] = [MARK] * len(config.get("layer_types") or [MARK])
    return config


def unmark(config):
    if MARK in (config.get("layer_types") or ()):
        config["layer_types"] = config["ssmax"].pop("layer_types")
        if config["layer_types"] is None:
            del config["layer_types"]
    return config


def to_json_string(self, *args, **kwargs):
    # object_hook gets every dict: a model with images has its factor in text_config
    content = json.loads(self.plain_to_json_string(*args, **kwargs), object_hook=mark)
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


@classmethod
def _dict_from_json_file(cls, path):
    content = cls.plain__dict_from_json_file(path)
    return json.loads(json.dumps(content), object_hook=unmark)


def post_init(self):
    """Add the factor at the end of a model's __init__, before weights are loaded."""
    self.plain_post_init()
    saved = getattr(self.config.get_text_config(), "ssmax", None)
    # MtpModel has the config of another model, and no config_class. Two classes of Llama 4, one in
    # the other, both claim to be the decoder.
    has_factor = any(isinstance(module, SSMax) for module in self.modules())
    if saved and self.config_class and self.get_decoder() is self and not has_factor:
        add_ssmax(self, **saved)


def get_interface(self, attn_implementation, *args, **kwargs):
    """Return the attention function of this name, with the factor in front."""
    attention = self.plain_get_interface(attn_implementation, *args, **kwargs)
    return functools.partial(attend, attention, attn_implementation or "eager")


def patch(cls, method):
    """Replace a method of transformers by ours, which calls it as plain_NAME. A second copy of this
    file must not multiply a second time."""
    name = method.__name__
    if not hasattr(cls, "plain_" + name):
        setattr(cls, "plain_" + name, vars(cls)[name])
        setattr(cls, name, method)


patch(AttentionInterface, get_interface)
patch(PreTrainedModel, post_init)
patch(PreTrainedConfig, to_json_string)
patch(PreTrainedConfig, _dict_from_json_file)
