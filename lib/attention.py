"""
Attention beyond the paper: subclasses of model.py's Attention, their settings, and the choice of
the class that a layer needs.

They are p-RoPE and NoPE, RoPE stretched at evaluation, ALiBi, an attention sink, scale-invariant
attention, windows in some layers, packed documents, and a gate on the output. To add attention that
replaces the ordinary one, write a subclass that overrides what it changes, add a setting to
ModelConfig, and name both in CHOICES. CONTRIBUTING.md has examples. experiments/check.py tests such
a class.
"""
import math
from dataclasses import dataclass, replace

import torch
import torch.nn as nn
import torch.nn.functional as F

from lib.config import non_defaults
from model import ATTENTION, GPT, Attention, GPTConfig, Learned

SCALINGS = ("", "theta", "ntk", "yarn", "yarn_no_temperature", "nope")


@dataclass(frozen=True)
class ModelConfig(GPTConfig):
    """GPTConfig with options beyond the paper, which are all off by default."""
    # beyond the paper (lib/attention.py)
    rope_fraction: float = 1.0  # p-RoPE: share of channel pairs that rotate, fastest first; 0: NoPE
    rope_scaling: str = ""  # theta, ntk, yarn or yarn_no_temperature stretch RoPE; nope: no RoPE
    rope_factor: float = 1.0  # by how much rope_scaling stretches RoPE
    alibi: bool = False  # a bias by distance (2108.12409) in place of RoPE; T x T memory
    sink: bool = False  # an extra key with value 0 and a learned logit
    scale_invariant: bool = False  # scale-invariant attention (2505.17083); takes T x T memory
    constant_norm: bool = False  # q and k get norm 1 (RMS, no weights), then q a constant of 5.473
    window_pattern: str = ""  # a letter per layer, repeated, as in SL; S: a window; L: all keys, no
    # position; R: all keys and RoPE
    window: int = 0  # tokens that an S layer sees (S: RoPE, plain softmax and no sink)
    global_rope: bool = False  # RoPE in L layers too; otherwise they have no position (NoPE)
    doc_mask: bool = False  # in training, documents packed in one row do not see each other
    gate: bool = False  # attention's output times sigmoid(x W), elementwise (OLMo 3.5, Qwen)

    def __post_init__(self):
        super().__post_init__()
        if self.rope_scaling not in SCALINGS:
            raise ValueError(f"unknown rope_scaling {self.rope_scaling}; choose one of "
                             f"{', '.join(filter(None, SCALINGS))}")
        chosen = [setting for setting in CHOICES if getattr(self, setting)]
        if len(chosen) > 1:
            raise ValueError(f"{' and '.join(chosen)} cannot be combined: choose one")
        if not 0 <= self.rope_fraction <= 1:
            raise ValueError(f"rope_fraction={self.rope_fraction} must be between 0 and 1")
        stretches = self.rope_scaling not in ("", "nope")
        if self.rope_factor < 1 or stretches != (self.rope_factor > 1):
            raise ValueError(f"rope_scaling={self.rope_scaling!r} and rope_factor="
                             f"{self.rope_factor} do not fit: set both, with rope_factor above 1, "
                             "or neither (nope takes no factor)")
        self.check_windows()

    def check_windows(self):
        pattern = self.window_pattern
        if not set(pattern) <= {"S", "L", "R"}:
            raise ValueError(f"window_pattern={pattern} must have the letters S, for a layer with "
                             "a window, and L or R, for one that sees all keys, as in SSSL")
        if self.window < 0 or ("S" in pattern) != bool(self.window):
            raise ValueError(f"window={self.window} and window_pattern={pattern!r} do not fit: set "
                             "both or neither, as in --window=32 --window_pattern=SL")
        if len(pattern) > self.n_layer:
            raise ValueError(f"window_pattern={pattern} has more letters than n_layer="
                             f"{self.n_layer}: give one letter per layer, or fewer, which repeat")
        if set(pattern) == {"S"} and self.attention_type != "softmax":
            raise ValueError(f"window_pattern={pattern} has no L, and S layers are softmax, so no "
                             f"layer would have attention_type={self.attention_type}: add an L")


