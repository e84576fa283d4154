"""
The same model here and in transformers: which of its classes computes which of our models, and the
settings and weights of one side from those of the other. For hf.py.

    llama       softmax, and other factors that are the same for every n
    ministral3  s log n: this class multiplies the query by 1 + BETA log n
    smollm3     layers with a window, and layers without position
    qwen3       qk_norm

A factor is multiplied into W_q where the class allows it. Otherwise ssmax_hf.py puts it in.
"""
import dataclasses
from typing import NamedTuple

import torch

from lib.attention import ModelConfig
from lib.config import non_defaults
from lib.errors import UserError
from model import ATTENTION, GPTConfig, log_n, mean_log_n, one

CLASSES = {"llama": "Llama", "mistral": "Mistral", "qwen3": "Qwen3", "smollm3": "SmolLM3",
           "ministral3": "Ministral3"}
# llama.cpp's SmolLM3 has no windows, and no position in every fourth layer.
OF_LLAMA_CPP = ("llama", "qwen3", "ministral3")
IMPORTABLE = ("hf.py imports llama, mistral, qwen3 and smollm3 with SiLU and RoPE of rope_type "
              "default")

# We multiply W_q by s, and divide W_q and W_k by the root of BETA each. With Ministral3's factor
# the result is s (log n + 1/BETA). A larger BETA overflows in fp16: BETA log n is below 65,504 up
# to n = 8 million.
BETA = 2.0**12


def classes(model_type):
    """Return (config class, model class) of transformers."""
    import transformers
    name = CLASSES[model_type]
    return getattr(transformers, f"{name}Config"), getattr(transformers, f"{name}ForCausalLM")


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


def to_config(hf_config, source):
    """Return the ModelConfig for a config of transformers; UserError for what model.py lacks."""
    heads, width = hf_config.num_attention_heads, hf_config.hidden_size
    layers, rope = hf_config.num_hidden_layers, hf_config.rope_parameters
    if layers > 1000:
        raise UserError(f"{source} has {layers:,} layers; get a whole copy of the model")
    head_dim = getattr(hf_config, "head_dim", None) or width / heads
    # our own exports have a training_length, because their max_position_embeddings is larger
    block_size = getattr(hf_config, "training_length", hf_config.max_position_embeddings)
    ssmax = getattr(hf_config, "ssmax", {"kind": "softmax"})  # of ssmax_hf.py
    window = getattr(hf_config, "sliding_window", None) or 0
    types = getattr(hf_config, "layer_types", None)
    types = types or ["sliding_attention" if window else "full_attention"] * layers
    has_rope = getattr(hf_config, "no_rope_layers", None) or [1] * layers
    letters = "".join(letter_of(*layer) for layer in zip(types, has_rope, strict=True))
    if "S" not in letters:
        window = 0
    refused = [
        (f"scaled RoPE (rope_type {rope['rope_type']})", rope["rope_type"] != "default"),
        (f"heads {head_dim} wide, where hidden_size / num_attention_heads is {width / heads:g}",
         head_dim != width / heads),
        (f"a sliding window of {window:,} in a context of {block_size:,}",
         not 0 <= window <= block_size),
        ("layers that are neither full attention nor a window with RoPE", "?" in letters),
        (f"SSMax of ssmax_hf.py in the layers {ssmax.get('layers')} and for length="
         f"{ssmax.get('length')}", ssmax["kind"] != "softmax" and (
             ssmax["layers"] != [i for i, letter in enumerate(letters) if letter != "S"]
             or ssmax["length"] != block_size))]
    if reasons := [reason for reason, applies in refused if applies]:
        raise UserError(f"{source}: this {hf_config.model_type} has {' and '.join(reasons)}, which "
                        f"model.py does not have; choose another model. {IMPORTABLE}")
    return ModelConfig(
        attention_type=ssmax["kind"], block_size=block_size, vocab_size=hf_config.vocab_size,
        n_layer=layers, n_head=heads, n_kv_head=hf_config.num_key_value_heads, n_embd=width,
        n_inner=hf_config.intermediate_size, norm_eps=hf_config.rms_norm_eps,
        rope_theta=float(rope["rope_theta"]), qk_norm=hf_config.model_type == "qwen3",
        window=window, window_pattern="" if set(letters) == {"R"} else letters)


