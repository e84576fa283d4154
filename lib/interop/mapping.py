"""
The same model here and in transformers: which of its classes computes which of our models, and the
settings and weights of one side from those of the other. For hf.py.
"""
import dataclasses
import math
from typing import NamedTuple

import torch

from lib.attention import ModelConfig
from lib.config import non_defaults
from lib.errors import UserError
from model import ATTENTION, GPTConfig, log_n, mean_log_n, one, p_n


class Class(NamedTuple):
    """A class of transformers, and which of our models it can compute."""
    name: str  # the class is called {name}ForCausalLM
    llama_cpp: str  # the architecture of llama.cpp that computes the same; "": there is none
    factors: tuple  # what may multiply the query, in the words of `query_factor`
    qk_norm: bool | None  # None: with or without it
    windows: tuple  # how many layers may see only a window of recent keys: none, all or some


CLASSES = {  # by model_type in config.json; a model is exported to the first class that fits it
    "llama": Class("Llama", "llama", ("layer", "head"), False, ("none",)),
    "qwen3": Class("Qwen3", "qwen3", ("layer",), True, ("none",)),
    "mistral": Class("Mistral", "", ("layer", "head"), False, ("none", "all")),
    "ministral3": Class("Ministral3", "mistral3", ("log n",), False, ("none",)),
    # lib/interop/modeling_nanossmax.py
    "nanossmax": Class("NanoSSMax", "", ("layer", "head", "log n", "any"), None,
                       ("none", "all", "some")),
}

# Ministral3 multiplies q by 1 + BETA log n. We multiply W_q by s, and divide W_q and W_k by the
# root of BETA each (for llama.cpp W_q by BETA). The result is s (log n + 1/BETA).
BETA = 2.0**12  # a larger one overflows in fp16: BETA log n is below 65,504 up to n = 8 million


def classes(model_type):
    """Return (config class, model class): those of transformers or of lib/interop, never code that
    lies in a folder."""
    import transformers

    from lib.interop import modeling_nanossmax
    module = modeling_nanossmax if model_type == "nanossmax" else transformers
    name = CLASSES[model_type].name
    return getattr(module, f"{name}Config"), getattr(module, f"{name}ForCausalLM")


def parameter_names(config):
    """Return {our parameter: [parameters of transformers]}; ours has the rows of all of them."""
    table = {"wte.weight": ["model.embed_tokens.weight"], "norm.weight": ["model.norm.weight"],
             "lm_head.weight": ["lm_head.weight"]}
    layer = {
        "attn.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attn.proj": ("self_attn.o_proj",), "mlp.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
        "mlp.down": ("mlp.down_proj",), "norm_1": ("input_layernorm",),
        "norm_2": ("post_attention_layernorm",)}
    if config.qk_norm:
        layer |= {"attn.q_norm": ("self_attn.q_norm",), "attn.k_norm": ("self_attn.k_norm",)}
    for i in range(config.n_layer):
        for ours, parts in layer.items():
            names = [f"model.layers.{i}.{part}.weight" for part in parts]
            table[f"blocks.{i}.{ours}.weight"] = names
    return table


# -----------------------------------------------------------------------------
# from transformers

IMPORTABLE = ("hf.py imports llama, mistral and qwen3 with SiLU and RoPE of rope_type default, and "
              "ministral3 and nanossmax if it has exported them itself")


def to_config(hf_config, source):
    """Return the ModelConfig for a config of transformers; UserError for what model.py lacks."""
    heads, width = hf_config.num_attention_heads, hf_config.hidden_size
    model_type = hf_config.model_type
    rope, window = hf_config.rope_parameters, getattr(hf_config, "sliding_window", None) or 0
    # our own exports have a training_length, because their max_position_embeddings is larger
    block_size = getattr(hf_config, "training_length", hf_config.max_position_embeddings)
    refused = [
        (f"{hf_config.num_hidden_layers:,} layers", hf_config.num_hidden_layers > 1000),
        (f"scaled RoPE (rope_type {rope['rope_type']})", rope["rope_type"] != "default"),
        ("another temperature than SSMax",
         model_type == "ministral3" and not hasattr(hf_config, "nanossmax_type")),
        (f"heads {hf_config.head_dim} wide, where hidden_size / num_attention_heads is "
         f"{width / heads:g}", hf_config.head_dim not in (None, width / heads)),
        (f"a sliding window of {window:,} in a context of {block_size:,}",
         not 0 <= window <= block_size)]
    if reasons := [reason for reason, applies in refused if applies]:
        raise UserError(f"{source}: this {model_type} has {' and '.join(reasons)}, which model.py "
                        f"does not have; choose another model. {IMPORTABLE}")
    # a query of Mistral 7B v0.1 sees itself and the `window` - 1 keys before it: an S layer
    layers = getattr(hf_config, "layer_types", None) or ["sliding_attention"]
    letters = {"sliding_attention": "S",
               "full_attention": "R" if getattr(hf_config, "global_rope", True) else "L"}
    pattern = "".join(letters[layer] for layer in layers) if window else ""
    return ModelConfig(
        attention_type=getattr(hf_config, "nanossmax_type", "softmax"),
        block_size=block_size, vocab_size=hf_config.vocab_size,
        n_layer=hf_config.num_hidden_layers, n_head=heads, n_kv_head=hf_config.num_key_value_heads,
        n_embd=width, n_inner=hf_config.intermediate_size, norm_eps=hf_config.rms_norm_eps,
        rope_theta=float(rope["rope_theta"]),
        qk_norm=getattr(hf_config, "qk_norm", CLASSES[model_type].qk_norm),
        window=window,
        window_pattern=pattern)


