"""
The same model here and in transformers: Llama's settings and tensors under other names, read in one
direction for an import and in the other for an export. Our models leave as

    llama       all layers see all keys, with RoPE
    qwen3       qk_norm
    smollm3     layers with a window, and layers without position
    ministral3  s log n: this class multiplies the query by 1 + BETA log n

A factor that is the same for all n is multiplied into W_q. Another one needs ssmax_hf.py.
"""
import copy

import torch

from lib.attention import ModelConfig
from lib.errors import UserError
from lib.interop.hf_model import training_length
from model import ATTENTION

IMPORTED = ("llama", "mistral", "qwen3", "smollm3")

SETTINGS = {
    "vocab_size": "vocab_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
    "n_kv_head": "num_key_value_heads", "n_embd": "hidden_size", "n_inner": "intermediate_size",
    "norm_eps": "rms_norm_eps", "init_std": "initializer_range",
}
LETTERS = {  # of model.py, in layer_types and no_rope_layers (where 1 means RoPE)
    "R": ("full_attention", 1), "L": ("full_attention", 0), "S": ("sliding_attention", 1),
}
OUTER = {
    "wte.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "lm_head.weight": "lm_head.weight",
}
LAYER = {  # our parameter has the rows of all of theirs
    "norm_1.weight": ["input_layernorm.weight"],
    "attn.qkv.weight": [f"self_attn.{x}_proj.weight" for x in "qkv"],
    "attn.q_norm.weight": ["self_attn.q_norm.weight"],
    "attn.k_norm.weight": ["self_attn.k_norm.weight"],
    "attn.s": ["self_attn.ssmax_norm.s"],
    "attn.b": ["self_attn.ssmax_norm.b"],
    "attn.proj.weight": ["self_attn.o_proj.weight"],
    "norm_2.weight": ["post_attention_layernorm.weight"],
    "mlp.gate_up.weight": ["mlp.gate_proj.weight", "mlp.up_proj.weight"],
    "mlp.down.weight": ["mlp.down_proj.weight"],
}

# W_q is multiplied by s, and W_q and W_k are divided by the root of BETA each. With Ministral3's
# factor the result is s (log n + 1/BETA). A larger BETA overflows in fp16: BETA log n is below
# 65,504 up to n = 8 million.
BETA = 2.0**12


def names_in_transformers(name):
    """Return the parameters of transformers whose rows our parameter of this name has."""
    if name in OUTER:
        return [OUTER[name]]
    _, layer, rest = name.split(".", 2)
    return [f"model.layers.{layer}.{part}" for part in LAYER[rest]]


def those_true(reasons):
    """Return the keys of {reason: whether it applies} that apply, as a text."""
    return " and ".join(reason for reason, applies in reasons.items() if applies)


# -----------------------------------------------------------------------------
# from transformers


def to_config(hf_config, source):
    """Return the ModelConfig for a config of transformers; UserError for what model.py lacks."""
    advice = "choose another model, or measure it in its folder (docs/models.md)"
    if hf_config.model_type not in IMPORTED:
        raise UserError(f"{source} has the model_type {hf_config.model_type}, and hf.py imports "
                        f"{', '.join(IMPORTED)}: {advice}")
    settings = {ours: getattr(hf_config, theirs) for ours, theirs in SETTINGS.items()}
    rope, N = hf_config.rope_parameters, training_length(hf_config)
    width = settings["n_embd"] / settings["n_head"]
    head_dim = getattr(hf_config, "head_dim", None) or width
    pattern = pattern_of(hf_config)
    full = [layer for layer, letter in enumerate(pattern) if letter != "S"]
    ssmax = getattr(hf_config, "ssmax", {"kind": "softmax", "layers": full, "length": N})
    if lacks := those_true({
        f"scaled RoPE (rope_type {rope['rope_type']})": rope["rope_type"] != "default",
        f"heads {head_dim} wide, where hidden_size / num_attention_heads is {width:g}":
            head_dim != width,
        "windows without RoPE": "?" in pattern,
        f"SSMax in the layers {ssmax['layers']} and for length={ssmax['length']}":
            ssmax["layers"] != full or ssmax["length"] != N,
    }):
        raise UserError(f"{source}: this {hf_config.model_type} has {lacks}, which model.py lacks: "
                        f"{advice}")
    return ModelConfig(
        attention_type=ssmax["kind"], block_size=N, rope_theta=float(rope["rope_theta"]),
        qk_norm=hf_config.model_type == "qwen3",
        window=hf_config.sliding_window if "S" in pattern else 0,
        window_pattern="" if set(pattern) == {"R"} else pattern, **settings)


def pattern_of(hf_config):
    """Return the letter of each layer in model.py, or "?" where it has none."""
    layers = hf_config.num_hidden_layers
    window = getattr(hf_config, "sliding_window", None)
    every = "sliding_attention" if window else "full_attention"
    types = getattr(hf_config, "layer_types", None) or [every] * layers
    has_rope = getattr(hf_config, "no_rope_layers", None) or [1] * layers
    letters = {layer: letter for letter, layer in LETTERS.items()}
    return "".join(letters.get(layer, "?") for layer in zip(types, has_rope, strict=True))


