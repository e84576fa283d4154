"""
A model of transformers in the place of ours, for the evaluations and sample.py: a folder with a
config.json is a checkpoint. The attention is transformers' own. --attention_type puts in a factor
by ssmax_hf.py, and --rope_scaling stretches RoPE in the layers that see all keys.
"""
import inspect
import json
import math
import zlib
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from lib.errors import UserError, explain
from lib.interop import tokenizer_files
from lib.ranks import print0
from model import GPT

PIECE = 2048  # tokens that go through the model at once, so that memory is linear in the length


def load(folder, cfg, device="cpu"):
    """
    Return (HFModel in eval mode, dict like that of a checkpoint) for a folder of transformers.

    cfg: a LoadConfig. UserError if transformers cannot read the model, or if it cannot be changed
    as cfg says.
    """
    with explain(f"{folder} needs transformers: pip install '.[hf]'", ImportError):
        from ssmax_hf import add_ssmax
    with readable(folder):
        hf_config = read_config(folder)
    c = hf_config.get_text_config()
    length = training_length(folder, c, cfg.length)
    if cfg.rope_factor > 1 or cfg.rope_scaling == "nope":
        stretch(folder, c, cfg, length)
    with readable(folder):
        hf_model = read_weights(folder, hf_config)
    own = getattr(c, "ssmax", {"kind": "softmax"})["kind"]
    if cfg.attention_type:
        with explain(f"{folder} cannot get --attention_type={cfg.attention_type}", ValueError):
            add_ssmax(hf_model, cfg.attention_type, scale=cfg.swap_scale, length=length)
    model = HFModel(hf_model.to(device), cfg.attention_type or own, length)
    print0(f"{folder}: a {c.model_type}, trained at {length:,} tokens")
    vocab = getattr(c, "compact_vocab", None)  # of a model that hf.py has exported
    if vocab is None:
        vocab = tokenizer_files.vocab_of(tokenizer_files.read(folder))
    return model, {
        "model_config": vars(model.config) | {"attention_type": own}, "base": "", "iter": 0,
        "config": {"seed": 0, "model": folder.resolve().name}, "variant": folder.resolve().name,
        "vocab": vocab, "data": {"digest": "", "source": {"model": folder.resolve().name}},
        "code": "", "fingerprint": fingerprint(hf_model)}


def readable(folder):
    """Return a context in which an error is a UserError: transformers cannot read the model."""
    return explain(f"{folder} is not a causal language model that transformers can read, or it is "
                   "incomplete; name the folder of a whole model")


def read_config(folder):
    """Return the config of transformers for a folder."""
    from transformers import AutoConfig

    import ssmax_hf  # noqa: F401  puts the factor into a model that was saved with one
    hf_config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    hf_config._attn_implementation = None  # a config.json could name code to download and run
    return hf_config


def read_weights(folder, hf_config):
    """Return the model of transformers, in fp32 and eval mode. UserError if weights are missing or
    left over."""
    from transformers import AutoModelForCausalLM
    hf_model, info = AutoModelForCausalLM.from_pretrained(
        folder, config=hf_config, dtype=torch.float32, output_loading_info=True,
        ignore_mismatched_sizes=True, trust_remote_code=False)
    wrong = info["missing_keys"] | info["unexpected_keys"]
    wrong |= {name for name, *_ in info["mismatched_keys"]}
    if wrong:  # transformers only warns and uses random numbers for them
        raise UserError(f"{folder}: its settings and weights differ in "
                        f"{', '.join(sorted(wrong))[:200]}; get a whole copy of the model")
    return hf_model.eval()


