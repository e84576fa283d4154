"""
A Llama-like Transformer whose attention is Softmax or a variant of Scalable-Softmax (SSMax):
K. M. Nakanishi, "Scalable-Softmax Is Superior for Attention" (arXiv 2501.19399).

This file holds the paper's model, all factors on the query, layers with a window, and RoPE that an
evaluation stretches. It needs torch alone: copy it anywhere and it works. Attention that goes
further subclasses `Attention`, one file each, in gallery/.

The paper compares (a) softmax, (b) SSMax, (c) SSMax with s = 1, (d) SSMax with a bias, (e) SSMax
swapped into a trained softmax model, and (f) SSMax swapped in near the end of its training.

Letters: B batch, T new tokens (queries), K keys (cached and new), C n_embd, H n_head, D = C/H,
V vocab_size; n is the number of keys that a query sees: its position + 1 in causal attention.
"""
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F

# -----------------------------------------------------------------------------
# The attention types. Every type multiplies the query by s * f(n) + b, after RoPE (Eqs. 2-4 and
# 11 of the paper). The usual division of the logits by sqrt(D) stays.
# f(n, model) maps an integer tensor to an fp32 tensor of the same shape. To add a variant, add a
# line to ATTENTION. (Hugging Face models have their own table, KINDS in ssmax_hf.py.)


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


def power(n, model):  # (1 + n / N)^0.1: 1.07 at N, and 2 at 1,023 N
    return (1 + n / model.config.block_size) ** 0.1


def logn_clip(n, model):  # max(1, log n / log N)
    return (n.float().log() / math.log(model.config.block_size)).clamp(min=1)


def llama4(n, model):  # 1 + 0.1 log(1 + floor(n / N)): constant between multiples of N
    return 1 + 0.1 * (1 + n // model.config.block_size).float().log()


def log_floor(n, model):  # 1 + 0.1 log max(1, n / N)
    return 1 + 0.1 * (n / model.config.block_size).clamp(min=1).log()


def step(n, model, c):
    return torch.where(n > model.config.block_size, c, 1.0)


class Learned(NamedTuple):
    """Marks s or b as a trained parameter: one fp32 number for each head of each layer, 12 x 12 in
    the paper's model."""
    start: float = 1.0  # its value before training


class Factor(NamedTuple):
    """The factor on the query: s * f(n) + b."""
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
    "ssmax_bias_s0": Factor(log_n, s=Learned(0.0), b=Learned(1.0)),  # Mistral Large 4
    "power": Factor(power),                                      # Beam
    # mostly put into softmax models by the evaluations (--attention_type)
    "logn_clip": Factor(logn_clip),                               # Qwen, Grok-2
    "llama4": Factor(llama4),
    "log_floor": Factor(log_floor),                               # Inkling
    # 1 up to N, and a constant beyond it
    "step_1.5": Factor(partial(step, c=1.5)),
    "step_2": Factor(partial(step, c=2.0)),
    "step_3": Factor(partial(step, c=3.0)),
}

ROPE_SCALINGS = ("", "theta", "ntk", "yarn", "yarn_no_temperature")


@dataclass(frozen=True)
class GPTConfig:
    """
    The model. The defaults are the paper's 162 M model (Appendix A), which has no dropout. (Checks
    of the settings: ModelConfig in lib/models.py.)

    The letters of window_pattern say what a layer sees:

        R   all keys, with RoPE. An evaluation may stretch it. Empty pattern: all layers are R.
        S   the last `window` tokens, with RoPE, which is never stretched. Its factor is always 1.
        L   all keys, without any position (NoPE).
    """
    # model
    attention_type: str = "softmax"  # a name in ATTENTION (model.py), such as softmax or ssmax
    block_size: int = 1024  # training length in tokens; an evaluation may be longer
    vocab_size: int = 50257  # number of token ids; a corpus with another vocabulary sets it
    n_layer: int = 12  # number of layers
    n_head: int = 12  # attention heads per layer
    n_embd: int = 768  # width of the residual stream
    n_inner: int = 2048  # hidden width of the MLP (SwiGLU)
    rope_theta: float = 10000.0  # base of the RoPE frequencies
    init_std: float = 0.02  # standard deviation of initial weights; output projections get less
    norm_eps: float = 1e-5  # epsilon of RMSNorm
    window_pattern: str = ""  # S, R or L for each layer, repeated, as in SL; empty: all R
    window: int = 0  # tokens that an S layer sees
    rope_scaling: Literal[ROPE_SCALINGS] = ""  # how an evaluation stretches RoPE
    rope_factor: float = 1.0  # by how much rope_scaling stretches RoPE

    def letter(self, layer):
        """Return the letter of a layer: S, R or L."""
        pattern = self.window_pattern or "R"
        return pattern[layer % len(pattern)]


