"""
A Hugging Face model in the place of ours, for the evaluations and sample.py: a folder with a
config.json is a checkpoint. The attention is transformers' own. --attention_type puts in a factor
by ssmax_hf.py, and --rope_scaling stretches RoPE in the layers that see all keys.
"""
import copy
import inspect
import itertools
import json
import math
import os
import zlib
from types import SimpleNamespace

import torch
import torch.nn.functional as F
import transformers
from torch import nn

from lib import models, runtime
from lib.errors import UserError, explain
from lib.interop import tokenizer_files
from lib.ranks import print0
from lib.text import vocab_of
from model import GPT
from ssmax_hf import KINDS, add_ssmax, rope_of, sees_all, training_length  # loads factors, too

PIECE = 1024  # tokens that go through the model at once, so that memory is linear in the length
FIRST_PIECE = 2**14  # the first one, if it needs no mask: this takes a quarter less time


def load(folder, cfg, device="cpu"):
    """
    Return (HFModel in eval mode, dict like that of a checkpoint) for a Hugging Face folder.

    cfg: a LoadConfig. UserError if transformers cannot read the model, or if it cannot be changed
    as cfg says: this is known before the weights are read.
    """
    def put_factor_in(hf_model):
        if cfg.attention_type:
            with explain(f"{folder} cannot get --attention_type={cfg.attention_type}", ValueError):
                add_ssmax(hf_model, cfg.attention_type, scale=cfg.swap_scale, length=length)

    if cfg.attention:
        raise UserError(f"{folder} is a Hugging Face model, which has its own attention: leave "
                        f"--attention={cfg.attention} out")
    hf_config = read_config(folder)
    c = hf_config.get_text_config()
    rope_type = rope_of(c).get("rope_type")
    if rope_type in ("dynamic", "longrope"):
        raise UserError(f"{folder} has rope_type={rope_type}: its RoPE, and so its results, depend "
                        "on the longest text of a batch; choose another model")
    own = getattr(c, "ssmax", {}).get("kind", "softmax")
    trained_rope = str(rope_of(c))  # before it is stretched
    length = length_of(folder, c, cfg.length)
    if cfg.rope_factor > 1:
        stretch(folder, c, cfg, length)
    if hasattr(c, "compact_vocab"):  # of a model that hf.py has exported
        vocab = vocab_of(c.compact_vocab)
    else:
        vocab = tokenizer_files.read_tokenizer(folder)
    with readable(folder):
        # First an empty copy, to refuse before the weights are read. (A copy of the config, too,
        # because building a model may change it.)
        with torch.device("meta"):
            empty = transformers.AutoModelForCausalLM.from_config(
                copy.deepcopy(hf_config), trust_remote_code=False)
        check_memory(folder, empty, cfg, torch.device(device))
        put_factor_in(empty)
        hf_model = read_weights(folder, hf_config)
    identity = fingerprint(folder, hf_model)
    put_factor_in(hf_model)
    model = HFModel(hf_model.to(device), cfg.attention_type or own, length, vocab.front)
    model.check_pieces(folder)
    print0(f"{folder}: a {c.model_type}, trained at {length:,} tokens")
    name = folder.resolve().name
    return model, {
        "model_config": vars(model.config) | {"attention_type": own, "rope": trained_rope},
        "config": {"seed": 0, "model": name, "transformers": transformers.__version__},
        "variant": name, "iter": 0,
        "vocab": vocab, "bos": vocab.front,  # the id that begins its texts, or None
        "data": {"digest": "", "source": {"model": name}}, "code": "",
        "attention_code": models.code_of(model.config, KINDS), "fingerprint": identity}


def readable(folder):
    """Return a context in which an error is a UserError: transformers cannot read the model."""
    return explain(f"{folder} is not a causal language model that transformers can read, or it is "
                   "incomplete; name the folder of a whole model")


def read_config(folder):
    """Return the config of transformers for a folder."""
    with readable(folder):
        hf_config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
        content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        content = content.get("text_config") or content
        rope = rope_of(SimpleNamespace(rope_parameters=content.get("rope_parameters")))
        theta = rope_of(hf_config.get_text_config()).get("rope_theta")
        # transformers reads one place alone: rope_scaling, if it is there, and else rope_parameters
        for written in (content.get("rope_theta"), rope.get("rope_theta")):
            if theta and written and written != theta:
                raise UserError(f"the config.json of {folder} says rope_theta={written}, and "
                                f"transformers reads {theta}: write the right one beside rope_type")
    hf_config._attn_implementation = None  # a config.json could name code to download and run
    return hf_config