@torch.no_grad()
def from_hf(hf_model, model):
    """
    Return the state dict of `model`, ours, for a model of transformers: the reverse of `to_hf`.

    s W_q is restored exactly, and W_q up to rounding.
    """
    config, tensors, numbers = model.config, hf_model.state_dict(), {}
    if hf_model.config.model_type == "ministral3":
        root = hf_model.config.rope_parameters["llama_4_scaling_beta"] ** 0.5
        s = torch.tensor(hf_model.config.ssmax_s).view(config.n_layer, config.n_head)
        s = torch.where(s == 0, 1, s)  # s W_q is 0 then, so any s gives the same result
        for i in range(config.n_layer):
            q, k = (f"model.layers.{i}.self_attn.{name}_proj.weight" for name in "qk")
            of_rows = s[i].repeat_interleave(config.n_embd // config.n_head)[:, None]
            tensors[q] = tensors[q] * root / of_rows
            tensors[k] = tensors[k] * root
            numbers[f"blocks.{i}.attn.s"] = s[i]
    elif hf_model.config.model_type == "nanossmax":
        for i in range(config.n_layer):
            layer = f"model.layers.{i}.self_attn."
            numbers[f"blocks.{i}.attn.s"] = tensors[layer + "s"]
            numbers[f"blocks.{i}.attn.b"] = b = tensors[layer + "b"]
            numbers["p_n"] = tensors.get(layer + "p_n")  # the same in all layers
            if ATTENTION[config.attention_type].f is mean_log_n:  # s f(n), a constant, stands in b
                value = mean_log_n(torch.ones(1, dtype=torch.long), model)
                numbers[f"blocks.{i}.attn.s"] = b / value
    restored = {name: numbers[name] for name in model.learned_scales()}
    for name, parts in parameter_names(config).items():  # tied embeddings become two matrices
        restored[name] = torch.cat([tensors[part] for part in parts])
    return restored


# -----------------------------------------------------------------------------
# to transformers


def query_factor(model):
    """
    Return (word, s, b) of the factor on the query, s f(n) + b. s and b are (layers, heads); a
    factor that is constant in n stands in b alone.

    The word is "layer" (a number for each layer), "head" (one for each head), "log n" (s log n) or
    "any". UserError for an f(n) that cannot be exported.
    """
    s, b = [], []
    for attn in (block.attn for block in model.blocks):
        f = ATTENTION[attn.type].f
        if f not in (one, mean_log_n, log_n, p_n):
            raise UserError(f"attention_type={attn.type} cannot be exported; for transformers, add "
                            "its f(n) to lib/interop/modeling_nanossmax.py")
        constant = f in (one, mean_log_n)
        value = f(torch.ones(1, dtype=torch.long), model) if constant else 0
        s.append(attn.s * (not constant))
        b.append(attn.s * value + attn.b)
    s, b = torch.stack(s), torch.stack(b)
    equal_heads = (b == b[:, :1]).all()
    if not s.any():
        word = "layer" if equal_heads else "head"
    else:
        word = "any" if b.any() or model.p_n is not None else "log n"
    return word, s, b


def choose_class(model, target):
    """
    Return (model_type of the class that computes `model`, s, b), with s and b of `query_factor`.
    UserError if the target has none: transformers, llama.cpp or training (in transformers).
    """
    c = model.config
    # any other setting is refused, because an export that left it out would compute something else
    exportable = {field.name for field in dataclasses.fields(GPTConfig)} | {
        "window", "window_pattern", "rope_scaling", "rope_factor",
        "doc_mask"}  # it matters in training only
    for key, value in non_defaults(c).items():
        if key not in exportable or key == "rope_scaling" and value != "theta":
            raise UserError(f"{key}={value} of this checkpoint cannot be exported; choose a "
                            "checkpoint without it")
    if c.window_pattern and c.rope_factor > 1:
        raise UserError(f"a model with windows and rope_factor={c.rope_factor} cannot be exported, "
                        "because RoPE is stretched in some layers only; leave rope_factor out, or "
                        "choose a checkpoint that was trained without it")
    if "L" in c.window_pattern and ("R" in c.window_pattern or not c.window):
        raise UserError(f"window_pattern={c.window_pattern} of this checkpoint cannot be exported; "
                        "choose one with S and L, or with S and R")
    factor, s, b = query_factor(model)
    limited = [math.isfinite(block.attn.max_keys) for block in model.blocks]
    windows = "some"
    if not any(limited):
        windows = "none"
    elif all(limited):
        windows = "all"
    for model_type, cls in CLASSES.items():
        fits = (factor in cls.factors and cls.qk_norm in (c.qk_norm, None)
                and windows in cls.windows)
        usable = (target == "transformers" or target == "llama.cpp" and cls.llama_cpp
                  or target == "training" and model_type == "nanossmax")
        if fits and usable:
            return model_type, s, b
    raise UserError(f"{c.attention_type} with qk_norm={c.qk_norm} and window_pattern="
                    f"{c.window_pattern!r} cannot be exported to llama.cpp, for which hf.py writes "
                    "no windows, and which can multiply the query only by one number, or without "
                    "qk_norm by s log n; export to a folder, for transformers")


@torch.no_grad()
def to_hf(model, target):
    """Return a model of transformers that computes the same as ours, for a target of
    `choose_class`."""
    c = model.config
    model_type, s, b = choose_class(model, target)
    theta = c.rope_theta * c.rope_factor
    rope, special = {"rope_type": "default", "rope_theta": theta}, {}
    if model_type == "mistral":
        special = {"sliding_window": c.window}
    elif model_type == "ministral3":
        rope |= {"llama_4_scaling_beta": BETA, "original_max_position_embeddings": 1}
        vllm = {"beta": BETA, "original_max_position_embeddings": 1}  # vLLM 0.25 reads it there
        special = {"llama_4_scaling": vllm, "sliding_window": None,
                   "nanossmax_type": c.attention_type, "ssmax_s": s.tolist()}  # for an import
    elif model_type == "nanossmax":
        learned = {name.split(".")[-1] for name in model.learned_scales()}
        if ATTENTION[c.attention_type].f is mean_log_n:  # s f(n), a constant, stands in b
            learned = {"b"}
        special = {
            "nanossmax_type": c.attention_type,  # for an import
            "qk_norm": c.qk_norm,
            "ssmax_length": 0 if model.p_n is None else c.block_size,
            "learned": sorted(learned),
            # save_pretrained adds the class that is saved
            "auto_map": {"AutoModel": "modeling_nanossmax.NanoSSMaxModel"}}
        if c.window_pattern:
            limited = [math.isfinite(block.attn.max_keys) for block in model.blocks]
            layers = ["sliding_attention" if has_window else "full_attention"
                      for has_window in limited]
            special |= {
                "layer_types": layers,
                "sliding_window": c.window,
                "use_sliding_window": True,
                "global_rope": "R" in c.window_pattern}
    config_class, model_class = classes(model_type)
    config = config_class(
        vocab_size=c.vocab_size, hidden_size=c.n_embd, intermediate_size=c.n_inner,
        num_hidden_layers=c.n_layer, num_attention_heads=c.n_head, head_dim=c.n_embd // c.n_head,
        num_key_value_heads=c.n_kv_head or c.n_head, rms_norm_eps=c.norm_eps,
        initializer_range=c.init_std, tie_word_embeddings=False, rope_parameters=rope,
        # the embedding of a pad token would not be trained; Ministral3's default is token 11
        rope_theta=theta, pad_token_id=None, training_length=c.block_size,
        # Clients cut prompts at this length, but only p_n has a limit. Not more, because vLLM and
        # llama.cpp reserve memory for it: 4.8 GB for 131,072 tokens of the paper's model in fp16.
        max_position_embeddings=min(model.max_len, max(2**17, 32 * c.block_size)), **special)
    hf_model = model_class(config)
    # fails unless the names are exactly those of hf_model
    hf_model.load_state_dict(to_tensors(model, model_type, s, b, target))
    return hf_model.eval()


def to_tensors(model, model_type, s, b, target):
    """Return copies of the parameters under transformers' names, with s f(n) + b multiplied into
    them, unless the class has parameters for it."""
    c, ours, tensors = model.config, model.state_dict(), {}
    width = c.n_embd // c.n_head  # rows of W_q for each head
    kv = width * (c.n_kv_head or c.n_head)
    for name, parts in parameter_names(c).items():
        rows = ours[name].clone()
        sizes = (c.n_embd, kv, kv) if "qkv" in name else len(rows) // len(parts)
        tensors |= dict(zip(parts, rows.split(sizes), strict=True))
    for i in range(c.n_layer):
        attn = f"model.layers.{i}.self_attn."
        if model_type == "nanossmax":
            tensors |= {attn + "s": s[i], attn + "b": b[i]}
            if model.p_n is not None:
                tensors[attn + "p_n"] = model.p_n
        elif model_type == "qwen3":  # its q_norm has one weight for all heads
            tensors[attn + "q_norm.weight"] *= b[i, 0]
        elif model_type == "ministral3":
            by_k = 1 if target == "llama.cpp" else BETA**0.5
            of_rows = s[i].repeat_interleave(width)[:, None]
            tensors[attn + "q_proj.weight"] *= of_rows / (BETA / by_k)
            tensors[attn + "k_proj.weight"] /= by_k
        else:
            tensors[attn + "q_proj.weight"] *= b[i].repeat_interleave(width)[:, None]
    return tensors
