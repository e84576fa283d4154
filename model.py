"""
A Llama-like Transformer whose attention is Softmax or a variant of Scalable-Softmax (SSMax):
K. M. Nakanishi, "Scalable-Softmax Is Superior for Attention" (arXiv 2501.19399).

Only mathematics lives here: no files, no ranks, no settings of a run.

Letters: B batch, T new tokens (queries), S keys (cached and new), C n_embd, H n_head, D = C/H,
V vocab_size; n = the number of keys that a query sees = its absolute position + 1.
"""
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F

from lib import rope
from lib.loss import chunked_cross_entropy

# -----------------------------------------------------------------------------
# The attention types. Every one multiplies the query by s * f(n)^g + b, after RoPE and on top of
# 1/sqrt(D): Eqs. 2-4 and 10 of the paper. f takes whole numbers n (T,) and the model, and returns
# fp32 (T,). A new variant is one more line in ATTENTION; nothing else has to know it.


def one(n, model):
    return torch.ones_like(n, dtype=torch.float32)


def log_n(n, model):
    return n.float().log()


def log_n_plus_1(n, model):  # 0 to a learned power would have no gradient
    return (n + 1).float().log()


def mean_log_n(n, model):
    N = model.config.block_size
    # log 1 + ... + log N is log N!
    return torch.full_like(n, math.lgamma(N + 1) / N, dtype=torch.float32)


def p_n(n, model):
    return model.p_n[n - 1]


def clipped(power):
    """max(1, (log n / log N)^power), N the training length: softmax up to there"""
    def f(n, model):
        return (n.float().log() / math.log(model.config.block_size)).pow(power).clamp(min=1)
    return f