def letter_of(layer_type, has_rope):
    """Return the letter of a layer in model.py, or "?" if it has none."""
    if layer_type == "full_attention":
        return "R" if has_rope else "L"
    return "S" if layer_type == "sliding_attention" and has_rope else "?"


@torch.no_grad()
def from_hf(hf_model, model):
    """Return the state dict of `model`, ours, for a model of transformers."""
    tensors, restored = hf_model.state_dict(), {}
    for name, parts in parameter_names(model.config).items():  # a tied embedding becomes two
        restored[name] = torch.cat([tensors[part] for part in parts])
    learned = model.learned_scales()
    for i, block in enumerate(model.blocks):
        prefix = f"model.layers.{i}.self_attn.ssmax_norm."
        for key in ("s", "b"):
            ours = f"blocks.{i}.attn.{key}"
            if ours in learned:
                restored[ours] = tensors[prefix + key]
        if prefix + "s" in tensors and f"blocks.{i}.attn.s" not in learned:
            s = tensors[prefix + "s"]  # a constant, which stands in the weights here
            if model.config.qk_norm:
                restored[f"blocks.{i}.attn.q_norm.weight"] *= s[0]
            else:
                rows = s.repeat_interleave(block.attn.head_size)[:, None]
                restored[f"blocks.{i}.attn.qkv.weight"][:model.config.n_embd] *= rows
    return restored


# -----------------------------------------------------------------------------
# to transformers


class Choice(NamedTuple):
    """How transformers computes a model of ours."""
    model_type: str
    in_weights: torch.Tensor  # (layers, heads), by which the rows of W_q are multiplied
    by_ssmax_hf: bool  # whether the factor needs ssmax_hf.py


def choose(model, trainable=False):
    """Return the Choice for `model`. UserError if there is none. trainable: s and b stay parameters
    and are not multiplied into the weights."""
    c = model.config
    check_settings(c)
    kind = ATTENTION[c.attention_type]
    s, b = (torch.stack([getattr(block.attn, name) for block in model.blocks]) for name in "sb")
    constant = kind.f in (one, mean_log_n)
    if constant:
        n = torch.ones(1, dtype=torch.long)
        values = [ATTENTION[block.attn.type].f(n, model) for block in model.blocks]
        in_weights = s * torch.stack(values) + b
    elif kind.f is log_n and not b.any():
        in_weights = s
    else:
        in_weights = None
    if c.qk_norm:
        # its q_norm has one weight for all heads
        model_type, fits = "qwen3", constant and (in_weights == in_weights[:, :1]).all()
    elif c.window_pattern:
        model_type, fits = "smollm3", constant
    elif constant:
        model_type, fits = "llama", True
    else:
        model_type, fits = "ministral3", in_weights is not None
    learned = bool(model.learned_scales())
    by_ssmax_hf = not fits or (trainable and learned)
    if by_ssmax_hf:
        from ssmax_hf import KINDS
        if c.attention_type not in KINDS:
            raise UserError(f"attention_type={c.attention_type} cannot be exported; ssmax_hf.py "
                            f"has {', '.join(KINDS)}")
        model_type = "llama" if model_type == "ministral3" else model_type
        in_weights = torch.ones(c.n_layer, c.n_head)
    return Choice(model_type, in_weights, by_ssmax_hf)


def check_settings(c):
    """Raise a UserError for settings that no class of transformers has."""
    exportable = {field.name for field in dataclasses.fields(GPTConfig)} | {
        "rope_scaling", "rope_factor", "doc_mask"}  # doc_mask matters in training only
    for key, value in non_defaults(c).items():
        if key not in exportable or key == "rope_scaling" and value != "theta":
            raise UserError(f"{key}={value} of this checkpoint cannot be exported; choose a "
                            "checkpoint without it")
    if c.window and c.rope_factor > 1:
        raise UserError(f"a model with windows and rope_factor={c.rope_factor} cannot be exported, "
                        "because RoPE is stretched in some layers only; leave --rope_factor out, "
                        "or choose a checkpoint that was trained without it")
    if c.qk_norm and "L" in c.window_pattern:
        raise UserError(f"qk_norm=True and window_pattern={c.window_pattern} cannot be exported "
                        "together: no class of transformers has both; choose a checkpoint with one "
                        "of them")