def has_global_rope(config, letter=None):
    """Return whether layers that see all keys (of this letter, or any) have RoPE. Only this RoPE is
    ever stretched."""
    pattern = letter or config.window_pattern
    if config.window_pattern and not config.global_rope and "R" not in pattern:
        return False
    return config.rope_fraction > 0 and not config.alibi and config.rope_scaling != "nope"


# -----------------------------------------------------------------------------
# a gate, and positions


class Gated(Attention):
    """
    Attention's output times sigmoid(x W), elementwise, before the output projection (`gate`).

    It is the base of all other classes here, because it combines with each of them.
    """

    def __init__(self, config, layer):
        super().__init__(config, layer)
        if config.gate:
            self.gate = nn.Linear(config.n_embd, config.n_embd, bias=False)
            nn.init.normal_(self.gate.weight, std=config.init_std)

    def mix(self, x, position, cache=None, last=False):
        y = super().mix(x, position, cache, last)
        return self.gate(x[:, -y.size(1):]).sigmoid() * y if self.config.gate else y


class GlobalLayer(Gated):
    """
    A layer that sees all keys, and whose RoPE may differ: it rotates a part of the pairs (p-RoPE)
    or none (NoPE), or an evaluation stretches it.
    """

    def __init__(self, config, layer):
        super().__init__(config, layer)
        pattern = config.window_pattern or "L"
        self.kind = pattern[layer % len(pattern)]
        self.n_rotating = 0  # of the pairs of channels
        if has_global_rope(config, self.kind):
            self.n_rotating = int(config.rope_fraction * self.head_size / 2)

    def rotate(self, x, position):
        return super().rotate(x, position) if self.n_rotating else x

    def frequencies(self, device, dtype):
        c, D = self.config, self.head_size
        theta, factor, scaling = c.rope_theta, c.rope_factor, c.rope_scaling
        if scaling == "theta":  # the paper's: theta x 50 for 20 times the length
            theta *= factor
        if scaling == "ntk":  # the lowest frequency is divided by the factor
            theta *= factor ** (D / (D - 2))
        pair = torch.arange(D // 2, dtype=dtype, device=device)
        speeds = theta ** (-2 * pair / D)
        if scaling.startswith("yarn"):
            # Pairs that turn 32 times or more in a block keep their speed, pairs that turn less
            # than once are slowed by the factor, and a ramp lies between (arXiv 2309.00071).

            def pair_that_turns(times):  # fractional index of the pair that turns so often
                return D / 2 * math.log(c.block_size / (times * 2 * math.pi)) / math.log(theta)

            low = max(0, math.floor(pair_that_turns(32)))
            high = min(D - 1, math.ceil(pair_that_turns(1)))
            ramp = ((pair - low) / max(high - low, 0.001)).clamp(0, 1)
            speeds = speeds * (1 - ramp + ramp / factor)
        # p-RoPE leaves out the slowest pairs (arXiv 2410.06205)
        return torch.where(pair < self.n_rotating, speeds, 0)

    def rope(self, pos):
        cos, sin = super().rope(pos)
        if self.config.rope_scaling == "yarn":
            # YaRN's "temperature" multiplies q and k by this number, and so the logits by its
            # square. Without it SSMax, which multiplies the logits, too, is compared more cleanly.
            multiplier = 1 + 0.1 * math.log(self.config.rope_factor)
            cos, sin = multiplier * cos, multiplier * sin
        return cos, sin


# -----------------------------------------------------------------------------
# other logits


class Sink(GlobalLayer):
    """
    An extra key with value zero in front of all others, so that a head may attend to nothing.

    Its logit is learned per head, and multiplied by the query's factor: without it the sink's
    weight would vanish beside logits that grow with log n.
    """

    def set_type(self, attention_type):
        if "sink" not in self.scale_names:
            # Made before s: the switch of (f) makes s after the sink. A resumed run makes both at
            # once, and must have the same order, in which the gradient norm is summed.
            self.set_scale("sink", Learned(0.0))
        super().set_type(attention_type)

    def scale_queries(self, ratio):
        super().scale_queries(ratio)
        self.sink *= ratio  # the sink's logit grows and shrinks with the other logits

    def project(self, x, position):
        q, k, v = super().project(x, position)
        # An extra channel carries the logit: it is 1 in the sink's key and 0 in all others. The
        # root of D is what `attend` divides by.
        logit = self.sink[:, None] * self.factor(position.f) * self.head_size**0.5
        q = torch.cat((q, logit[..., None].to(q.dtype).expand(*q.shape[:-1], 1)), dim=-1)
        return q, F.pad(k, (0, 1)), v

    def with_sink(self, k):
        """Return keys (B, H, S, D + 1) with the sink's key in front: (0, ..., 0, 1)."""
        k = F.pad(k, (0, 0, 1, 0))
        k[:, :, 0, -1] = 1
        return k

    def attend(self, q, k, v, mask):
        T = q.size(2)
        if mask is not None:
            mask = F.pad(mask, (1, 0), value=True)  # every query sees the sink
        elif T > 1:  # a dummy query in front, since causal kernels need as many queries as keys
            q = F.pad(q, (0, 0, 1, 0))
        v = F.pad(v, (0, 1, 1, 0))  # as wide as k, which fused kernels need
        return super().attend(q, self.with_sink(k), v, mask)[:, :, -T:, :self.head_size]

    def weights(self, q, k, mask=None):
        if mask is not None:
            mask = F.pad(mask, (1, 0), value=True)
        return super().weights(q, self.with_sink(k), mask)[..., 1:]


class ConstantNorm(GlobalLayer):
    """
    Queries and keys normed without weights, and the query times a constant, in place of a factor
    that the weights can learn (Muse Spark, transformers 5.24.0: 5.4730064863875 with D = 64).
    """

    def __init__(self, config, layer):
        super().__init__(config, layer)
        norm = nn.RMSNorm(self.head_size, config.norm_eps, elementwise_affine=False)
        self.q_norm = self.k_norm = norm

    def factor(self, f):
        return 5.473 * super().factor(f)


class FromWeights(GlobalLayer):
    """
    Attention that is computed from `weights`. A subclass with other logits overrides `logits`, and
    one that is no softmax overrides `weights`. It takes T x T memory.
    """

    def attend(self, q, k, v, mask):
        return self.weights(q, k, mask).to(v.dtype) @ self.per_head(v)


def distances(z):
    """Return the distance (T, S) between query and key of each of the logits z (B, H, T, S)."""
    T, S = z.shape[-2:]
    j = torch.arange(S, device=z.device)
    return j[S - T:, None] - j


class ALiBi(FromWeights):
    """Logits minus m times the distance, with a slope m for each head (arXiv 2108.12409)."""

    def logits(self, q, k):
        z = super().logits(q, k)
        slopes = 2 ** (-8 * torch.arange(1, self.n_head + 1, device=z.device) / self.n_head)
        return z - slopes[:, None, None] * distances(z)


class ScaleInvariant(FromWeights):
    """Logits a z + 1 - a^2 with a^2 = 1 + 2 log(1 + t / 10), t the distance (arXiv 2505.17083)."""

    def logits(self, q, k):
        z = super().logits(q, k)
        a_squared = 1 + 2 * (1 + distances(z).clamp(min=0) / 10).log()
        return a_squared.sqrt() * z + 1 - a_squared


# -----------------------------------------------------------------------------
# keys that are not seen


class Packed(GlobalLayer):
    """
    Packed documents that do not see each other, by flex_attention in compiled code on a GPU.

    flex_attention skips blocks in which no query shares a document with a key. In uncompiled code
    it would store all T x T logits, and on a CPU it has no backward pass: there the mask of
    Attention is used.
    """

    def make_mask(self, T, cached, device, documents=None):
        compiled_on_gpu = device.type == "cuda" and torch.compiler.is_compiling()
        if documents is None or not compiled_on_gpu:
            return super().make_mask(T, cached, device, documents)
        return self.block_mask(documents)

    def block_mask(self, documents):
        # imported here, since the import takes a second
        from torch.nn.attention.flex_attention import create_block_mask

        def sees(row, head, i, j):
            return (j <= i) & (documents[row, i] == documents[row, j])

        B, T = documents.shape
        return create_block_mask(sees, B, None, T, T, device=documents.device)

    def attend(self, q, k, v, mask):
        if mask is None or isinstance(mask, torch.Tensor):
            return super().attend(q, k, v, mask)
        from torch.nn.attention.flex_attention import flex_attention

        # contiguous, because torch 2.13 compiles flex_attention wrongly without (seen on a CPU)
        q, k, v = (z.contiguous() for z in (q, self.per_head(k), self.per_head(v)))
        return flex_attention(q, k, v, block_mask=mask, scale=1 / math.sqrt(self.head_size))


class WindowLayer(Gated):
    """
    An S layer, with RoPE: a query sees itself and the window - 1 tokens before it.

    Let W be the window. The factor is 1, because n stays at most W; published models with log n do
    the same. RoPE is never stretched, because no distance is longer than in training. The sequence
    is cut into blocks of W tokens. The queries of a block attend to the keys of their own block and
    of the block before, so the cost is linear in T.
    """
    kind = "S"

    def __init__(self, config, layer):
        super().__init__(config, layer)
        self.max_keys = config.window

    def set_type(self, attention_type):
        super().set_type("softmax")

    def swap(self, attention_type, model, scale=1.0):
        pass  # an S layer stays softmax

    def extend(self, cache, k, v):
        k_v = torch.stack((k, v))
        if self.layer in cache.layers:
            k_v = torch.cat((cache.layers[self.layer], k_v), dim=-2)
        # The cache keeps the last W - 1 keys, which is all that later queries see. They are cloned,
        # since a view would keep the keys of the whole prompt in memory.
        start = max(0, k_v.size(-2) - self.max_keys + 1)
        cache.layers[self.layer] = k_v[..., start:, :].clone()
        return k_v[0], k_v[1]

    def make_mask(self, T, cached, device, documents=None):
        """Return the mask of attention in blocks, (B or 1, blocks, 1, W, 2 W), or None if T = 1."""
        if T == 1:
            return None
        W = self.max_keys
        S = min(cached, W - 1) + T  # the cache still has min(cached, W - 1) keys
        start = torch.arange(0, S, W, device=device).view(-1, 1, 1, 1)  # of each block
        i = start + torch.arange(W, device=device)[:, None]  # its queries
        j = start + torch.arange(-W, W, device=device)  # the keys of the block before, and its own
        mask = (j >= 0) & (j <= i) & (j > i - W)
        if documents is None:
            return mask[None]
        documents = F.pad(documents, (0, -T % W), value=-1)
        return mask & (documents[:, i] == documents[:, j.clamp(min=0)])

    def attend(self, q, k, v, mask):
        W, T, S = self.max_keys, q.size(2), k.size(2)
        if mask is None:  # one query, which sees the last W keys
            return super().attend(q, k[:, :, -W:], v[:, :, -W:], None)

        def split(z):  # (B, H, S, D) -> (B, blocks, H, W, D); zeros fill the last block
            return F.pad(z, (0, 0, 0, -S % W)).unflatten(2, (-1, W)).transpose(1, 2)

        def with_block_before(z):  # -> (B, blocks, H, 2 W, D); zeros precede the first block
            z = split(z)
            before = F.pad(z[:, :-1], (0, 0, 0, 0, 0, 0, 1, 0))
            return torch.cat((before, z), dim=3)

        # The first S - T keys are from the cache. Dummy queries in front align q with k.
        q = split(F.pad(q, (0, 0, S - T, 0)))
        k, v = with_block_before(k), with_block_before(v)
        # Blocks are merged into the batch, since fused kernels need four dimensions.
        mask = mask.expand(len(q), -1, -1, -1, -1)
        y = super().attend(*(z.flatten(0, 1) for z in (q, k, v, mask)))
        y = y.unflatten(0, (len(q), -1)).transpose(1, 2).flatten(2, 3)  # (B, H, blocks * W, D)
        return y[:, :, S - T:S]

    def logits(self, q, k):
        z = super().logits(q, k)
        return z.masked_fill(distances(z) >= self.max_keys, -math.inf)


# -----------------------------------------------------------------------------
# the choice of the class

# {setting: class of the layers that see all keys}. Only one of these settings can be set.
CHOICES = {
    "sink": Sink,
    "scale_invariant": ScaleInvariant,
    "alibi": ALiBi,
    "constant_norm": ConstantNorm,
}


def attention_class(config, layer):
    """Return the class of one layer's attention."""
    # A model without options beyond the paper is made of the paper's class. (__annotations__ has
    # the fields that ModelConfig adds.)
    if not any(key in ModelConfig.__annotations__ for key in non_defaults(config)):
        return Attention
    pattern = config.window_pattern or "L"
    if pattern[layer % len(pattern)] == "S":
        return WindowLayer
    for setting, cls in CHOICES.items():
        if getattr(config, setting):
            return cls
    return Packed if config.doc_mask else GlobalLayer


def build(config):
    """Return the GPT of a GPTConfig or ModelConfig, with the attention classes that it needs."""
    def make_attention(config, layer):
        # Runs of one seed should begin with the same weights, whatever their attention. So a plain
        # layer is always made first, and draws from the global generator. A layer of another class
        # then draws from a generator of its own.
        plain, cls = Attention(config, layer), attention_class(config, layer)
        if cls is Attention:
            return plain
        with torch.random.fork_rng(devices=()):
            torch.default_generator.manual_seed(torch.initial_seed() ^ ((layer + 1) << 32))
            return cls(config, layer)

    return GPT(config, make_attention)


@torch.no_grad()
def convert(model, **changes):
    """
    Return a GPT with the weights of `model` and other settings of its ModelConfig.

    A layer that gets a window becomes softmax: the factor of its type becomes a constant for each
    head, the mean over 1 to `window` keys. ValueError if the model has qk_norm and its heads have
    different constants; RuntimeError if the weights do not fit the new settings.
    """
    converted = build(replace(model.config, **changes))
    weights, constants = model.state_dict(), {}
    for layer, (old, new) in enumerate(zip(model.blocks, converted.blocks, strict=True)):
        if isinstance(new.attn, WindowLayer) and not isinstance(old.attn, WindowLayer):
            n = torch.arange(1, new.attn.max_keys + 1, device=old.attn.s.device)
            constants[new.attn] = old.attn.factor(ATTENTION[old.attn.type].f(n, model)).mean(-1)
            for name in old.attn.scale_names:
                weights.pop(f"blocks.{layer}.attn.{name}", None)
    converted.load_state_dict(weights)
    for attn, constant in constants.items():
        if not model.config.qk_norm:
            attn.scale_queries(constant.repeat_interleave(attn.head_size)[:, None])
        elif (constant == constant[0]).all():
            attn.scale_queries(constant[0])
        else:
            raise ValueError("with qk_norm all heads share one norm, and cannot keep a factor of "
                             "their own in a layer with a window: convert a softmax model")
    return converted
