"""
A Llama-like Transformer whose attention is Softmax or a variant of Scalable-Softmax (SSMax):
K. M. Nakanishi, "Scalable-Softmax Is Superior for Attention" (arXiv 2501.19399).

This file holds the paper's model, all factors on the query, and layers with a window. (n_kv_head
and qk_norm are for imported models.) It needs torch alone: copy it anywhere and it works. Attention
that goes further subclasses `Attention`, one file each, in gallery/.

The paper compares (a) softmax, (b) SSMax, (c) SSMax with s = 1, (d) SSMax with a bias, (e) SSMax
swapped into a trained softmax model, and (f) SSMax swapped in near the end of its training.

Letters: B batch, T new tokens (queries), S keys (cached and new), C n_embd, H n_head, D = C/H,
V vocab_size; n is the number of keys that a query sees: its position + 1 in causal attention.
"""
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F

# -----------------------------------------------------------------------------
# The attention types. Every type multiplies the query by s * f(n) + b, after RoPE, as Eqs. 2-4 and
# 11 of the paper. The usual division of the logits by sqrt(D) stays.
# f(n, model) maps an integer tensor to an fp32 tensor of the same shape. To add a variant, add a
# line to ATTENTION. (Models of transformers have their own table, KINDS in ssmax_hf.py.)


def one(n, model):
    return torch.ones_like(n, dtype=torch.float32)


def log_n(n, model):
    return n.float().log()


def mean_log_n(n, model):
    N = model.config.block_size
    # the mean of log 1, ..., log N: their sum is the log of N factorial, which is lgamma(N + 1)
    return torch.full_like(n, math.lgamma(N + 1) / N, dtype=torch.float32)


def p_n(n, model):
    return model.p_n[n - 1]


# The next four are about 1 on contexts shorter than the training length N.


def logn_clip(n, model):
    return (n.float().log() / math.log(model.config.block_size)).clamp(min=1)