@torch.no_grad()
def to_hf(model, choice):
    """Return a model of transformers that computes the same as ours, by a Choice of `choose`."""
    c = model.config
    theta = c.rope_theta * c.rope_factor
    rope, special = {"rope_type": "default", "rope_theta": theta}, {}
    letters = [c.letter(i) for i in range(c.n_layer)]
    types = ["sliding_attention" if letter == "S" else "full_attention" for letter in letters]
    if choice.model_type == "ministral3":
        # llama.cpp's converter wants YaRN, which does nothing with the factor 1
        rope |= {"rope_type": "yarn", "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                 "beta_fast": 32.0, "beta_slow": 1.0, "llama_4_scaling_beta": BETA,
                 "original_max_position_embeddings": 1}
        special = {"sliding_window": None}
    elif choice.model_type in ("smollm3", "qwen3"):
        special = {"layer_types": types, "sliding_window": c.window or None,
                   "use_sliding_window": bool(c.window)}
    if choice.model_type == "smollm3":
        special["no_rope_layers"] = [int(letter != "L") for letter in letters]
    config_class, model_class = classes(choice.model_type)
    config = config_class(
        vocab_size=c.vocab_size, hidden_size=c.n_embd, intermediate_size=c.n_inner,
        num_hidden_layers=c.n_layer, num_attention_heads=c.n_head, head_dim=c.n_embd // c.n_head,
        num_key_value_heads=c.n_kv_head or c.n_head, rms_norm_eps=c.norm_eps,
        initializer_range=c.init_std, tie_word_embeddings=False, rope_parameters=rope,
        # the embedding of a pad token would not be trained; Ministral3's default is token 11
        pad_token_id=None, training_length=c.block_size,
        # Clients cut prompts at this length. Not more, because vLLM and llama.cpp reserve memory
        # for it: 4.8 GB for 131,072 tokens of the paper's model in fp16.
        max_position_embeddings=max(2**17, 32 * c.block_size), **special)
    hf_model = model_class(config)
    # fails unless the names are exactly those of hf_model
    hf_model.load_state_dict(to_tensors(model, choice))
    if choice.by_ssmax_hf:
        from ssmax_hf import add_ssmax
        layers = [i for i, letter in enumerate(letters) if letter != "S"]
        add_ssmax(hf_model, c.attention_type, s=1.0, length=c.block_size, layers=layers)
        for i in layers:
            factor, attn = hf_model.model.layers[i].self_attn.ssmax_norm, model.blocks[i].attn
            factor.s.copy_(attn.s)
            factor.b.copy_(attn.b)
    return hf_model.eval()


def to_tensors(model, choice):
    """Return copies of the parameters under transformers' names."""
    c, ours, tensors = model.config, model.state_dict(), {}
    width = c.n_embd // c.n_head  # rows of W_q for each head
    kv = width * (c.n_kv_head or c.n_head)
    for name, parts in parameter_names(c).items():
        rows = ours[name].clone()
        sizes = (c.n_embd, kv, kv) if "qkv" in name else len(rows) // len(parts)
        tensors |= dict(zip(parts, rows.split(sizes), strict=True))
    for i, factors in enumerate(choice.in_weights):
        attn = f"model.layers.{i}.self_attn."
        if choice.model_type == "qwen3":
            tensors[attn + "q_norm.weight"] *= factors[0]
            continue
        rows = factors.repeat_interleave(width)[:, None]
        if choice.model_type == "ministral3":
            rows = rows / BETA**0.5
            tensors[attn + "k_proj.weight"] /= BETA**0.5
        tensors[attn + "q_proj.weight"] *= rows
    return tensors
