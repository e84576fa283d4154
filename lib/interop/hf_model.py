"""
A model of transformers in the place of ours, for the evaluations and sample.py: a folder with a
config.json is a checkpoint. The attention is transformers' own; --attention_type puts in a factor
by ssmax_hf.py. For an import into model.py see hf.py.
"""
import inspect
import math
import zlib
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from lib.attention import ModelConfig
from lib.errors import UserError, explain
from lib.interop import tokenizer_files


def load(source, cfg, device="cpu"):
    """
    Return (HFModel in eval mode, dict like that of a checkpoint) for a folder, a model on the hub
    or a .gguf.

    cfg: a LoadConfig. UserError if transformers cannot read the model, or if it cannot be changed
    as cfg says.
    """
    if cfg.rope_factor > 1 or cfg.rope_scaling == "nope":
        raise UserError(f"rope_scaling={cfg.rope_scaling} and rope_factor={cfg.rope_factor} cannot "
                        "change a model of transformers: edit rope_parameters in "
                        f"{Path(source) / 'config.json'}")
    with explain(f"{source} needs transformers: pip install '.[hf]'", ImportError):
        from ssmax_hf import add_ssmax
    with readable(source):
        hf_config = read_config(source)
        hf_model = read_weights(source, hf_config)
        vocab = tokenizer_files.vocab_of(tokenizer_files.read(source)["tokenizer.json"])
    c = hf_config.get_text_config()
    own = getattr(c, "ssmax", {"kind": "softmax"})["kind"]
    if cfg.attention_type:
        length = training_length(c)
        with explain(f"{source} cannot get --attention_type={cfg.attention_type}", ValueError):
            add_ssmax(hf_model, cfg.attention_type, scale=cfg.swap_scale, length=length)
    model = HFModel(hf_model.to(device), cfg.attention_type or own)
    # no run of ours made it; plot.py needs a seed and a source
    settings = vars(model.config) | {"attention_type": own}
    return model, {
        "model_config": settings, "config": settings | {"seed": 0, "init_from": str(source)},
        "variant": own, "base": None, "iter": 0, "vocab": vocab,
        "data": {"digest": "", "source": {"import": Path(source).resolve().name}},
        "fingerprint": fingerprint(hf_model)}


def readable(source):
    """Return a context in which an error is a UserError: transformers cannot read the model."""
    return explain(f"{source} is not a causal language model that transformers can read, or it is "
                   "incomplete; name a folder, a .gguf or a model on the hub (OWNER/NAME)")