def fingerprint(hf_model):
    """Return 8 hex digits that identify the weights, from a thousand numbers of each tensor, and
    the settings: an edited config.json is another model."""
    settings = hf_model.config.to_dict() | {"_name_or_path": "", "transformers_version": ""}
    crc = zlib.crc32(json.dumps(settings, sort_keys=True, default=str).encode())
    for p in hf_model.parameters():
        numbers = p.detach().flatten()[::1 + p.numel() // 1000]
        crc = zlib.crc32(numbers.float().cpu().numpy().tobytes(), crc)
    return f"{crc:08x}"


# -----------------------------------------------------------------------------
# RoPE and the training length


def rope_of(c):
    """Return the rope_parameters of the layers that see all keys, {} if there are none."""
    rope = getattr(c, "rope_parameters", None) or {}
    return rope.get("full_attention", rope)  # some models have one dict for each kind of layer


def training_length(folder, c, given=0):
    """
    Return the length in tokens at which a model was trained: what its RoPE was stretched from, or
    else its max_position_embeddings, or else `given`. (Our own exports name it, because their
    max_position_embeddings is larger.)
    """
    lengths = (getattr(c, "training_length", None),
               rope_of(c).get("original_max_position_embeddings"),
               getattr(c, "max_position_embeddings", None), given)
    length = next(filter(None, lengths), None)
    if length is None:
        raise UserError(f"the config.json of {folder} does not say at which length this "
                        f"{c.model_type} was trained; give it: --length=2048")
    return length


def stretch(folder, c, cfg, length):
    """
    Stretch RoPE in a config of transformers as cfg says, in the layers that see all keys where they
    have rope_parameters of their own. What these parameters hold is kept: transformers would take
    10,000 for a rope_theta that is missing. UserError for a model without RoPE, or with RoPE that
    is stretched already.
    """
    rope, factor = rope_of(c), cfg.rope_factor
    if not rope.get("rope_theta"):
        raise UserError(f"{folder} is a {c.model_type} without RoPE, which cannot be stretched: "
                        "leave rope_scaling and rope_factor out")
    if rope.get("rope_type", "default") != "default":
        raise UserError(f"the RoPE of {folder} is stretched already, by rope_type="
                        f"{rope['rope_type']} in its config.json: leave rope_scaling and "
                        "rope_factor out")
    if cfg.rope_scaling == "nope":
        raise UserError("rope_scaling=nope is for checkpoints of train.py: choose yarn")
    if cfg.rope_scaling == "theta":
        rope["rope_theta"] *= factor
    elif cfg.rope_scaling == "ntk":  # the lowest frequency is divided by the factor
        head_size = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        D = head_size * rope.get("partial_rotary_factor", 1.0)
        rope["rope_theta"] *= factor ** (D / (D - 2))
    else:
        rope |= {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": length}
        if cfg.rope_scaling == "yarn_no_temperature":
            rope["attention_factor"] = 1.0
    c.max_position_embeddings = int(length * factor)


# -----------------------------------------------------------------------------
# the model


@dataclass(frozen=True)
class Facts:
    """What a result says about a model of transformers; the names are those of GPTConfig."""
    model_type: str  # of transformers
    attention_type: str
    block_size: int
    vocab_size: int
    n_layer: int
    n_head: int
    n_kv_head: int
    n_embd: int
    n_inner: int
    rope: str


class HFModel(nn.Module):
    """The methods of GPT (model.py) that the evaluations and sample.py call."""

    def __init__(self, hf_model, attention_type, length):
        super().__init__()
        self.hf_model = hf_model
        c = hf_model.config.get_text_config()
        heads = getattr(c, "num_attention_heads", 0)
        self.config = Facts(
            c.model_type, attention_type, length, c.vocab_size, c.num_hidden_layers, heads,
            getattr(c, "num_key_value_heads", heads), c.hidden_size,
            getattr(c, "intermediate_size", 0), str(rope_of(c)))
        # Positions that are learned end at max_position_embeddings; others have no end.
        learned = not rope_of(c) and any("position" in name or name.endswith("wpe.weight")
                                         for name, _ in hf_model.named_parameters())
        self.max_len = c.max_position_embeddings if learned else math.inf
        self.wte, self.lm_head = hf_model.get_input_embeddings(), hf_model.get_output_embeddings()
        # the name since transformers 5.24, and the one before it
        names = inspect.signature(hf_model.forward).parameters
        self.cache_name = "cache" if "cache" in names else "past_key_values"
        self.checked = False

    def hidden(self, idx, cache=None):
        """Return the last hidden states (B, T, C) of idx (B, T), which continues the tokens in
        `cache`, one of transformers."""
        decoder = self.hf_model.get_decoder()
        if cache is None and not self.checked:
            self.checked = True
            self.check_head(idx[:1, :8])
        if idx.size(1) <= PIECE and cache is None:
            return decoder(idx, use_cache=False).last_hidden_state
        options = {self.cache_name: cache or self.new_cache(), "use_cache": True}
        pieces = [decoder(piece, **options).last_hidden_state for piece in idx.split(PIECE, dim=1)]
        return torch.cat(pieces, dim=1)

    def new_cache(self):
        from transformers import DynamicCache
        return DynamicCache(config=self.hf_model.config)

    def check_head(self, idx):
        """UserError if the logits are not the hidden states times lm_head, which is how the loss is
        computed in chunks."""
        with torch.autocast(idx.device.type, enabled=False):
            logits = self.hf_model(idx, use_cache=False).logits
            if not torch.allclose(self.hidden(idx) @ self.lm_head.weight.T, logits, atol=1e-3):
                raise UserError(f"{type(self.hf_model).__name__} caps or scales its logits, or has "
                                "a bias there, so its loss cannot be measured; choose another "
                                "model")

    def forward(self, idx, cache=None):
        """Return the logits (B, 1, V) of the last position, and None, as GPT.forward does."""
        return self.lm_head(self.hidden(idx, cache)[:, -1:]), None

    generate = GPT.generate

    @torch.no_grad()
    def last_query_attention(self, idx):
        """Return the attention weights (B, n_layer, n_head, T) of the last position of idx (B, T),
        in fp32. UserError if some layers have no attention weights."""
        hf_model, cache = self.hf_model, self.new_cache()
        self.hidden(idx[:, :-1], cache)
        implementation = hf_model.config._attn_implementation
        hf_model.set_attn_implementation("eager")  # the only one that returns its weights
        out = hf_model(idx[:, -1:], output_attentions=True, use_cache=True,
                       **{self.cache_name: cache})
        hf_model.set_attn_implementation(implementation)
        T, weights = idx.size(1), out.attentions or ()
        if len(weights) != self.config.n_layer:
            raise UserError(f"{type(hf_model).__name__} has attention weights in {len(weights)} of "
                            f"its {self.config.n_layer} layers; measure needles without --trials")
        # a layer with a window has the weights of the last keys alone
        return torch.stack([F.pad(layer[:, :, 0].float(), (T - layer.size(-1), 0))
                            for layer in weights], dim=1)