def read_weights(folder, hf_config):
    """Return the Hugging Face model, in fp32 and eval mode. UserError if weights are missing or
    left over."""
    hf_model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, config=hf_config, dtype=torch.float32, output_loading_info=True,
        ignore_mismatched_sizes=True, trust_remote_code=False)
    wrong = info["missing_keys"] | info["unexpected_keys"]
    wrong |= {name for name, *_ in info["mismatched_keys"]}
    if wrong:  # transformers only warns and uses random numbers for them
        raise UserError(f"{folder}: its settings and weights differ in "
                        f"{', '.join(sorted(wrong))[:200]}; get a complete copy of the model")
    return hf_model.eval()


def fingerprint(folder, hf_model):
    """Return 8 hex digits that identify the config.json of a folder and its weights, of which a
    thousand numbers of each tensor count."""
    crc = zlib.crc32((folder / "config.json").read_bytes())
    for p in hf_model.parameters():
        numbers = p.detach().flatten()[::1 + p.numel() // 1000]
        crc = zlib.crc32(numbers.float().numpy().tobytes(), crc)
    return f"{crc:08x}"


def check_memory(folder, empty, cfg, device):
    """Raise a UserError if the weights, and the keys and values of the longest text that `cfg` asks
    for, in the layers that see all of it, are larger than the memory of the device."""
    c = empty.config.get_text_config()
    sizes = cfg.trial_sizes if getattr(cfg, "trials", 0) else getattr(cfg, "context_sizes", ())
    T = max(getattr(cfg, "seq_len", 0), *sizes, 0)
    numbers = 0  # of keys and values
    layers = getattr(c, "per_layer_config", None) or [c] * c.num_hidden_layers
    for layer, kind in zip(layers, layer_types(c), strict=True):
        if kind == "full_attention":
            heads = getattr(layer, "num_attention_heads", None) or 1
            width = getattr(layer, "head_dim", None) or layer.hidden_size // heads
            numbers += 2 * T * (getattr(layer, "num_key_value_heads", None) or heads) * width
    size_of_number = 2 if runtime.dtype_name(device, cfg.dtype) == "bfloat16" else 4
    weights = 4 * sum(p.numel() for p in empty.parameters())
    needed = weights + numbers * size_of_number
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
    else:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory:
        advice = "ask for shorter texts" if weights < memory else "choose a smaller model"
        raise UserError(f"{folder} needs more than {needed / 2**30:.1f} GiB for {T:,} tokens, and "
                        f"this machine has {memory / 2**30:.1f}: {advice}")


# -----------------------------------------------------------------------------
# RoPE and the training length


def layer_types(c):
    return getattr(c, "layer_types", None) or [
        "full_attention" if sees_all(c, layer) else "sliding_attention"
        for layer in range(c.num_hidden_layers)]


def length_of(folder, c, given=0):
    """Return the training length that the config c says, or the one that the command gives."""
    length = training_length(c) or given
    if given and length != given:
        raise UserError(f"the config.json of {folder} says {length} tokens: leave --length={given} "
                        f"out, or, if this is right, write \"training_length\": {given} into it")
    if not length:
        raise UserError(f"the config.json of {folder} does not say at which length this "
                        f"{c.model_type} was trained; write \"training_length\": 2048 into it "
                        "(evaluations also take --length=2048)")
    if type(length) is not int or length < 2:
        raise UserError(f"a training length of {length} tokens, in the config.json of {folder} or "
                        "by --length, is no whole number above 1: correct it")
    return length


def stretch(folder, c, cfg, length):
    """
    Stretch RoPE in a config of transformers as cfg says, in the layers that see all keys. UserError
    for a model without RoPE there, or whose windows would be stretched, too, and for RoPE of
    another kind, such as one that is stretched already.
    """
    rope, factor, kinds = rope_of(c), cfg.rope_factor, set(layer_types(c))
    if not rope.get("rope_theta") or "full_attention" not in kinds:
        raise UserError(f"{folder} is a {c.model_type} without RoPE in layers that see all tokens, "
                        "so it cannot be stretched: leave rope_scaling and rope_factor out")
    if rope is c.rope_parameters and kinds & {"sliding_attention", "chunked_attention"}:
        raise UserError(f"{folder} has the same RoPE in layers with a window, or none in the "
                        "others, so it cannot be stretched: leave rope_scaling and rope_factor out")
    rope_type = rope.get("rope_type", "default")
    if rope_type != "default" or getattr(c, "layer_rope_theta", None):  # Granite's, of each layer
        raise UserError(f"the RoPE of {folder} has rope_type={rope_type}, or a theta for each "
                        "layer, in its config.json, so it cannot be stretched: leave rope_scaling "
                        "and rope_factor out")
    if cfg.rope_scaling == "theta":
        rope["rope_theta"] *= factor
    elif cfg.rope_scaling == "ntk":  # the lowest frequency is divided by the factor
        D = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        D *= rope.get("partial_rotary_factor", 1.0)
        rope["rope_theta"] *= factor ** (D / (D - 2))
    else:  # theta is kept: transformers would take 10,000 for one that is missing
        rope |= {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": length}
        if cfg.rope_scaling == "yarn_no_temperature":
            rope["attention_factor"] = 1.0
    c.max_position_embeddings = int(length * factor)


# -----------------------------------------------------------------------------
# the model


class HFModel(nn.Module):
    """The methods of GPT (model.py) that the evaluations and sample.py call."""

    def __init__(self, hf_model, attention_type, length, bos=None):
        """bos: the id that begins every text of the model, as that of <bos>; None without one."""
        super().__init__()
        self.hf_model, self.bos = hf_model, bos
        c = hf_model.config.get_text_config()
        self.config = SimpleNamespace(  # facts for the result; most names are those of GPTConfig
            model_type=c.model_type, attention="", attention_type=attention_type, block_size=length,
            vocab_size=c.vocab_size, n_layer=c.num_hidden_layers, rope=str(rope_of(c)))
        # Positions in a table end at max_position_embeddings; others have no end.
        names = [name for name, _ in (*hf_model.named_parameters(), *hf_model.named_buffers())]
        has_table = not rope_of(c) and any("position" in name or "wpe." in name for name in names)
        # one position is for the id that begins every text
        self.max_len = c.max_position_embeddings - (bos is not None) if has_table else math.inf
        self.wte, self.lm_head = hf_model.get_input_embeddings(), hf_model.get_output_embeddings()
        # the name since transformers 5.24, and the one before it
        arguments = inspect.signature(hf_model.forward).parameters
        self.cache_name = "cache" if "cache" in arguments else "past_key_values"
        if self.cache_name not in arguments:
            raise UserError(f"a {c.model_type} has no KV cache: choose a model with attention")
        # RoPE, no windows, no bias by distance as in ALiBi; and sdpa makes no T x T weights
        self.needs_no_mask = rope_of(c) and hf_model.config._attn_implementation == "sdpa" and all(
            sees_all(c, layer) for layer in range(c.num_hidden_layers))
        self.checked = False

    def new_cache(self):
        return transformers.DynamicCache(config=self.hf_model.config)

    def read(self, idx, cache):
        """Return the last hidden states, piece by piece, of idx (B, T), which continues the tokens
        in `cache`, one of transformers."""
        decoder = self.hf_model.get_decoder()
        if decoder is self.hf_model:  # Llama 4's mistake
            decoder = decoder.model
        n = FIRST_PIECE if self.needs_no_mask and not cache.get_seq_length() else PIECE
        pieces = [idx[:, :n], *idx[:, n:].split(PIECE, dim=1)]
        return [decoder(piece, use_cache=True, **{self.cache_name: cache}).last_hidden_state
                for piece in pieces if piece.size(1)]

    @torch.no_grad()
    def check_pieces(self, folder):
        """UserError if a text in two pieces is not the whole text: Mamba, Jamba and Bamba forget or
        misplace what came before a piece of several tokens."""
        refusal = (f"{folder} is a {self.config.model_type}, which cannot read a text in pieces; "
                   "choose a model with attention alone")
        idx = torch.arange(1, 9, device=self.wte.weight.device)[None]
        with explain(refusal):
            cache = self.new_cache()
            parts = [self.read(part, cache)[0] for part in idx.split(4, dim=1)]
            (whole,) = self.read(idx, self.new_cache())
        if (torch.cat(parts, dim=1) - whole).abs().max() > 1e-3 * whole.abs().max():
            raise UserError(refusal)

    def hidden(self, idx):
        """Return the last hidden states (B, T, C) of idx (B, T). UserError if the logits are not
        their product with lm_head, which is how the loss is computed in chunks."""
        if not self.checked:
            self.checked = True
            self.check_head(idx[:1, :8])
        ids = idx
        if self.bos is not None:  # a piece out of the middle of a text has none
            ids = F.pad(idx, (1, 0), value=self.bos)
        states = self.read(ids, self.new_cache())
        return torch.cat(states, dim=1)[:, -idx.size(1):]

    def check_head(self, idx):
        with torch.autocast(idx.device.type, enabled=False):
            states = torch.cat(self.read(idx, self.new_cache()), dim=1)
            logits = self.hf_model(idx).logits
            if not torch.allclose(states @ self.lm_head.weight.T, logits, atol=1e-3):
                raise UserError(f"{type(self.hf_model).__name__} caps or scales its logits, or has "
                                "a bias there, so its loss cannot be measured; choose another "
                                "model")

    def last(self, idx, cache, **options):
        """Return the output of transformers for the last token of idx (B, T), which continues the
        tokens in `cache`."""
        if idx.size(1) > 1:
            self.read(idx[:, :-1], cache)
        return self.hf_model(idx[:, -1:], use_cache=True, **{self.cache_name: cache}, **options)

    def forward(self, idx, cache):
        """Return the logits (B, 1, V) of the last position, and None, as GPT.forward does."""
        return self.last(idx, cache).logits, None

    @torch.no_grad()
    def generate(self, idx, max_new_tokens, *args, **kwargs):
        """As GPT.generate. What neighbouring rows of idx (B, T) begin with is read once, if it is
        at least half of them: a hay of task=every_depth, of which each row asks another question.
        """
        groups = [torch.stack([*rows]) for _, rows in itertools.groupby(
            idx, key=lambda row: row[:(row.numel() + 1) // 2].tolist())]
        are_equal = (idx == idx[:1]).all()  # as sample.py asks
        if len(groups) == len(idx) or are_equal:  # GPT.generate needs new_cache and forward alone
            return GPT.generate(self, idx, max_new_tokens, *args, **kwargs)
        if len(groups) > 1:
            return torch.cat([self.generate(group, max_new_tokens, *args, **kwargs)
                              for group in groups])
        differs = (idx != idx[:1]).any(dim=0).nonzero()[:, 0].tolist()
        n = differs[0]
        begun = self.new_cache()
        self.read(idx[:1, :n], begun)
        new = [GPT.generate(self, row[None, n:], max_new_tokens, *args, **kwargs,
                            cache=copy.deepcopy(begun)) for row in idx]
        return torch.cat((idx[:, :n], torch.cat(new)), dim=1)

    @torch.no_grad()
    def last_query_attention(self, idx):
        """Return the attention weights (B, n_layer, n_head, T) of the last position of idx (B, T),
        in fp32. UserError if some layers have no attention weights."""
        hf_model, cache = self.hf_model, self.new_cache()
        self.read(idx[:, :-1], cache)
        implementation = hf_model.config._attn_implementation
        hf_model.set_attn_implementation("eager")  # the only one that returns its weights
        try:
            weights = self.last(idx[:, -1:], cache, output_attentions=True).attentions or ()
        finally:
            hf_model.set_attn_implementation(implementation)
        if len(weights) != self.config.n_layer:
            raise UserError(f"{type(hf_model).__name__} has attention weights in {len(weights)} of "
                            f"its {self.config.n_layer} layers; measure needles without --trials")
        # a layer with a window has the weights of the last keys alone
        T = idx.size(1)
        return torch.stack([F.pad(layer[:, :, 0].float(), (T - layer.size(-1), 0))
                            for layer in weights], dim=1)