def location(source):
    """Return the arguments of from_pretrained that name a folder, a model on the hub or a .gguf."""
    where = {"pretrained_model_name_or_path": source, "trust_remote_code": False}
    path = Path(source)
    if path.suffix == ".gguf":
        where |= {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    return where


def read_config(source):
    """Return the config of transformers for a folder, a model on the hub or a .gguf."""
    from transformers import AutoConfig

    import ssmax_hf  # noqa: F401  puts the factor into a model that was saved with one
    hf_config = AutoConfig.from_pretrained(**location(source))
    hf_config._attn_implementation = None  # a config.json could name code to download and run
    return hf_config


def read_weights(source, hf_config):
    """Return the model of transformers, in fp32 and eval mode. UserError if weights are missing or
    left over."""
    from transformers import AutoModelForCausalLM
    hf_model, info = AutoModelForCausalLM.from_pretrained(
        **location(source), config=hf_config, dtype=torch.float32, output_loading_info=True,
        ignore_mismatched_sizes=True)
    wrong = info["missing_keys"] | info["unexpected_keys"]
    wrong |= {name for name, *_ in info["mismatched_keys"]}
    if wrong:  # transformers only warns and uses random numbers for them
        raise UserError(f"{source}: its settings and weights differ in "
                        f"{', '.join(sorted(wrong))[:200]}; get a whole copy of the model")
    return hf_model.eval()


def training_length(hf_config):
    """Return the length that a model was trained at. Our own exports name it, because their
    max_position_embeddings is larger."""
    return getattr(hf_config, "training_length", hf_config.max_position_embeddings)


def fingerprint(hf_model):
    """Return 8 hex digits that identify the weights, from a thousand numbers of each tensor."""
    crc = 0
    for p in hf_model.parameters():
        numbers = p.detach().flatten()[::1 + p.numel() // 1000]
        crc = zlib.crc32(numbers.float().cpu().numpy().tobytes(), crc)
    return f"{crc:08x}"


class HFModel(nn.Module):
    """The methods of GPT (model.py) that the evaluations and sample.py call."""
    max_len = math.inf  # of a context; RoPE beyond max_position_embeddings is no error

    def __init__(self, hf_model, attention_type):
        super().__init__()
        from transformers import GenerationConfig
        self.hf_model = hf_model
        # the model's own may have a repetition penalty, which would change greedy answers
        hf_model.generation_config = GenerationConfig(pad_token_id=0)
        c = hf_model.config.get_text_config()
        heads = c.num_attention_heads
        head_size = getattr(c, "head_dim", None) or c.hidden_size // heads
        self.config = ModelConfig(
            attention_type, block_size=training_length(c), vocab_size=c.vocab_size,
            n_layer=c.num_hidden_layers, n_head=heads, n_embd=heads * head_size)
        self.wte, self.lm_head = hf_model.get_input_embeddings(), hf_model.get_output_embeddings()
        self.checked = False

    def hidden(self, idx):
        """Return the last hidden states (B, T, C) of idx (B, T). UserError if the logits are not
        their product with lm_head, which is how the loss is computed in chunks."""
        decoder = self.hf_model.get_decoder()
        if not self.checked:
            with torch.autocast(idx.device.type, enabled=False):
                first = idx[:1, :8]
                x = decoder(first, use_cache=False).last_hidden_state
                logits = self.hf_model(first, use_cache=False).logits
                if not torch.allclose(x @ self.lm_head.weight.T, logits, atol=1e-3):
                    name = type(self.hf_model).__name__
                    raise UserError(f"{name} caps or scales its logits, or has a bias there, so "
                                    "its loss cannot be measured; choose another model")
            self.checked = True
        return decoder(idx, use_cache=False).last_hidden_state

    @torch.no_grad()
    def generate(self, idx, max_new_tokens, temperature=1.0, top_k=0, banned=()):
        """Continue each row of idx (B, T) and return (B, T + max_new_tokens), like GPT.generate."""
        sampling = {"do_sample": False}
        if temperature > 0:
            sampling = {"do_sample": True, "temperature": temperature, "top_k": top_k}
        return self.hf_model.generate(
            idx, attention_mask=torch.ones_like(idx), max_new_tokens=max_new_tokens,
            suppress_tokens=list(banned) or None, **sampling)

    @torch.no_grad()
    def last_query_attention(self, idx):
        """Return the attention weights (B, n_layer, n_head, T) of the last position of idx (B, T),
        in fp32. UserError if some layers have no attention weights."""
        from transformers import DynamicCache
        hf_model, cache = self.hf_model, DynamicCache(config=self.hf_model.config)
        parameters = inspect.signature(hf_model.forward).parameters
        # the name since transformers 5.24, and the one before it
        name = "cache" if "cache" in parameters else "past_key_values"
        hf_model(idx[:, :-1], use_cache=True, logits_to_keep=1, **{name: cache})
        implementation = hf_model.config._attn_implementation
        hf_model.set_attn_implementation("eager")  # the only one that returns its weights
        out = hf_model(idx[:, -1:], output_attentions=True, use_cache=True, **{name: cache})
        hf_model.set_attn_implementation(implementation)
        T, weights = idx.size(1), out.attentions or ()
        if len(weights) != self.config.n_layer:
            raise UserError(f"{type(hf_model).__name__} has attention weights in {len(weights)} of "
                            f"its {self.config.n_layer} layers; measure needles without --trials")
        # a layer with a window has the weights of the last keys alone
        return torch.stack([F.pad(layer[:, :, 0].float(), (T - layer.size(-1), 0))
                            for layer in weights], dim=1)