def llama4(n, model):  # a step at every multiple of the training length
    return 1 + 0.1 * (1 + n // model.config.block_size).float().log()


def log_floor(n, model):
    return 1 + 0.1 * (n / model.config.block_size).clamp(min=1).log()


class Learned(NamedTuple):
    """A number that each head of each layer learns, in fp32: 144 for the paper's model."""
    start: float | None = None  # None: config.s_init


class Factor(NamedTuple):
    f: Callable
    s: float | Learned = 1.0
    b: float | Learned = 0.0
    g: Learned | None = None  # None: 1


ATTENTION = {
    "softmax": Factor(one),                                      # (a)
    "ssmax": Factor(log_n, s=Learned()),                         # (b), Eq. 2
    "ssmax_s1": Factor(log_n),                                   # (c)
    "ssmax_bias": Factor(log_n, s=Learned(), b=Learned(0.0)),    # (d), Eq. 4
    "pn": Factor(p_n, s=Learned(), b=Learned(0.0)),              # Eq. 3; p_n is one for all layers
    "head_scale": Factor(mean_log_n, s=Learned()),   # control: starts as sharp, but is blind to n
    # rivals that are trained (experiments/matrix/README.md)
    "residual": Factor(log_n, s=Learned(0.0), b=1.0),            # starts as softmax
    "asentmax": Factor(log_n_plus_1, s=Learned(0.55), b=1.0, g=Learned(0.0)),  # arXiv 2506.16640
    # rivals that need no training: softmax weights, swapped at load (--attention_type)
    "logn_clip": Factor(clipped(1)),                             # Qwen, Grok-2
    "sqrt_log": Factor(clipped(0.5)),
    "log_squared": Factor(clipped(2)),
    "llama4": Factor(llama4),
    "log_floor": Factor(log_floor),                              # Inkling
}
SINKS = ("", "off_by_one", "learned")


@dataclass(frozen=True)
class GPTConfig:
    """Defaults: the paper's 162 M model (Appendix A). Its dropout is 0, so there is none here."""
    # model
    attention_type: str = "softmax"  # softmax, ssmax, ...: a name in ATTENTION, model.py
    block_size: int = 1024  # training length in tokens; an evaluation may be longer
    vocab_size: int = 50257  # GPT-2's; a compact corpus brings its own
    n_layer: int = 12  # layers
    n_head: int = 12  # attention heads a layer
    n_kv_head: int = 0  # heads of keys and values, each for several queries' heads; 0: n_head
    n_embd: int = 768  # width of the residual stream
    n_inner: int = 2048  # width of the SwiGLU
    rope_theta: float = 10000.0  # base of the RoPE frequencies
    rope_fraction: float = 1.0  # p-RoPE: only so many of the pairs turn, the fast ones; 0: NoPE
    rope_scaling: str = ""  # RoPE stretched: theta, pi, ntk, yarn, yarn_mscale; or nope
    rope_factor: float = 1.0  # by how much rope_scaling stretches
    alibi: bool = False  # a bias that falls with distance (arXiv 2108.12409); with rope_fraction=0
    sink: str = ""  # one more key of value zero: off_by_one (its logit is 0) or learned
    scale_invariant: bool = False  # of arXiv 2505.17083: no fused kernel, memory T x T
    s_init: float = 1.0  # start of a learned s; the paper says 1 for p_n, nothing for (b), (d)
    init_std: float = 0.02  # of the initial weights; output projections: / sqrt(2 n_layer)
    norm_eps: float = 1e-5  # epsilon of RMSNorm
    qk_norm: bool = False  # RMSNorm on each head's queries and keys before RoPE; not in the paper

    def __post_init__(self):
        choices = {"attention_type": ATTENTION, "rope_scaling": rope.SCALINGS, "sink": SINKS}
        for key, known in choices.items():
            if getattr(self, key) not in known:
                names = ", ".join(filter(None, known))
                raise ValueError(f"{key} {getattr(self, key)} is none of {names}")
        for key in ("block_size", "vocab_size", "n_layer", "n_head", "n_embd", "n_inner",
                    "rope_theta", "init_std", "norm_eps"):
            if getattr(self, key) <= 0:
                raise ValueError(f"{key} must be positive")
        if bool(self.sink) + self.alibi + self.scale_invariant > 1:
            raise ValueError("choose one of alibi, scale_invariant and sink")
        if self.alibi and self.rope_fraction:
            raise ValueError("alibi is instead of RoPE: set --rope_fraction=0 as well")
        if (self.rope_factor > 1) != (self.rope_scaling not in ("", "nope")):
            raise ValueError("rope_scaling (but nope) and a rope_factor above 1 go together")
        if self.rope_factor < 1 or not 0 <= self.rope_fraction <= 1:
            raise ValueError("rope_factor must be at least 1, rope_fraction from 0 to 1")
        if self.n_kv_head < 0 or self.n_head % (self.n_kv_head or 1):
            raise ValueError("n_kv_head must divide n_head")
        if self.n_embd % self.n_head or self.n_embd // self.n_head % 2:
            raise ValueError(f"n_embd/n_head = {self.n_embd}/{self.n_head} must be an even whole "
                             "number: RoPE turns pairs")


class Attention(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.config, self.layer, self.head_size = config, layer, config.n_embd // config.n_head
        self.n_head, self.n_kv_head = config.n_head, config.n_kv_head or config.n_head
        heads = self.n_head + 2 * self.n_kv_head
        # q, k and v of all heads in one product, without biases, as in Llama
        self.qkv = nn.Linear(config.n_embd, heads * self.head_size, bias=False)
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=False)
        norm = nn.RMSNorm if config.qk_norm else nn.Identity  # which takes any arguments
        self.q_norm = norm(self.head_size, config.norm_eps)
        self.k_norm = norm(self.head_size, config.norm_eps)
        self.set_type(config.attention_type)
        if config.sink:
            self.set("sink", Learned(0.0) if config.sink == "learned" else 0.0)

    def set_type(self, attention_type):
        """Make s, b and g as ATTENTION has them."""
        _, s, b, g = ATTENTION[attention_type]
        self.set("s", Learned(self.config.s_init) if s == Learned() else s)
        self.set("b", b)
        self.g = None
        if g:
            self.set("g", g)

    def set(self, name, value):
        """A number a head, (H,): a parameter of rank 1 where it is Learned, or else a constant."""
        learned = isinstance(value, Learned)
        start = (value.start if learned else value) * torch.ones(
            self.n_head, device=self.qkv.weight.device)
        setattr(self, name, nn.Parameter(start) if learned else nn.Buffer(start, persistent=False))

    def queries_keys_values(self, x, position, cache=None):
        """
        x (B, T, C) -> q (B, H, T, D'), k, v (B, H, S', D'): position, SSMax and the cache in them.

        softmax(q k / sqrt(D)) v is attention, and the rest is plain. D' is D, or more with channels
        for what is added to the logits; S' is S, or S + 1 with a sink, in front.
        """
        B, T, C = x.shape
        at, cos, sin, f = position
        heads = self.qkv(x).view(B, T, -1, self.head_size).transpose(1, 2)
        q, k, v = heads.split((self.n_head, self.n_kv_head, self.n_kv_head), dim=1)
        q, k = rope.rotate(self.q_norm(q), cos, sin), rope.rotate(self.k_norm(k), cos, sin)
        if self.g is not None:
            f = f ** self.g[:, None]
        # SSMax: softmax((s log n + b) q k) is n^(s q k) e^(b q k) / sum, Eqs. 2 and 4.
        # On the query: a cached key cannot know the n of queries to come.
        # In fp32 and cast once: log n in bf16 has steps of 0.06 at n = 20,000.
        scale = self.s[:, None] * f + self.b[:, None]  # (H, T)
        q = q * scale[..., None]
        q, k = q.to(v.dtype), k.to(v.dtype)
        if self.config.alibi:
            # -m (i - j) is m j to the softmax of a row: two whole numbers, exact in bf16 to 32,768
            m = 2 ** (-8 * torch.arange(1, self.n_head + 1, device=x.device) / self.n_head)
            q, k, v = (F.pad(z, (0, 2)) for z in (q, k, v))
            q[..., -2:] = m[:, None, None] * self.head_size**0.5
            k[..., -2:] = torch.stack((at // 128 * 128, at % 128), dim=-1)
        if cache is not None:  # keys are stored turned: their position does not change
            k, v = cache.append(self.layer, k, v)
        if self.n_kv_head < self.n_head:  # every fused kernel knows one head for each
            groups = self.n_head // self.n_kv_head
            k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        if self.config.sink:  # not in the cache: it is one key, whatever the context
            sink = self.sink[:, None, None] * self.head_size**0.5
            q = torch.cat((q, sink.to(q.dtype).expand(*q.shape[:-1], 1)), dim=-1)
            k, v = F.pad(k, (0, 1, 1, 0)), F.pad(v, (0, 1, 1, 0))
            k[:, :, 0, -1] = 1
        return q, k, v

    def logits(self, q, k):
        """The logits of T queries at the end of the keys, (B, H, T, S'), in fp32, all at once."""
        with torch.autocast(q.device.type, enabled=False):  # which would make them bf16 again
            z = q.float() @ k.float().transpose(-2, -1) / math.sqrt(self.head_size)
        if self.config.scale_invariant:  # a z + m, both by the distance t, with tau = 10
            T, S = z.shape[-2:]
            i, j = (torch.arange(start, S, device=z.device) for start in (S - T, 0))
            square = 1 + 2 * (1 + (i[:, None] - j).clamp(min=0) / 10).log()
            z = square.sqrt() * z + 1 - square
        return z

    def forward(self, x, position, cache=None):
        B, T, C = x.shape
        q, k, v = self.queries_keys_values(x, position, cache)
        # of the heads' own width: channels must not change the temperature
        S, sink, scale = k.size(2), bool(self.config.sink), 1 / math.sqrt(self.head_size)
        # without cached keys; a mask of T x T would cost 400 MB at 20,000 tokens
        if S == T + sink and T > 1 and not self.config.scale_invariant:
            if sink:  # a query for it, whose answer is dropped:
                q = F.pad(q, (0, 0, 1, 0))
            # every fused kernel knows as many queries as keys
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)[:, :, sink:]
        else:  # T queries at the end of S keys; one query sees them all
            mask = torch.ones(T, S, dtype=torch.bool, device=x.device).tril(S - T)
            if self.config.scale_invariant:
                z = self.logits(q, k).masked_fill(~mask, -math.inf)
                y = z.softmax(dim=-1).to(v.dtype) @ v
            else:
                y = F.scaled_dot_product_attention(q, k, v, mask if T > 1 else None, scale=scale)
        y = y[..., :self.head_size].transpose(1, 2)
        return self.proj(y.reshape(B, T, C))


class MLP(nn.Module):  # SwiGLU (arXiv 2002.05202)
    def __init__(self, config):
        super().__init__()
        self.gate_up = nn.Linear(config.n_embd, 2 * config.n_inner, bias=False)
        self.down = nn.Linear(config.n_inner, config.n_embd, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)  # one product for both is faster than two
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    # norms in front of attention and MLP and none on the stream itself: gradients pass it unchanged
    def __init__(self, config, layer):
        super().__init__()
        self.norm_1 = nn.RMSNorm(config.n_embd, eps=config.norm_eps)
        self.attn = Attention(config, layer)
        self.norm_2 = nn.RMSNorm(config.n_embd, eps=config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x, position, cache=None):
        x = x + self.attn(self.norm_1(x), position, cache)
        return x + self.mlp(self.norm_2(x))


class KVCache:
    """Keys and values of every layer, for `max_len` tokens a sequence; `length` are in it."""

    def __init__(self, max_len):
        # layers are made at their first append, with the device and type of its keys
        self.max_len, self.length, self.layers = max_len, 0, {}

    def append(self, layer, k, v):
        """Store k, v (B, H, T, D) of the next T positions; return all so far, (B, H, S, D)."""
        B, H, T, D = k.shape
        end = self.length + T
        if end > self.max_len:
            raise ValueError(f"the KV cache holds {self.max_len} tokens, {end} asked for")
        if layer not in self.layers:
            # at once for all tokens: growing by cat would copy everything for each new one
            self.layers[layer] = k.new_empty(2, B, H, self.max_len, D)
        keys, values = self.layers[layer]
        keys[:, :, self.length:end] = k
        values[:, :, self.length:end] = v
        return keys[:, :, :end], values[:, :, :end]


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.n_layer))
        self.norm = nn.RMSNorm(config.n_embd, eps=config.norm_eps)
        # not tied to wte: the paper's 162 M only adds up this way
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.add_p_n()
        for name, p in self.named_parameters():
            if p.dim() >= 2:
                # 2 n_layer of them add up in the residual stream (GPT-2)
                residual = name.endswith(("proj.weight", "down.weight"))
                shrink = math.sqrt(2 * config.n_layer) if residual else 1
                nn.init.normal_(p, std=config.init_std / shrink)

    def f(self, n):
        """f(n) of the attention type, n = number of keys (T,) -> fp32 (T,)."""
        return ATTENTION[self.config.attention_type].f(n, self)

    def add_p_n(self):
        self.max_len = math.inf  # the longest context that the attention is defined for
        if ATTENTION[self.config.attention_type].f is p_n:  # which ends where it was trained
            self.max_len = self.config.block_size
            # from 1 on, as the paper: softmax but for s and b
            self.p_n = nn.Parameter(torch.ones(self.max_len, device=self.wte.weight.device))

    def embed(self, idx, start=0):
        """idx (B, T) from position `start` on -> x (B, T, C), and what depends on position."""
        n = start + idx.size(1)
        if n > self.max_len:
            raise ValueError(f"p_n is learned for n <= {self.max_len}, undefined at n = {n}")
        # once for all layers: cosines and f(n) are the same in each
        at = torch.arange(start, n, device=idx.device)
        return self.wte(idx), (at, *rope.tables(at, self.config), self.f(at + 1))

    def hidden(self, idx, cache=None):
        """idx (B, T) -> the last hidden states (B, T, C)."""
        x, position = self.embed(idx, cache.length if cache is not None else 0)
        for block in self.blocks:
            x = block(x, position, cache)
        if cache is not None:  # only here: every layer has written to the same places
            cache.length += idx.size(1)
        return self.norm(x)

    def forward(self, idx, targets=None, cache=None):
        """
        idx (B, T) -> (logits, loss), as in nanoGPT.

        Without targets: the logits of the last position (B, 1, V), and None. With targets (B, T),
        -1 = ignored: all logits (B, T, V), and the mean cross-entropy in nats. The tokens of a
        KVCache `cache` come before idx, and it takes up idx.
        """
        x = self.hidden(idx, cache)
        if targets is None:  # all logits of a prompt of 20,000 tokens would be 4 GB
            return self.lm_head(x[:, [-1]]), None
        logits = self.lm_head(x)
        # in fp32: of a loss near 11 bf16 keeps steps of 0.06
        flat = logits.float().flatten(0, 1)
        return logits, F.cross_entropy(flat, targets.flatten(), ignore_index=-1)

    def loss(self, idx, targets, per_token=False, chunk=0, where=None):
        """
        The cross-entropy in nats, summed over all targets (B, T) that are not -1.

        chunk > 0: only so many rows of logits exist at a time, so that 20,000 tokens fit anywhere;
        where targets are ignored it needs `where`, the places in targets.flatten() that are not.
        per_token: one loss a token (B, T) instead, 0 where ignored; no gradient with `chunk`.
        """
        x, flat = self.hidden(idx).flatten(0, 1), targets.flatten()
        if chunk:
            total, losses = chunked_cross_entropy(x, self.lm_head.weight, flat, chunk, where)
        else:
            logits = self.lm_head(x).float()
            losses = F.cross_entropy(logits, flat, ignore_index=-1, reduction="none")
            total = losses.sum()
        return losses.view_as(targets) if per_token else total

    @torch.no_grad()
    def swap_attention(self, attention_type, scale=1.0):
        """
        Turn a softmax model into another attention type in place, weights kept: (e) and (f).

        s becomes what makes the mean factor on q over a block 1: 1 / mean f(n), 0.168 for SSMax and
        1,024 (section 3.5). Another `scale` is that mean: with head_scale one constant temperature.
        """
        was = self.config.attention_type
        if was != "softmax":
            # others have learned with their factor: 1 / mean f(n) would not keep what they do
            raise ValueError(f"only softmax weights can be swapped, these are {was}")
        # the config is the model's alone, so that a checkpoint says what these weights are now
        self.config = replace(self.config, attention_type=attention_type)
        self.add_p_n()
        n = torch.arange(1, self.config.block_size + 1, device=self.wte.weight.device)
        for block in self.blocks:
            attn = block.attn
            attn.set_type(attention_type)
            f, b = self.f(n), attn.b[0].double()  # in fp64: a sum of 1,024 logarithms
            mean = (f if attn.g is None else f ** attn.g[0]).double().mean()
            if isinstance(attn.s, nn.Parameter):
                attn.s.fill_((scale - b) / mean)
            else:  # (c) has no s to set: its queries shrink instead
                q = attn.q_norm.weight if self.config.qk_norm else attn.qkv.weight
                q[:self.config.n_embd] *= scale / (attn.s[0] * mean + b)  # the first rows make q

    def scales(self):
        """{name: parameter} of what the attention learns: s, b, g and sink by layer, p_n."""
        names = (".attn.s", ".attn.b", ".attn.g", ".attn.sink", "p_n")
        return {name: p for name, p in self.named_parameters() if name.endswith(names)}

    @torch.no_grad()
    def last_query_attention(self, idx):
        """
        The attention weights of the last position of idx (B, T) -> (B, n_layer, n_head, T) in
        fp32, in memory linear in T. Needle scores (section 3.4) are sums over it.
        """
        # the fused kernels keep no weights, so the last row is computed beside them
        x, position = self.embed(idx)
        weights = []
        for block in self.blocks:
            q, k, _ = block.attn.queries_keys_values(block.norm_1(x), position)
            z = block.attn.logits(q[:, :, -1:], k)
            weights.append(z.softmax(dim=-1)[:, :, 0, -idx.size(1):])  # without a sink's
            x = block(x, position)
        return torch.stack(weights, dim=1)

    @torch.no_grad()
    def generate(self, idx, max_new_tokens, temperature=1.0, top_k=0, banned=()):
        """
        Continue each row of idx (B, T), all of one length, -> (B, T + max_new_tokens).

        temperature 0 is greedy; `top_k` keeps the k likeliest tokens, 0 all; `banned` ids never
        come (end of text, in the paper's needle test). The prompt goes through the model once, then
        one token at a time. Nothing is cropped.
        """
        cache = KVCache(idx.size(1) + max_new_tokens)
        new = idx
        for _ in range(max_new_tokens):
            logits, _ = self(new, cache=cache)
            logits = logits[:, -1].float()
            logits[:, list(banned)] = -math.inf  # before top_k, which they would use up
            if temperature == 0:  # no division by it
                new = logits.argmax(dim=-1, keepdim=True)
            else:
                logits /= temperature
                if top_k:
                    kth = logits.topk(min(top_k, logits.size(-1))).values[:, [-1]]
                    logits[logits < kth] = -math.inf
                new = torch.multinomial(logits.softmax(dim=-1), num_samples=1)
            idx = torch.cat((idx, new), dim=1)  # the cache has all but `new`
        return idx

    def num_params(self):
        """Trainable numbers: 162,148,608 for (a) of the paper."""
        return sum(p.numel() for p in self.parameters())

    def flops_per_token(self, T):
        """Training FLOPs a token at length T (PaLM, Appendix B): 6 a weight that multiplies."""
        # a product is 2 forward and 4 backward; q k and its sum of v count in full, not causally
        matrices = [p.numel() for p in self.parameters() if p.dim() >= 2]
        weights = sum(matrices) - self.wte.weight.numel()  # the embedding is a lookup
        return 6 * weights + 12 * self.config.n_layer * self.config.n_embd * T
