"""
The same model here and in transformers: Llama's settings and tensors under other names, read in one
direction for an import and in the other for an export. Our models leave as

    llama       all layers see all keys, with RoPE
    qwen3       qk_norm
    smollm3     layers with a window, and layers without position
    ministral3  s log n for llama.cpp: this class multiplies the query by 1 + BETA log n

A constant is multiplied into W_q (without qk_norm). Any other factor needs ssmax_hf.py, but for
ministral3.
"""
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
    kind = hf_config.model_type
    if kind not in IMPORTED:
        raise UserError(f"{source} is a {kind}, and hf.py imports {', '.join(IMPORTED)}: measure "
                        "it in its folder (docs/models.md)")
    settings = {ours: getattr(hf_config, theirs) for ours, theirs in SETTINGS.items()}
    rope, N = hf_config.rope_parameters, training_length(hf_config)
    width = hf_config.hidden_size / hf_config.num_attention_heads
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
        raise UserError(f"{source}: this {kind} has {lacks}, which model.py lacks: measure it in "
                        "its folder (docs/models.md)")
    return ModelConfig(
        attention_type=ssmax["kind"], block_size=N, rope_theta=float(rope["rope_theta"]),
        qk_norm=kind == "qwen3",
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


def check_exportable(c, llama_cpp):
    """Raise a UserError if no class of transformers computes the model of this ModelConfig, or none
    that llama.cpp has, too."""
    from ssmax_hf import KINDS
    kinds = KINDS
    if llama_cpp:
        kinds = () if c.qk_norm else ("head_scale", "ssmax", "ssmax_s1")
    if lacks := those_true({
        f"attention={c.attention}": c.attention,
        f"attention_type={c.attention_type} with qk_norm={c.qk_norm}":
            c.attention_type not in ("softmax", *kinds),
        f"rope_scaling={c.rope_scaling}": c.rope_scaling not in ("", "theta"),
        f"rope_factor={c.rope_factor} with a window": c.window and c.rope_factor > 1,
        f"window_pattern={c.window_pattern} with qk_norm={c.qk_norm}":
            c.window_pattern if llama_cpp else c.qk_norm and "L" in c.window_pattern,
    }):
        raise UserError(f"{lacks} cannot be exported, because no class of transformers (or, with "
                        "--llama_cpp, of llama.cpp) has it: choose a checkpoint without it")


@torch.no_grad()
def to_hf(model, llama_cpp=False):
    """
    Return a model of transformers that computes the same as ours. UserError if no class does.

    llama_cpp: of a class that llama.cpp has, too, so that s is in the weights.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    c = model.config
    check_exportable(c, llama_cpp)
    letters = [c.letter(layer) for layer in range(c.n_layer)]
    rope = {"rope_type": "default", "rope_theta": c.rope_theta * c.rope_factor}
    settings = {theirs: getattr(c, ours) for ours, theirs in SETTINGS.items()}
    settings["num_key_value_heads"] = c.n_kv_head or c.n_head
    model_type = "qwen3" if c.qk_norm else "smollm3" if c.window_pattern else "llama"
    if model_type != "llama":
        layer_types, has_rope = zip(*(LETTERS[letter] for letter in letters), strict=True)
        settings |= {"layer_types": list(layer_types), "no_rope_layers": list(has_rope),
                     "use_sliding_window": bool(c.window)}
    is_constant = c.attention_type == "head_scale" and not c.qk_norm  # it goes into the weights
    if c.attention_type == "softmax" or is_constant:
        pass
    elif llama_cpp:
        model_type = "ministral3"
        # llama.cpp's converter wants YaRN, which does nothing with the factor 1
        rope |= {"rope_type": "yarn", "factor": 1.0, "mscale_all_dim": 1.0,
                 "llama_4_scaling_beta": BETA, "original_max_position_embeddings": 1}
    else:
        full = [layer for layer, letter in enumerate(letters) if letter != "S"]
        settings["ssmax"] = {"kind": c.attention_type, "length": c.block_size, "layers": full,
                             "s": 1.0}
    hf_model = AutoModelForCausalLM.from_config(AutoConfig.for_model(
        model_type, head_dim=c.n_embd // c.n_head, tie_word_embeddings=False, rope_parameters=rope,
        sliding_window=c.window or None,
        # Token ids stand in generation_config.json; a default of the class may be any token here.
        # The embedding of a pad token would not even be trained.
        bos_token_id=None, eos_token_id=None, pad_token_id=None, training_length=c.block_size,
        # Clients cut prompts at this length. Not more, because vLLM and llama.cpp reserve memory
        # for it: 4.8 GB for 131,072 tokens of the paper's model in fp16.
        max_position_embeddings=max(2**17, 32 * c.block_size), **settings))
    # Our parameter has the rows of several of theirs, one after the other. A state dict shares the
    # memory of its model.
    tensors = hf_model.state_dict()
    for name, rows in model.state_dict().items():
        for part in names_in_transformers(name):
            if part in tensors:  # s may go into the weights, below
                tensors[part].copy_(rows[:len(tensors[part])])
                rows = rows[len(tensors[part]):]
    for block, layer in zip(model.blocks, hf_model.model.layers, strict=True):
        if is_constant:
            n = torch.ones(1, dtype=torch.long)
            factor = block.attn.factor(ATTENTION[block.attn.type].f(n, model))[:, 0]
        elif model_type == "ministral3":
            factor = block.attn.s / BETA**0.5
            layer.self_attn.k_proj.weight /= BETA**0.5
        else:
            continue
        layer.self_attn.q_proj.weight *= factor.repeat_interleave(block.attn.head_size)[:, None]
    return hf_model.eval()