def from_hf(hf_model, model):
    """Return the state dict of `model`, ours, for a model of transformers."""
    tensors = hf_model.state_dict()
    return {name: torch.cat([tensors[part] for part in names_in_transformers(name)])
            for name in model.state_dict()}


# -----------------------------------------------------------------------------
# to transformers


def choose(c, trainable):
    """
    Return (model_type, whether the factor needs ssmax_hf.py) for a ModelConfig. UserError if no
    class of transformers computes it. trainable: s and b stay parameters.
    """
    from ssmax_hf import KINDS
    if lacks := those_true({
        f"attention={c.attention}": c.attention,
        f"attention_type={c.attention_type}": c.attention_type not in ("softmax", *KINDS),
        f"rope_scaling={c.rope_scaling}": c.rope_scaling not in ("", "theta"),
        f"rope_factor={c.rope_factor} with windows, which are not stretched":
            c.window and c.rope_factor > 1,
        f"qk_norm=True with window_pattern={c.window_pattern}":
            c.qk_norm and "L" in c.window_pattern,
    }):
        raise UserError(f"{lacks} cannot be exported, because no class of transformers has it: "
                        "choose a checkpoint without it")
    model_type = "qwen3" if c.qk_norm else "smollm3" if c.window_pattern else "llama"
    if c.attention_type == "softmax":
        return model_type, False
    if c.attention_type == "head_scale" and not (c.qk_norm or trainable):
        return model_type, False
    if c.attention_type in ("ssmax", "ssmax_s1") and model_type == "llama" and not trainable:
        return "ministral3", False
    return model_type, True


@torch.no_grad()
def to_hf(model, trainable=False):
    """Return a model of transformers that computes the same as ours. trainable and errors: see
    `choose`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from ssmax_hf import add_ssmax
    c = model.config
    model_type, by_ssmax_hf = choose(c, trainable)
    letters = [c.letter(layer) for layer in range(c.n_layer)]
    layer_types, has_rope = zip(*(LETTERS[letter] for letter in letters), strict=True)
    rope = {"rope_type": "default", "rope_theta": c.rope_theta * c.rope_factor}
    settings = {theirs: getattr(c, ours) for ours, theirs in SETTINGS.items()}
    settings["num_key_value_heads"] = c.n_kv_head or c.n_head
    if model_type in ("qwen3", "smollm3"):
        settings |= {"layer_types": list(layer_types), "no_rope_layers": list(has_rope),
                     "sliding_window": c.window or None, "use_sliding_window": bool(c.window)}
    if model_type == "ministral3":
        settings["sliding_window"] = None
        # llama.cpp's converter wants YaRN, which does nothing with the factor 1
        rope |= {"rope_type": "yarn", "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                 "beta_fast": 32.0, "beta_slow": 1.0, "llama_4_scaling_beta": BETA,
                 "original_max_position_embeddings": 1}
    hf_model = AutoModelForCausalLM.from_config(AutoConfig.for_model(
        model_type, head_dim=c.n_embd // c.n_head, tie_word_embeddings=False, rope_parameters=rope,
        # Token ids stand in generation_config.json; a default of the class may be any token here.
        # The embedding of a pad token would not even be trained.
        bos_token_id=None, eos_token_id=None, pad_token_id=None, training_length=c.block_size,
        # Clients cut prompts at this length. Not more, because vLLM and llama.cpp reserve memory
        # for it: 4.8 GB for 131,072 tokens of the paper's model in fp16.
        max_position_embeddings=max(2**17, 32 * c.block_size), **settings))
    if by_ssmax_hf:
        full = [layer for layer, letter in enumerate(letters) if letter != "S"]
        add_ssmax(hf_model, c.attention_type, s=1.0, length=c.block_size, layers=full)
    else:
        model = copy.deepcopy(model)
        for block in model.blocks:
            put_into_weights(block.attn, model, model_type)
    # not strict: a factor that is not learned has tensors there, and none here
    hf_model.load_state_dict(to_tensors(model, hf_model), strict=False)
    return hf_model.eval()


def put_into_weights(attn, model, model_type):
    """Multiply W_q by the factor of a layer, and for Ministral3 by what its factor lacks."""
    if attn.type == "softmax":
        return
    factor = attn.factor(ATTENTION[attn.type].f(torch.ones(1, dtype=torch.long), model))[:, 0]
    if model_type == "ministral3":
        factor = attn.s / BETA**0.5
        keys = slice(attn.n_head * attn.head_size, -attn.n_kv_head * attn.head_size)
        attn.qkv.weight[keys] /= BETA**0.5
    attn.scale_queries(factor.repeat_interleave(attn.head_size)[:, None])


def to_tensors(model, hf_model):
    """Return the tensors that a model of transformers has, from ours. (s and b may be in the
    weights.)"""
    sizes = {name: len(rows) for name, rows in hf_model.state_dict().items()}
    tensors = {}
    for name, rows in model.state_dict().items():
        parts = names_in_transformers(name)
        if parts[0] in sizes:
            rows = rows.split([sizes[part] for part in parts])
            tensors |= dict(zip(parts, rows, strict=True))
    return tensors