# -----------------------------------------------------------------------------
# attention
#
# A forward pass has T queries, and K keys including cached ones. Its query t stands at position
# K - T + t. So the shapes of q and k say which keys come later than a query.


@dataclass
class Context:
    """
    What all layers of one forward pass share.

    For packed documents, n and f are (B, 1, T), and cosines and sines (B, 1, T, D).
    """
    n: torch.Tensor  # (T,) number of keys a query sees: its position in its document + 1
    f: dict  # {attention type: (T,) fp32, f(n)}
    rope: dict  # {letter: (cosines, sines)} of its layers, (T, D) fp32; no entry without RoPE
    documents: torch.Tensor | None = None  # (B, T) ids of packed documents; None: each row is one
    cache: "KVCache | None" = None  # keys and values of the tokens before
    last_only: bool = False  # the layer computes the output of the last query alone


def distances(q, k):
    """Return the position of each query minus that of each key, (T, K): negative for later keys."""
    T, K = q.size(2), k.size(2)
    j = torch.arange(K, device=k.device)
    i = j[K - T:]
    return i[:, None] - j


class Attention(nn.Module):
    """
    Causal self-attention of one layer that sees all keys, with the factor of its type on q.

    A subclass overrides what it changes:

        setup           makes parameters of its own
        project         makes q, k and v from the layer's input; a KV cache stores k and v
        factor          on the query
        rotate          queries and keys, by RoPE
        frequencies     of RoPE, the same in all layers of a letter
        visible         which keys a query sees
        logits          of all queries and keys
        weights         from the logits
        weighted_sum    the weights times v, if a fused kernel computes both (sink.py)
        scale_queries   multiplies the weights that make q, for a swap (constant_norm.py)
        mix             from the layer's input to the output of all heads

    A class that overrides `visible` must keep in_windows False: Window.attend makes its own mask. A
    subclass must keep the promises of experiments/check.py, such as: no query sees a later key.
    """
    has_rope = True  # False: no position, in R layers either
    has_own_factor = False  # True: attention_type stays softmax (log_power.py)
    in_windows = False  # whether S layers have this attention, too
    n_queries = 512  # computed at a time where no fused kernel is used

    def __init__(self, config, layer):
        super().__init__()
        self.config, self.layer, self.head_size = config, layer, config.n_embd // config.n_head
        self.n_head = config.n_head
        self.letter = config.letter(layer)
        self.max_keys = config.window if self.letter == "S" else math.inf
        self.uses_rope = self.has_rope and self.letter != "L"
        # q, k and v of all heads in one product, without biases, as in Llama
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=False)
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=False)

    def setup(self):
        """Make and initialize the parameters that a subclass adds. Called after all others are
        drawn, so that runs of one seed share those, whatever their attention."""

    def set_type(self, attention_type):
        """Make s and b as ATTENTION defines them for this type."""
        if self.has_own_factor and attention_type != "softmax":
            raise ValueError(f"{type(self).__name__} has its own factor, and attention_type="
                             f"{attention_type} would be another one: leave one of them out")
        self.type = attention_type
        self.set_scale("s", ATTENTION[attention_type].s)
        self.set_scale("b", ATTENTION[attention_type].b)

    def set_scale(self, name, value):
        """Make an attribute (H,) of this name: a parameter if `value` is Learned, else a buffer."""
        learned = isinstance(value, Learned)
        start = value.start if learned else value
        numbers = torch.full((self.n_head,), start, device=self.qkv.weight.device)
        kind = nn.Parameter(numbers) if learned else nn.Buffer(numbers, persistent=False)
        setattr(self, name, kind)

    def scale_queries(self, ratio):
        """Multiply the weights that make q by a number, in place."""
        self.qkv.weight[:self.config.n_embd] *= ratio

    # -- the forward pass, in the order in which it runs

    def forward(self, x, context):
        """Return the output (B, T, C) for x (B, T, C), or (B, 1, C) if context.last_only."""
        return self.proj(self.mix(x, context))

    def mix(self, x, context):
        """Return the outputs of all heads side by side, (B, T, C) or (B, 1, C)."""
        q, k, v = self.project(x, context)
        if context.cache is not None:  # stored after RoPE: a key's position never changes
            k, v = context.cache.append(self.layer, k, v, self.max_keys)
        if context.last_only:
            q = q[:, :, -1:]
        return self.attend(q, k, v, context).transpose(1, 2).flatten(2)

    def project(self, x, context):
        """Return q with RoPE and the factor, k with RoPE, and v, each (B, H, T, D)."""
        B, T, _ = x.shape
        heads = self.qkv(x).view(B, T, -1, self.head_size).transpose(1, 2)
        q, k, v = heads.split(self.n_head, dim=1)
        q, k = self.rotate(q.float(), context), self.rotate(k.float(), context)
        # The factor multiplies the query, since a cached key does not know the n of later queries.
        # It is applied in fp32: bf16 has steps of 0.06 near log 20,000.
        q = q * self.factor(x, context)[..., None]
        return q.to(v.dtype), k.to(v.dtype), v

    def rotate(self, x, context):
        """RoPE on x (B, H, T, D), fp32; pairs (i, i + D/2) as in Hugging Face's Llama."""
        if not self.uses_rope:
            return x
        cos, sin = context.rope[self.letter]
        # `rope` has given the sines their signs, - in the first half
        return x * cos + x.roll(self.head_size // 2, dims=-1) * sin

    def factor(self, x, context):
        """Return the factor on the queries, (H, T) or (B, H, T). Here it depends on n alone."""
        # With f = log n this makes softmax of logits z into SSMax (Eqs. 2 and 4):
        # softmax((s log n + b) z) = n^(s z) e^(b z) / the sum of these over all keys
        return self.s[:, None] * context.f[self.type] + self.b[:, None]

    def attend(self, q, k, v, context):
        """Return the attention weights times v, (B, H, T, D)."""
        T, K = q.size(2), k.size(2)
        if self.is_fused():
            # A mask takes 400 MB at 20,000 tokens. Fused kernels need none for causal attention,
            # or for a single query. A piece of a text after a cache (1 < T < K) needs one.
            needs_mask = context.documents is not None or 1 < T < K
            return self.weighted_sum(q, k, v, self.visible(q, k, context) if needs_mask else None)
        outputs, cached = [], K - T
        # the weights of 20,000 tokens would take 1.6 GB a head
        for start in range(0, T, self.n_queries):
            queries = q[:, :, start:start + self.n_queries]
            end = cached + start + queries.size(2)  # later keys are not seen
            seen = self.visible(queries, k[:, :, :end], context)
            outputs.append(self.weighted_sum(queries, k[:, :, :end], v[:, :, :end], seen))
        return torch.cat(outputs, dim=2)

    def weighted_sum(self, q, k, v, seen):
        """Return the weights times v. `seen` is None if no mask is needed: each query sees all keys
        up to its own."""
        if self.is_fused():
            return F.scaled_dot_product_attention(
                q, k, v, seen, scale=1 / math.sqrt(self.head_size),
                is_causal=seen is None and q.size(2) > 1)
        return self.weights(q, k, seen).to(v.dtype) @ v

    def is_fused(self):
        """Return whether a fused kernel may be used. It knows plain softmax only, so a subclass
        with its own weights, logits or visible does without."""
        cls = type(self)
        return (cls.weights is cls.fused_weights and cls.logits is Attention.logits
                and cls.visible is Attention.visible)

    def visible(self, q, k, context):
        """Return which keys each query sees, bool (T, K), or (B, 1, T, K) with packed documents:
        those up to its own, in its document and in its window."""
        distance = distances(q, k)
        seen = (distance >= 0) & (distance < self.max_keys)
        if context.documents is None:
            return seen
        # `attend` passes no keys after the last query
        key_documents = context.documents[:, None, None, :k.size(2)]
        query_documents = key_documents[..., -q.size(2):].mT
        return seen & (query_documents == key_documents)

    def logits(self, q, k):
        """Return the logits (B, H, T, K) of q and k in fp32, also of keys that are not seen."""
        with torch.autocast(q.device.type, enabled=False):  # autocast would cast to bf16
            z = q.float() @ k.float().mT
        return z / math.sqrt(self.head_size)

    def weights(self, q, k, seen):
        """Return the attention weights (B, H, T, K) in fp32. seen: see `visible`."""
        return self.logits(q, k).masked_fill(~seen, -math.inf).softmax(dim=-1)

    # A subclass with a fused kernel for its own weights sets fused_weights = weights (sink.py).
    fused_weights = weights

    # -- RoPE, once in a forward pass

    def rope(self, pos):
        """Return cosines and signed sines (..., T, D) in fp32 for positions `pos`."""
        # in fp32 angles would be off by 0.03 at position 10^6; MPS has no fp64
        wide = torch.float32 if pos.device.type == "mps" else torch.float64
        pair = torch.arange(self.head_size // 2, dtype=wide, device=pos.device)
        angles = pos.to(wide)[..., None] * self.frequencies(pair)
        cos, sin = angles.cos().float(), angles.sin().float()
        if self.letter == "R" and self.config.rope_scaling == "yarn":
            # YaRN's "temperature" multiplies q and k by this number, so the logits by its square
            temperature = 1 + 0.1 * math.log(self.config.rope_factor)
            cos, sin = temperature * cos, temperature * sin
        # what `rotate` rolls by D/2 is to be multiplied by -sin in the first half
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)

    def frequencies(self, pair):
        """Return radians per token of the channels (i, i + D/2), for `pair`, a tensor of i. Only R
        layers stretch them: in a window RoPE meets no new distance in a longer context."""
        c, D, theta = self.config, self.head_size, self.config.rope_theta
        scaling = c.rope_scaling if self.letter == "R" else ""
        if scaling == "theta":  # the paper's: theta x 50 for 20 times the length
            theta *= c.rope_factor
        if scaling == "ntk":  # the lowest frequency is divided by the factor
            theta *= c.rope_factor ** (D / (D - 2))
        frequencies = theta ** (-2 * pair / D)
        if not scaling.startswith("yarn"):
            return frequencies

        # YaRN (arXiv 2309.00071): pairs that turn 32 times or more in a block keep their speed,
        # pairs that turn less than once are slowed by the factor, and a ramp lies between.
        def pair_that_turns(times):  # index, not rounded, of the pair that does so many turns
            return D / 2 * math.log(c.block_size / (times * 2 * math.pi)) / math.log(theta)

        low = max(0, math.floor(pair_that_turns(32)))
        high = min(D - 1, math.ceil(pair_that_turns(1)))
        ramp = ((pair - low) / max(high - low, 0.001)).clamp(0, 1)
        return frequencies * (1 - ramp + ramp / c.rope_factor)


class Window(Attention):
    """
    An S layer, with RoPE: a query sees itself and the W - 1 tokens before it.

    The factor is 1, as in published models with log n: here n is at most W.
    """

    def set_type(self, attention_type):
        super().set_type("softmax")

    def attend(self, q, k, v, context):
        # The sequence is cut into blocks of W tokens. The queries of a block see keys of their own
        # block and of the block before. So the cost is linear in T.
        B, T = q.size(0), q.size(2)
        W = min(self.max_keys, k.size(2))  # a window longer than the text changes nothing
        k, v = (z[:, :, -(T + W - 1):] for z in (k, v))  # no window reaches further back
        if T == 1:
            return super().attend(q, k, v, context)
        cached = k.size(2) - T
        # Pad to whole blocks of W, with one more in front: each block also reads the one before it.
        # (The cache of a window has less than W keys.)
        pad_front, pad_back = W - cached, -T % W

        def blocks(z):  # (B, H, blocks * W, D) -> (B, blocks, H, W, D)
            return z.unflatten(2, (-1, W)).transpose(1, 2)

        def with_block_before(z):  # (B, H, K, D) -> (B * blocks, H, 2 W, D)
            z = blocks(F.pad(z, (0, 0, pad_front, pad_back)))
            return torch.cat((z[:, :-1], z[:, 1:]), dim=3).flatten(0, 1)

        query_at = torch.arange(T + pad_back, device=q.device).view(-1, W, 1)  # (blocks, W, 1)
        key_at = query_at[:, :1] - W + torch.arange(2 * W, device=q.device)  # (blocks, 1, 2 W)
        seen = (key_at <= query_at) & (key_at > query_at - W)
        seen &= key_at >= -cached  # what lies before the oldest cached key is padding
        if context.documents is not None:
            query_documents = context.documents[:, query_at.clamp(max=T - 1)]
            key_documents = context.documents[:, key_at.clamp(0, T - 1)]
            seen = seen & (query_documents == key_documents)
        seen = seen.expand(B, -1, -1, -1).flatten(0, 1)[:, None]
        q = blocks(F.pad(q, (0, 0, 0, pad_back))).flatten(0, 1)
        y = self.weighted_sum(q, with_block_before(k), with_block_before(v), seen)
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

    def forward(self, x, context):
        attended = self.attn(self.norm_1(x), context)
        x = (x[:, -1:] if context.last_only else x) + attended
        return x + self.mlp(self.norm_2(x))


class KVCache:
    """Keys and values of every layer, for the `length` tokens so far. Use it without gradients."""
    room = 256  # tokens for which memory is allocated ahead

    def __init__(self):
        self.length, self.layers = 0, {}

    def append(self, layer, k, v, max_keys=math.inf):
        """Store k, v (B, H, T, D) of the next T positions and return those of all K. Keys that no
        later query sees are dropped: a query sees at most `max_keys`."""
        T, K = k.size(2), self.length + k.size(2)
        stored = self.layers.get(layer, (k[:, :, :0], v[:, :, :0]))
        if max_keys < math.inf:  # a window: few keys, which are copied
            k, v = (torch.cat(z, dim=2) for z in zip(stored, (k, v), strict=True))
            first = max(0, k.size(2) + 1 - max_keys)  # the next query sees itself, too
            # contiguous, since a view would keep all of the prompt in memory
            self.layers[layer] = [z[:, :, first:].contiguous() for z in (k, v)]
            return k, v
        # All keys are written in place: copying them for each token would take longer than
        # the attention itself.
        if K > stored[0].size(2):
            stored = [F.pad(z[:, :, :K - T], (0, 0, 0, T + self.room)) for z in stored]
            self.layers[layer] = stored
        for z, new in zip(stored, (k, v), strict=True):
            z[:, :, K - T:K] = new
        return [z[:, :, :K] for z in stored]


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

        # A seed gives the same weights whatever the attention is: what a subclass adds is drawn
        # afterwards, in its `setup`.
        std = config.init_std
        std_out = std / math.sqrt(2 * config.n_layer)  # 2 n_layer outputs add up (GPT-2)
        nn.init.normal_(self.wte.weight, std=std)
        for block in self.blocks:
            nn.init.normal_(block.attn.qkv.weight, std=std)
            nn.init.normal_(block.attn.proj.weight, std=std_out)
            nn.init.normal_(block.mlp.gate_up.weight, std=std)
            nn.init.normal_(block.mlp.down.weight, std=std_out)
        nn.init.normal_(self.lm_head.weight, std=std)

        for block in self.blocks:
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

    def context(self, idx, cache=None, documents=None):
        """
        Return the Context of the layers for idx (B, T), which continues the tokens in `cache`.

        documents (B, T): rising ids of the documents packed in each row, which do not see each
        other. Positions restart at 0 in each.
        """
        T, cached = idx.size(1), 0 if cache is None else cache.length
        if cached + T > self.max_len:
            raise ValueError(f"p_n is learned for at most {self.max_len} tokens, and this context "
                             f"has {cached + T}; use a shorter one")
        pos = torch.arange(cached, cached + T, device=idx.device)
        if documents is not None:
            first_token = torch.searchsorted(documents, documents)  # ids rise within a row
            pos = (pos - first_token)[:, None]
        # All layers of a letter have the same class, type and RoPE: compute f(n) and RoPE once for
        # each letter.
        layer_of_letter = {block.attn.letter: block.attn for block in self.blocks}
        f = {attn.type: ATTENTION[attn.type].f(pos + 1, self) for attn in layer_of_letter.values()}
        rope = {attn.letter: attn.rope(pos) for attn in layer_of_letter.values() if attn.uses_rope}
        return Context(pos + 1, f, rope, documents, cache)

    def hidden(self, idx, cache=None, documents=None, last=False):
        """
        Return the last hidden states (B, T, C) of idx (B, T); with `last`, of the last position.

        idx continues the tokens in the KVCache `cache` and is appended to it. documents: see
        `context`; do not combine them with a cache or `last`.
        """
        context = self.context(idx, cache, documents)
        if torch.compiler.is_compiling():
            # In one graph with the layers, the compiler would compute the cosines again in each.
            torch._dynamo.graph_break()
        x = self.wte(idx)
        *layers, final = self.blocks
        for block in layers:
            x = block(x, context)
        # all layers but the final one need every query
        x = final(x, replace(context, last_only=last))
        if cache is not None:  # advanced once, after all layers have appended
            cache.length += idx.size(1)
        return self.norm(x)

    def forward(self, idx, targets=None, cache=None):
        """
        Return (logits, loss) for idx (B, T), as in nanoGPT.

        Without targets: the logits of the last position (B, 1, V), and None. With targets (B, T),
        of which -1 is ignored: all logits (B, T, V), and the mean cross-entropy in nats. (train.py
        uses lib/loss.py.)
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

        Afterwards the mean of the factor over n = 1 to N is `scale` (softmax has 1). For SSMax this
        is s = 1 / mean log n, which is 0.168 for 1,024 tokens (section 3). Without a learned s the
        weights that make q are multiplied instead.
        """
        if self.config.attention_type != "softmax":  # the factor of its training would be lost
            raise ValueError("only softmax weights can be swapped, and these are "
                             f"{self.config.attention_type}; choose a softmax model")
        # a new config, so that a checkpoint records the new type
        self.config = replace(self.config, attention_type=attention_type)
        self.add_p_n()
        n = torch.arange(1, self.config.block_size + 1, device=self.wte.weight.device)
        values = ATTENTION[attention_type].f(n, self)
        # A factor that is 1 below N, such as the clip, is not rescaled: the model stays the same up
        # to N. (n = N is left out, because llama4 rises there.)
        # torch.where, so that the swap does not wait for a GPU
        mean = torch.where((values[:-1] == 1).all(), 1.0, values.mean())
        for attn in (block.attn for block in self.blocks if block.attn.letter != "S"):
            attn.set_type(attention_type)
            if isinstance(attn.s, nn.Parameter):
                b = attn.b[0]  # all heads are equal here
                attn.s.fill_((scale - b) / mean)  # so that s * mean + b = scale
            else:  # the constant goes into the weights that make q
                attn.scale_queries(scale / mean)

    @torch.no_grad()
    def last_query_attention(self, idx):
        """
        Return the attention weights (B, n_layer, n_head, T) of the last position of idx (B, T), in
        fp32. A needle score (section 3.4) is a sum of these weights over tokens of the needle.
        """
        context, x, weights = self.context(idx), self.wte(idx), []
        for block in self.blocks:
            q, k, _ = block.attn.project(block.norm_1(x), context)
            q = q[:, :, -1:]
            seen = block.attn.visible(q, k, context)
            weights.append(block.attn.weights(q, k, seen)[:, :, 0])
            if block is not self.blocks[-1]:
                x = block(x, context)
        return torch.stack(weights, dim=1)

    @torch.no_grad()
    def generate(self, idx, max_new_tokens, temperature=1.0, top_k=0, banned=(), cache=None):
        """
        Continue each row of idx (B, T) and return (B, T + max_new_tokens).

        temperature 0 is greedy; `top_k` keeps the k likeliest tokens (0: all); `banned` ids are
        never sampled (the end of text, in the paper's needle test). idx continues the tokens in
        `cache`, if one is given.
        """
        cache = self.new_cache() if cache is None else cache
        new = idx
        for _ in range(max_new_tokens):
            logits, _ = self(new, cache=cache)
            logits = logits[:, -1].float()
            logits[:, list(banned)] = -math.inf  # before top_k, or they would count among the k
            if temperature == 0:
                new = logits.argmax(dim=-1, keepdim=True)
            else:
                logits /= temperature
                if top_k:
                    kth = logits.topk(min(top_k, logits.size(-1))).values[:, [-1]]
                    logits[logits < kth] = -math.inf
                new = torch.multinomial(logits.softmax(dim=-1), num_samples=1)
            idx = torch.cat((idx, new), dim=1)  # `new` is not in the cache yet
        return idx

    def new_cache(self):  # Hugging Face models have another one
        return KVCache()

    def num_params(self):
        """Return the number of parameters: 162,148,608 for (a) of the paper."""
        return sum(p.numel() for p in self.parameters())