def llama4(n, model):  # rises at each multiple of N, and is constant between
    return 1 + 0.1 * (1 + n // model.config.block_size).float().log()


def power(n, model):  # rises from 1 to 1.07 at N, and to 2 at 1,023 N
    return (1 + n / model.config.block_size) ** 0.1


def log_floor(n, model):  # 1 + 0.1 log max(1, n / N)
    return 1 + 0.1 * (n / model.config.block_size).clamp(min=1).log()


class Learned(NamedTuple):
    """Marks s or b as a trained parameter: one fp32 number for each head of each layer, 12 x 12 in
    the paper's model."""
    start: float | None = None  # its value before training; None: config.s_init


class Factor(NamedTuple):
    """The number by which an attention type multiplies the query: s * f(n) + b."""
    f: Callable
    s: float | Learned = 1.0
    b: float | Learned = 0.0


ATTENTION = {
    "softmax": Factor(one),                                      # (a)
    "ssmax": Factor(log_n, s=Learned()),                         # (b), Eq. 2
    "ssmax_s1": Factor(log_n),                                   # (c)
    "ssmax_bias": Factor(log_n, s=Learned(), b=Learned(0.0)),    # (d), Eq. 4
    "pn": Factor(p_n, s=Learned(), b=Learned(0.0)),              # Eq. 3; one p_n for all layers
    "head_scale": Factor(mean_log_n, s=Learned()),   # control: constant in n, otherwise like (b)
    # other factors that are trained (docs/variants.md)
    "residual": Factor(log_n, s=Learned(0.0), b=1.0),            # starts as softmax
    "ssmax_bias_s0": Factor(log_n, s=Learned(0.0), b=Learned(1.0)),  # (d); Mistral Large 4
    "power": Factor(power),                                      # Beam
    # other published factors, swapped into softmax weights without training (--attention_type)
    "logn_clip": Factor(logn_clip),                              # Qwen, Grok-2
    "llama4": Factor(llama4),
    "log_floor": Factor(log_floor),                              # Inkling
}


@dataclass(frozen=True)
class GPTConfig:
    """
    The model. The defaults are the paper's 162 M model (Appendix A), which has no dropout.

    The letters of window_pattern say what a layer sees:

        R   all keys, with RoPE. An evaluation may stretch it. Empty pattern: all layers are R.
        S   the last `window` tokens, with RoPE, which is never stretched. Always plain softmax.
        L   all keys, without any position (NoPE).
    """
    # model
    attention_type: str = "softmax"  # a name in ATTENTION (model.py), such as softmax or ssmax
    block_size: int = 1024  # training length in tokens; an evaluation may be longer
    vocab_size: int = 50257  # number of token ids; a corpus with another vocabulary sets it
    n_layer: int = 12  # number of layers
    n_head: int = 12  # attention heads per layer
    n_kv_head: int = 0  # heads of keys and values, each for a group of query heads; 0: n_head
    n_embd: int = 768  # width of the residual stream
    n_inner: int = 2048  # hidden width of the MLP (SwiGLU)
    rope_theta: float = 10000.0  # base of the RoPE frequencies
    s_init: float = 1.0  # initial value of a learned s; the paper gives one only for Eq. 3 (p_n)
    init_std: float = 0.02  # standard deviation of initial weights; output projections get less
    norm_eps: float = 1e-5  # epsilon of RMSNorm
    qk_norm: bool = False  # RMSNorm on each head's queries and keys before RoPE; not in the paper
    window_pattern: str = ""  # S, R or L for each layer, repeated, as in SL; empty: all R
    window: int = 0  # tokens that an S layer sees

    def __post_init__(self):
        if self.attention_type not in ATTENTION:
            raise ValueError(f"unknown attention_type {self.attention_type}; choose one of "
                             f"{', '.join(ATTENTION)}")
        if self.n_kv_head < 0 or self.n_head % (self.n_kv_head or 1):
            raise ValueError(f"n_kv_head={self.n_kv_head} must divide n_head={self.n_head}")
        if self.n_embd % (2 * self.n_head):
            raise ValueError(f"n_embd/n_head = {self.n_embd}/{self.n_head} must be an even whole "
                             "number: RoPE rotates pairs of channels")
        pattern = self.window_pattern
        if not set(pattern) <= set("SRL"):
            raise ValueError(f"window_pattern={pattern} must have the letters S (window, RoPE), R "
                             "(all keys, RoPE) and L (all keys, no position) only, as in SSSL")
        if self.window < 0 or ("S" in pattern) != bool(self.window):
            raise ValueError(f"window={self.window} and window_pattern={pattern!r} do not fit: an "
                             "S layer needs a window, as in --window=32 --window_pattern=SL, and "
                             "without an S layer window must be 0")
        if set(pattern) == {"S"} and self.attention_type != "softmax":
            raise ValueError(f"window_pattern={pattern} has S layers alone, which are softmax, so "
                             f"no layer would have attention_type={self.attention_type}: add an L")

    def letter(self, layer):
        """Return the letter of a layer: S, R or L."""
        pattern = self.window_pattern or "R"
        return pattern[layer % len(pattern)]


# -----------------------------------------------------------------------------
# attention
#
# The T queries of a forward pass always stand at the last T of the S positions whose keys they may
# see: after a cache S > T, and for a single new token T = 1. So the shapes of q and k say which
# keys come later, without a mask.


def widest_float(device):
    return torch.float32 if device.type == "mps" else torch.float64  # MPS has no fp64


class Position(NamedTuple):
    """
    Tensors that depend on positions alone. Layers of one letter share them in a forward pass.

    The shapes are for rows without packed documents; all rows then share these tensors. With packed
    documents n and f are (B, 1, T), and cos and sin (B, 1, T, D).
    """
    n: torch.Tensor  # (T,) the keys up to the query's own: its position in the document, plus 1
    f: torch.Tensor  # (T,) fp32, f(n) of the layer's attention type
    cos: torch.Tensor | None  # (T, D) fp32, of RoPE's angles; None in a layer without RoPE
    sin: torch.Tensor | None  # (T, D), with the first D/2 negated
    documents: torch.Tensor | None  # (B, T) ids of packed documents; None: each row is one


def distances(q, k):
    """Return how many tokens each key is before each query, (T, S). Later keys have less than 0."""
    T, S = q.size(2), k.size(2)
    j = torch.arange(S, device=k.device)
    i = j[S - T:]
    return i[:, None] - j


class Attention(nn.Module):
    """
    Causal self-attention of one layer that sees all keys, with the factor of its type on q.

    A subclass overrides what it changes, and what it overrides is what runs:

        setup           makes parameters of its own
        project         makes q, k and v from the layer's input; a KV cache stores k and v
        factor          on the query, from f(n)
        visible         which keys a query sees
        logits          of all queries and keys
        weights         from the logits
        mix             from the layer's input to the output of all heads
        frequencies     of RoPE, the same in all layers of a letter, which share their Position

    It must keep the promises of experiments/check.py, for instance: no query sees a later key.
    """
    has_rope = True  # False: no position, in R layers either
    in_windows = False  # whether S layers have this attention, too
    largest_sum = 1.0  # the weights of a query sum to this at most
    piece = 512  # queries whose weights are computed at a time, if the fused kernel is not used

    def __init__(self, config, layer):
        super().__init__()
        self.config, self.layer, self.head_size = config, layer, config.n_embd // config.n_head
        self.n_head, self.n_kv_head = config.n_head, config.n_kv_head or config.n_head
        self.letter = config.letter(layer)
        self.max_keys = config.window if self.letter == "S" else math.inf
        self.uses_rope = self.has_rope and self.letter != "L"
        heads = self.n_head + 2 * self.n_kv_head
        # q, k and v of all heads in one product, without biases, as in Llama
        self.qkv = nn.Linear(config.n_embd, heads * self.head_size, bias=False)
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=False)
        norm = nn.RMSNorm if config.qk_norm else nn.Identity  # Identity ignores its arguments
        self.q_norm = norm(self.head_size, config.norm_eps)
        self.k_norm = norm(self.head_size, config.norm_eps)

    def setup(self):
        """
        Make the parameters that a subclass adds, and initialize them.

        GPT calls this after all other weights are drawn, so runs of one seed begin with the same
        weights, whatever their attention.
        """

    def set_type(self, attention_type):
        """Make s and b as ATTENTION defines them for this type."""
        self.type = attention_type
        self.set_scale("s", ATTENTION[attention_type].s)
        self.set_scale("b", ATTENTION[attention_type].b)

    def set_scale(self, name, value):
        """Make an attribute of this name, a tensor (H,): a parameter if `value` is Learned, and a
        buffer if it is a number."""
        learned = isinstance(value, Learned)
        if learned:
            value = self.config.s_init if value.start is None else value.start
        numbers = torch.full((self.n_head,), value, device=self.qkv.weight.device)
        kind = nn.Parameter(numbers) if learned else nn.Buffer(numbers, persistent=False)
        setattr(self, name, kind)

    # -- the forward pass, in the order in which it runs

    def forward(self, x, position, cache=None, last=False):
        """Return the output (B, T, C) for x (B, T, C); with `last`, for the last query alone."""
        return self.proj(self.mix(x, position, cache, last))

    def mix(self, x, position, cache=None, last=False):
        """Return the outputs of all heads side by side, (B, T, C), or (B, 1, C) with `last`."""
        q, k, v = self.project(x, position)
        if cache is not None:  # keys are stored after RoPE: a key's position never changes
            k, v = cache.append(self.layer, k, v, self.max_keys)
        if last:
            q = q[:, :, -1:]
        y = self.attend(q, k, v, position.documents)
        return y.transpose(1, 2).flatten(2)

    def project(self, x, position):
        """Return q (B, H, T, D) with RoPE and the factor, k with RoPE, and v. The shape of k and v
        is (B, n_kv_head, T, D)."""
        B, T, _ = x.shape
        heads = self.qkv(x).view(B, T, -1, self.head_size).transpose(1, 2)
        q, k, v = heads.split((self.n_head, self.n_kv_head, self.n_kv_head), dim=1)
        q = self.rotate(self.q_norm(q.float()), position)
        k = self.rotate(self.k_norm(k.float()), position)
        # The factor multiplies the query, since a cached key does not know the n of later queries.
        # It is applied in fp32: bf16 has steps of 0.06 near log 20,000.
        q = q * self.factor(position.f)[..., None]
        return q.to(v.dtype), k.to(v.dtype), v

    def rotate(self, x, position):
        """RoPE on x (B, H, T, D), fp32; pairs (i, i + D/2) as in Hugging Face's Llama."""
        if position.cos is None:
            return x
        # rotate-half with the sign folded into `sin`
        return x * position.cos + x.roll(self.head_size // 2, dims=-1) * position.sin

    def factor(self, f):
        """Return the factor on the queries, (H, T) or (B, H, T), from f(n), (T,) or (B, 1, T)."""
        # With f = log n this makes softmax of logits z into SSMax (Eqs. 2 and 4):
        # softmax((s log n + b) z) = n^(s z) e^(b z) / the sum of these over all keys
        return self.s[:, None] * f + self.b[:, None]

    def attend(self, q, k, v, documents=None):
        """Return the attention weights times v, (B, H, T, D), for q (B, H, T, D) and k, v
        (B, n_kv_head, S, D)."""
        T, S = q.size(2), k.size(2)
        v = self.per_head(v)
        if self.keeps(Attention.visible, Attention.logits, Attention.weights):
            # Fused kernels know causal attention, and a single query sees all keys. Only the rest
            # needs a mask: at 20,000 tokens a mask of T x T would take 400 MB.
            masked = documents is not None or 1 < T < S
            return F.scaled_dot_product_attention(
                q, self.per_head(k), v, self.visible(q, k, documents) if masked else None,
                scale=1 / math.sqrt(self.head_size), is_causal=T == S and not masked)
        outputs = []
        for start in range(0, T, self.piece):  # the weights of 20,000 tokens take 1.6 GB per head
            some = q[:, :, start:start + self.piece]
            keys = k[:, :, :S - T + start + some.size(2)]  # later ones are not seen
            weights = self.weights(some, keys, self.visible(some, keys, documents))
            outputs.append(weights.to(v.dtype) @ v[:, :, :keys.size(2)])
        return torch.cat(outputs, dim=2)

    def keeps(self, *methods):
        """Return whether none of these methods is overridden by a subclass."""
        return all(getattr(type(self), method.__name__) is method for method in methods)

    def per_head(self, z):
        """Repeat keys or values (B, n_kv_head, S, D) for every head of their group."""
        if self.n_kv_head == self.n_head:
            return z
        # repeated here, because some fused kernels do not support grouped heads
        return z.repeat_interleave(self.n_head // self.n_kv_head, dim=1)

    def visible(self, q, k, documents=None):
        """
        Return which keys each query sees, bool (T, S), or (B, 1, T, S) with packed documents: those
        up to its own, in its document and in its window.
        """
        distance = distances(q, k)
        seen = (distance >= 0) & (distance < self.max_keys)
        if documents is None:
            return seen
        of_keys = documents[:, None, None, :k.size(2)]
        of_queries = of_keys[..., -q.size(2):].mT
        return seen & (of_queries == of_keys)

    def logits(self, q, k):
        """Return the logits (B, H, T, S) of q and k in fp32, also of keys that are not seen."""
        with torch.autocast(q.device.type, enabled=False):  # autocast would cast to bf16
            z = q.float() @ self.per_head(k).float().mT
        return z / math.sqrt(self.head_size)

    def weights(self, q, k, seen):
        """
        Return the attention weights (B, H, T, S) in fp32. Evaluations read them, too.

        seen: what `visible` returns; a query's n is seen.sum(-1).
        """
        return self.logits(q, k).masked_fill(~seen, -math.inf).softmax(dim=-1)

    # -- what depends on positions alone, once in a forward pass

    def make_position(self, pos, model, documents=None):
        """Return the Position of queries at `pos`, (T,) or with packed documents (B, 1, T)."""
        n = pos + 1
        cos, sin = self.rope(pos) if self.uses_rope else (None, None)
        return Position(n, ATTENTION[self.type].f(n, model), cos, sin, documents)

    def rope(self, pos):
        """
        Return cosines and signed sines (..., T, D) in fp32. The angles are in fp64: in fp32 they
        would be off by 0.03 at position 10^6.
        """
        wide = widest_float(pos.device)
        pair = torch.arange(self.head_size // 2, dtype=wide, device=pos.device)
        angles = pos.to(wide)[..., None] * self.frequencies(pair, self.config.rope_theta)
        cos = angles.cos().float()
        sin = angles.sin().float()
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)

    def frequencies(self, pair, theta):
        """Return radians per token of the channels (i, i + D/2), for `pair`, a tensor of i."""
        return theta ** (-2 * pair / self.head_size)

    def scale_queries(self, ratio):
        """Multiply the weights that make q, in place: by a number, or by one for each row."""
        if self.config.qk_norm:
            self.q_norm.weight *= ratio
        else:
            self.qkv.weight[:self.config.n_embd] *= ratio  # the rows that produce q


class Window(Attention):
    """
    An S layer, with RoPE: a query sees itself and the W - 1 tokens before it.

    The factor is 1, because n stays at most W; published models with log n do the same.
    """

    def set_type(self, attention_type):
        super().set_type("softmax")

    def attend(self, q, k, v, documents=None):
        """
        The sequence is cut into blocks of W tokens. The queries of a block see keys of their own
        block and of the block before: they stand at the last W of these 2 W positions, as
        Attention.attend wants it. So the cost is linear in T.
        """
        B, T, W = q.size(0), q.size(2), self.max_keys
        k, v = k[:, :, 1 - W - T:], v[:, :, 1 - W - T:]  # no query sees more
        if T == 1:
            return super().attend(q, k, v)
        if documents is None:
            documents = q.new_zeros(B, k.size(2))
        # Zeros complete the first and the last block. They are a document of their own: -1.
        before = W + T - k.size(2)
        after = -T % W

        def blocks(z):  # (B, H, blocks * W, D) -> (B, blocks, H, W, D)
            return z.unflatten(2, (-1, W)).transpose(1, 2)

        def with_block_before(z, fill=0):  # (B, H, S, D) -> (B * blocks, H, 2 W, D)
            z = blocks(F.pad(z, (0, 0, before, after), value=fill))
            return torch.cat((z[:, :-1], z[:, 1:]), dim=3).flatten(0, 1)

        q = blocks(F.pad(q, (0, 0, 0, after))).flatten(0, 1)
        documents = with_block_before(documents[:, None, :, None], fill=-1)
        y = super().attend(q, with_block_before(k), with_block_before(v), documents[:, 0, :, 0])
        y = y.unflatten(0, (B, -1)).transpose(1, 2).flatten(2, 3)  # (B, H, blocks * W, D)
        return y[:, :, :T]


# -----------------------------------------------------------------------------
# the Transformer around it


class MLP(nn.Module):
    """SwiGLU (arXiv 2002.05202)"""

    def __init__(self, config):
        super().__init__()
        self.gate_up = nn.Linear(config.n_embd, 2 * config.n_inner, bias=False)
        self.down = nn.Linear(config.n_inner, config.n_embd, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)  # one product for both is faster than two
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    """Attention and MLP, each with an RMSNorm before it (pre-norm)."""

    def __init__(self, config, layer, attention):
        super().__init__()
        self.norm_1 = nn.RMSNorm(config.n_embd, eps=config.norm_eps)
        self.attn = attention(config, layer)
        self.norm_2 = nn.RMSNorm(config.n_embd, eps=config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x, position, cache=None, last=False):
        attended = self.attn(self.norm_1(x), position, cache, last)
        x = (x[:, -1:] if last else x) + attended
        return x + self.mlp(self.norm_2(x))


class KVCache:
    """Keys and values of every layer, for the `length` tokens so far."""

    def __init__(self):
        self.length, self.layers = 0, {}

    def append(self, layer, k, v, max_keys=math.inf):
        """Store k, v (B, n_kv_head, T, D) of the next T positions and return those of all S. Only
        those are kept that a later query sees, which sees `max_keys` at most."""
        if layer in self.layers:
            k, v = (torch.cat(z, dim=2) for z in zip(self.layers[layer], (k, v), strict=True))
        first = max(0, k.size(2) + 1 - max_keys)
        # contiguous, since a view would keep all of the prompt in memory
        self.layers[layer] = [z[:, :, first:].contiguous() for z in (k, v)]
        return k, v


class GPT(nn.Module):
    def __init__(self, config, attention=Attention, window=Window):
        """attention: the class of R and L layers. window: the class of S layers."""
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.blocks = nn.ModuleList(
            Block(config, layer, window if config.letter(layer) == "S" else attention)
            for layer in range(config.n_layer))
        self.norm = nn.RMSNorm(config.n_embd, eps=config.norm_eps)
        # not tied to wte: the paper's count of 162 M implies untied embeddings
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.add_p_n()
        # Matrices of these names are initialized here. What a subclass of Attention adds is made
        # and initialized later, in its `setup`.
        for name, module in self.named_modules():
            if name.split(".")[-1] in ("wte", "qkv", "proj", "gate_up", "down", "lm_head"):
                # output projections start smaller, since 2 n_layer of them add up (GPT-2)
                shrink = math.sqrt(2 * config.n_layer) if name.endswith(("proj", "down")) else 1
                nn.init.normal_(module.weight, std=config.init_std / shrink)
        for block in self.blocks:
            # The scales come last, as after the switch of (f). A resumed run makes all at once, and
            # must have the same order, in which the gradient norm is summed.
            block.attn.setup()
            block.attn.set_type(config.attention_type)

    def add_p_n(self):
        """Make p_n (Eq. 3) if the attention type uses it: one number per n, for all layers."""
        self.p_n = None
        if ATTENTION[self.config.attention_type].f is p_n:
            # it starts at 1, as in the paper: with s = 1 and b = 0 this is softmax
            ones = torch.ones(self.config.block_size, device=self.wte.weight.device)
            self.p_n = nn.Parameter(ones)

    @property
    def max_len(self):
        """The longest context: block_size with p_n, which has one number per n; else no limit."""
        return math.inf if self.p_n is None else self.config.block_size

    def positions(self, idx, cached=0, documents=None):
        """
        Return {letter: Position} of the layers for idx (B, T) after `cached` tokens.

        documents (B, T): nondecreasing ids of the documents packed in each row. Documents do not
        see each other, and positions restart at 0 in each.
        """
        T = idx.size(1)
        if cached + T > self.max_len:
            raise ValueError(f"p_n is learned for at most {self.max_len} tokens, and this context "
                             f"has {cached + T}; use a shorter one")
        pos = torch.arange(cached, cached + T, device=idx.device)
        if documents is not None:
            # The ids rise within a row, so this finds the index of each document's first token.
            first = torch.searchsorted(documents, documents)
            pos = (pos - first)[:, None]
        layers = {block.attn.letter: block.attn for block in self.blocks}  # one of each letter
        return {letter: attn.make_position(pos, self, documents) for letter, attn in layers.items()}

    def hidden(self, idx, cache=None, documents=None, last=False):
        """
        Return the last hidden states (B, T, C) of idx (B, T); with `last`, of the last position.

        idx continues the tokens in the KVCache `cache` and is appended to it. For packed rows pass
        documents (B, T), see `positions`, without a cache and without `last`.
        """
        positions = self.positions(idx, cache.length if cache is not None else 0, documents)
        if torch.compiler.is_compiling():
            # Break the graph, or the compiler recomputes the cosines in every layer.
            torch._dynamo.graph_break()
        x = self.wte(idx)
        for block in self.blocks:
            # If only the last query is wanted, the final layer computes that one alone, which is
            # linear in T. All other layers need every query. (In a model of two layers, whose first
            # one has a window, nothing is then quadratic in the length of a prompt.)
            x = block(x, positions[block.attn.letter], cache, last and block is self.blocks[-1])
        if cache is not None:  # advanced once, after all layers have appended
            cache.length += idx.size(1)
        return self.norm(x)

    def forward(self, idx, targets=None, cache=None):
        """
        Return (logits, loss) for idx (B, T), as in nanoGPT.

        Without targets: the logits of the last position (B, 1, V), and None. With targets (B, T),
        of which -1 is ignored: all logits (B, T, V), and the mean cross-entropy in nats. (train.py
        uses lib/loss.py, which can take less memory.)
        """
        if targets is None:  # all logits of a prompt of 20,000 tokens would take 4 GB
            return self.lm_head(self.hidden(idx, cache, last=True)), None
        logits = self.lm_head(self.hidden(idx, cache))
        flat = logits.float().flatten(0, 1)  # bf16 has steps of 0.06 at a loss near 11
        return logits, F.cross_entropy(flat, targets.flatten(), ignore_index=-1)

    @torch.no_grad()
    def swap_attention(self, attention_type, scale=1.0):
        """
        Turn a softmax model into another attention type in place and keep its weights: (e) and (f).

        The mean factor on q over a block becomes `scale`; 1 is the factor of softmax. For SSMax
        this sets s = 1 / mean log n, which is 0.168 for 1,024 tokens (section 3). If no s is
        learned, the weights that make q are multiplied by a constant. A factor that is 1 below the
        training length, such as logn_clip, is multiplied by `scale` alone.
        """
        if self.config.attention_type != "softmax":
            # other types were trained with a factor of their own, which would be lost
            raise ValueError("only softmax weights can be swapped, and these are "
                             f"{self.config.attention_type}; choose a softmax model")
        # a new config, so that a checkpoint records the new type
        self.config = replace(self.config, attention_type=attention_type)
        self.add_p_n()
        n = torch.arange(1, self.config.block_size + 1, device=self.wte.weight.device)
        f = ATTENTION[attention_type].f(n, self)
        mean = f.to(widest_float(n.device)).mean()
        is_one_below_N = (f[:-1] == 1).all()  # stays on the device: an `if` would wait for a GPU
        for attn in (block.attn for block in self.blocks if block.attn.letter != "S"):
            attn.set_type(attention_type)
            if isinstance(attn.s, nn.Parameter):
                attn.s.fill_((scale - attn.b[0]) / mean)  # all heads are equal here
            else:
                attn.scale_queries(scale / torch.where(is_one_below_N, 1.0, mean))

    def learned_scales(self):
        """Return {name: parameter} of p_n and of the vectors that stand in an attention itself: s,
        b, ... Training logs them and gives them no weight decay."""
        scales = {} if self.p_n is None else {"p_n": self.p_n}
        for layer, block in enumerate(self.blocks):
            # Sorted, because an optimizer stores its state in this order: a model that was swapped
            # and one that is built with the new type must agree.
            for name, number in sorted(block.attn.named_parameters(recurse=False)):
                if number.dim() == 1:
                    scales[f"blocks.{layer}.attn.{name}"] = number
        return scales

    @torch.no_grad()
    def last_query_attention(self, idx):
        """
        Return the attention weights (B, n_layer, n_head, T) of the last position of idx (B, T), in
        fp32. A needle score (section 3.4) is a sum of these weights over tokens of the needle.
        """
        positions, x, weights = self.positions(idx), self.wte(idx), []
        for block in self.blocks:
            attn, position = block.attn, positions[block.attn.letter]
            q, k, _ = attn.project(block.norm_1(x), position)
            q = q[:, :, -1:]
            weights.append(attn.weights(q, k, attn.visible(q, k))[:, :, 0])
            if block is not self.blocks[-1]:
                x = block(x, position)
        return torch.stack(weights, dim=1)

    @torch.no_grad()
    def generate(self, idx, max_new_tokens, temperature=1.0, top_k=0, banned=()):
        """
        Continue each row of idx (B, T) and return (B, T + max_new_tokens).

        temperature 0 is greedy; `top_k` keeps the k likeliest tokens (0: all); `banned` ids are
        never sampled (the end of text, in the paper's needle test). The prompt goes through the
        model once, then one token at a time. The context is never cropped.
        """
        if idx.size(1) == 0:
            raise ValueError("the prompt has no token; give at least one, such as the end of text")
        cache = KVCache()
        new = idx
        for _ in range(max_new_tokens):
            logits, _ = self(new, cache=cache)
            logits = logits[:, -1].float()
            logits[:, list(banned)] = -math.inf  # before top_k, or they would count among the k
            if temperature == 0:  # greedy; dividing by 0 would fail
                new = logits.argmax(dim=-1, keepdim=True)
            else:
                logits /= temperature
                if top_k:
                    kth = logits.topk(min(top_k, logits.size(-1))).values[:, [-1]]
                    logits[logits < kth] = -math.inf
                new = torch.multinomial(logits.softmax(dim=-1), num_samples=1)
            idx = torch.cat((idx, new), dim=1)  # `new` is not in the cache yet
        return idx

    def num_params(self):
        """Return the number of parameters: 162,148,608 for (a) of the paper."""
        return sum(p.numel() for p in self.parameters())
