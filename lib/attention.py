"""
Attention beyond the paper: subclasses of model.py's Attention, their settings, and the choice of
the class that a config needs.

They are p-RoPE and NoPE, RoPE stretched at evaluation, ALiBi, an attention sink, scale-invariant
attention, windows in some layers, packed documents, and a gate on the output. To add one: write a
subclass that overrides what it changes, add a setting to ModelConfig, and choose the class in
`attention_class`.
"""
import functools
import math
from dataclasses import dataclass, fields

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from model import GPT, Attention, GPTConfig, Learned

SCALINGS = ("", "theta", "pi", "ntk", "yarn", "yarn_mscale", "nope")
SINKS = ("", "off_by_one", "learned")


@dataclass(frozen=True)
class ModelConfig(GPTConfig):
    """GPTConfig with options beyond the paper, which are all off by default."""
    # beyond the paper (lib/attention.py)
    rope_fraction: float = 1.0  # p-RoPE: share of channel pairs that rotate, fastest first; 0: NoPE
    rope_scaling: str = ""  # stretch RoPE with theta, pi, ntk, yarn or yarn_mscale; nope: no RoPE
    rope_factor: float = 1.0  # by how much rope_scaling stretches RoPE
    alibi: bool = False  # a bias that falls with distance (2108.12409); needs rope_fraction=0
    sink: str = ""  # an extra key with value 0; its logit is 0 (off_by_one) or learned
    scale_invariant: bool = False  # scale-invariant attention (2505.17083); takes T x T memory
    window_pattern: str = ""  # a letter per layer, repeated, as in SL; S: a window, L: all keys
    window: int = 0  # tokens that an S layer sees; it has RoPE, plain softmax and no sink
    global_rope: bool = False  # RoPE in L layers too; otherwise they have no position (NoPE)
    doc_mask: bool = False  # in training, documents packed in one row do not see each other
    gate: bool = False  # attention's output times sigmoid(x W), elementwise (OLMo 3.5, Qwen)

    def __post_init__(self):
        super().__post_init__()
        for key, known in (("rope_scaling", SCALINGS), ("sink", SINKS)):
            if getattr(self, key) not in known:
                names = ", ".join(filter(None, known))
                raise ValueError(f"unknown {key} {getattr(self, key)}; choose one of {names}")
        if bool(self.sink) + self.alibi + self.scale_invariant > 1:
            raise ValueError("alibi, scale_invariant and sink cannot be combined: choose one")
        if self.alibi and self.window_pattern:
            raise ValueError("alibi replaces RoPE, but layers with windows need RoPE: leave out "
                             "alibi or window_pattern")
        if self.alibi and self.rope_fraction:
            raise ValueError("alibi replaces RoPE: set --rope_fraction=0 as well")
        takes_factor = self.rope_scaling not in ("", "nope")
        if takes_factor != (self.rope_factor > 1):
            raise ValueError(f"rope_scaling={self.rope_scaling!r} and rope_factor="
                             f"{self.rope_factor} do not fit: set both, with rope_factor above 1, "
                             "or neither (nope takes no factor)")
        if self.rope_factor < 1:
            raise ValueError(f"rope_factor={self.rope_factor} must be at least 1")
        if self.rope_scaling and (self.rope_theta <= 1 or self.n_embd // self.n_head < 4):
            raise ValueError(f"rope_scaling={self.rope_scaling} needs a rope_theta above 1, and "
                             "heads of four channels or more (n_embd/n_head)")
        if not 0 <= self.rope_fraction <= 1:
            raise ValueError(f"rope_fraction={self.rope_fraction} must be between 0 and 1")
        self.check_windows()
        if self.rope_scaling and not has_rope_to_stretch(self):
            raise ValueError(f"rope_scaling={self.rope_scaling} has no effect: no layer that sees "
                             "all keys has RoPE; leave it and rope_factor out")

    def check_windows(self):
        pattern = self.window_pattern
        if strange := set(pattern) - {"S", "L"}:
            raise ValueError(f"window_pattern {pattern} has {', '.join(sorted(strange))}: write S "
                             "for a layer with a window and L for one that sees all, as in SSSL")
        if len(pattern) > self.n_layer:
            raise ValueError(f"window_pattern {pattern} has {len(pattern)} letters for "
                             f"{self.n_layer} layers: shorten it, or set --n_layer")
        if ("S" in pattern) != bool(self.window):
            raise ValueError(f"window={self.window} with window_pattern={pattern!r}: an S layer "
                             "needs a window and a window needs an S layer, as in --window=32 "
                             "--window_pattern=SL")
        if self.window > self.block_size:
            raise ValueError(f"window {self.window} is longer than block_size {self.block_size}: "
                             "an S layer would see all keys; make the window smaller")
        beyond = self.attention_type != "softmax" or self.sink or self.scale_invariant
        if pattern and "L" not in pattern and beyond:
            raise ValueError(f"window_pattern {pattern} has no L: no layer would see all keys, and "
                             "attention_type, sink and scale_invariant would have no effect")
        if self.global_rope and "L" not in pattern:
            raise ValueError("global_rope needs a window_pattern with an L")
        if pattern and not self.global_rope and self.rope_fraction != 1:
            raise ValueError(f"rope_fraction={self.rope_fraction} has no effect with windows: S "
                             "layers rotate all pairs and L layers have no RoPE; leave it out, or "
                             "set --global_rope")


def build(config):
    """Return the GPT of a GPTConfig or ModelConfig, with the attention classes that it needs."""
    def attention(config, layer):
        return attention_class(config, layer)(config, layer)

    return GPT(config, attention)


def beyond_the_paper(config):
    """Return {setting: value} of the settings with which a config leaves the paper's model."""
    paper_fields = {field.name for field in fields(GPTConfig)}
    different = {}
    for field in fields(ModelConfig):
        value = getattr(config, field.name, field.default)
        if field.name not in paper_fields and value != field.default:
            different[field.name] = value
    return different


def has_rope_to_stretch(config):
    """Return whether an evaluation can stretch RoPE: layers that see all keys must have RoPE."""
    in_all_layers = not config.window_pattern or config.global_rope
    return in_all_layers and config.rope_fraction > 0 and not config.alibi


def attention_class(config, layer):
    """Return the class of one layer's attention."""
    if not beyond_the_paper(config):
        return Attention
    pattern = config.window_pattern
    letter = pattern[layer % len(pattern)] if pattern else ""
    cls = Positioned
    for name, rival in (("alibi", ALiBi), ("sink", Sink), ("scale_invariant", ScaleInvariant)):
        if getattr(config, name):
            cls = rival
    if config.doc_mask and cls is Positioned:
        cls = Packed
    if letter == "L" and not config.global_rope:
        cls = with_mixin(Unpositioned, cls)
    if letter == "S":
        cls = Window
    return with_mixin(Gated, cls) if config.gate else cls


@functools.cache
def with_mixin(mixin, cls):
    """Return the class that combines a mixin and `cls`; it is created once."""
    return type(f"{mixin.__name__}{cls.__name__}", (mixin, cls), {})


# -----------------------------------------------------------------------------
# positions


class Positioned(Attention):
    """RoPE that rotates a part of the pairs (p-RoPE, NoPE), or that an evaluation stretches."""

    def frequencies(self, device, dtype):
        c, D = self.config, self.head_size
        factor, theta = c.rope_factor, c.rope_theta
        pair = torch.arange(D // 2, dtype=dtype, device=device)
        if c.rope_scaling == "theta":  # the paper's: theta x 50 for 20 times the length
            theta *= factor
        if c.rope_scaling == "ntk":  # the lowest frequency is divided by the factor
            theta *= factor ** (D / (D - 2))
        speeds = theta ** (-2 * pair / D)
        if c.rope_scaling == "pi":  # position interpolation (arXiv 2306.15595)
            speeds = speeds / factor
        if c.rope_scaling.startswith("yarn"):
            # Pairs that turn 32 times or more in a block keep their speed, pairs that turn less
            # than once are slowed by the factor, and a ramp lies between (arXiv 2309.00071).

            def pair_that_turns(times):  # fractional index of the pair that turns so often
                return D / 2 * math.log(c.block_size / (times * 2 * math.pi)) / math.log(theta)

            low = max(0, math.floor(pair_that_turns(32)))
            high = min(D - 1, math.ceil(pair_that_turns(1)))
            ramp = ((pair - low) / max(high - low, 0.001)).clamp(0, 1)
            speeds = speeds * (1 - ramp + ramp / factor)
        turning = 0 if c.rope_scaling == "nope" else int(c.rope_fraction * D / 2)
        return torch.where(pair < turning, speeds, 0)  # p-RoPE leaves out the slowest (2410.06205)

    def rope(self, pos):
        cos, sin = super().rope(pos)
        if self.config.rope_scaling == "yarn_mscale":
            # YaRN's temperature multiplies q and k, and so the logits by its square. It is an
            # option because it competes with SSMax.
            temperature = 1 + 0.1 * math.log(self.config.rope_factor)
            cos, sin = temperature * cos, temperature * sin
        return cos, sin


# -----------------------------------------------------------------------------
# other changes of the logits: ALiBi, a sink, scale-invariant attention


class ALiBi(Positioned):
    """A bias of -m (i - j) on the logit of query i and key j, with a slope m for each head."""

    def project(self, x, position):
        q, k, v = super().project(x, position)
        # Softmax is unchanged by a constant per row, so we add m j instead of -m (i - j). Extra
        # channels of k carry j as a sum of three numbers, each of which bf16 holds exactly up to
        # j = 4 million.
        slopes = 2 ** (-8 * torch.arange(1, self.n_head + 1, device=x.device) / self.n_head)
        j = position.pos
        q, k, v = (F.pad(z, (0, 4)) for z in (q, k, v))  # 4, not 3: kernels prefer even widths
        q[..., -4:] = slopes[:, None, None] * self.head_size**0.5  # by which attend divides
        k[..., -4:-1] = torch.stack((j // 2**14 * 2**14, j // 128 % 128 * 128, j % 128), dim=-1)
        return q, k, v

    def attend(self, q, k, v, mask):
        return super().attend(q, k, v, mask)[..., :self.head_size]


class Sink(Positioned):
    """
    An extra key with value zero in front of all others, so that a head may attend to nothing.

    Its logit is 0 (off_by_one) or learned per head. A learned logit is multiplied by the query's
    factor: without it the sink would lose its share to logits that grow with log n.
    """

    def __init__(self, config, layer):
        super().__init__(config, layer)
        self.set_number("sink", Learned(0.0) if config.sink == "learned" else 0.0)

    def set_type(self, attention_type):
        super().set_type(attention_type)
        # A swap registers s after the sink. The sink is registered again, so that it comes after s
        # as in a new model: an optimizer's state is stored in the order of the parameters.
        # (Attention's constructor calls this before there is a sink.)
        if "sink" in self._parameters:
            self.register_parameter("sink", self._parameters.pop("sink"))

    def scale_queries(self, ratio):
        super().scale_queries(ratio)
        self.sink *= ratio  # the sink's logit grows and shrinks with the other logits

    def project(self, x, position):
        q, k, v = super().project(x, position)
        # An extra channel carries the logit: it is 1 in the sink's key and 0 in all others. The
        # root of D is what `attend` divides by.
        logit = self.sink[:, None] * self.factor(position.f) * self.head_size**0.5
        q = torch.cat((q, logit[..., None].to(q.dtype).expand(*q.shape[:-1], 1)), dim=-1)
        return q, F.pad(k, (0, 1)), F.pad(v, (0, 1))

    def with_sink(self, z, last):
        """Return keys or values (B, H, S, D) with the sink in front. The sink's last channel is
        `last`, and its other channels are 0."""
        z = F.pad(z, (0, 0, 1, 0))
        z[:, :, 0, -1] = last
        return z

    def attend(self, q, k, v, mask):
        k, v = self.with_sink(k, 1), self.with_sink(v, 0)
        if mask is None and q.size(2) + 1 == k.size(2) and q.size(2) > 1:
            # a dummy query makes T equal to S, as causal kernels need; its output is dropped
            return super().attend(F.pad(q, (0, 0, 1, 0)), k, v, None)[:, :, 1:, :self.head_size]
        if mask is not None:
            mask = F.pad(mask, (1, 0), value=True)
        return super().attend(q, k, v, mask)[..., :self.head_size]

    def logits(self, q, k):
        return super().logits(q, self.with_sink(k, 1))


class FromLogits(Positioned):
    """
    Attention that is computed from `logits`. A rival with other logits overrides `logits` alone,
    and its attention and its needle scores follow. It takes T x T memory.
    """

    def attend(self, q, k, v, mask):
        T, S = q.size(2), k.size(2)
        if mask is None:
            mask = torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)
        z = self.logits(q, k).masked_fill(~mask, -math.inf)
        return z.softmax(dim=-1).to(v.dtype) @ self.per_head(v)


class ScaleInvariant(FromLogits):
    """Logits a z + 1 - a^2 with a^2 = 1 + 2 log(1 + t / 10), t the distance (arXiv 2505.17083)."""

    def logits(self, q, k):
        z = super().logits(q, k)
        T, S = z.shape[-2:]
        i, j = (torch.arange(start, S, device=z.device) for start in (S - T, 0))
        a_squared = 1 + 2 * (1 + (i[:, None] - j).clamp(min=0) / 10).log()
        return a_squared.sqrt() * z + 1 - a_squared


# -----------------------------------------------------------------------------
# packed documents


class Packed(Positioned):
    """
    Packed documents that do not see each other, by flex_attention in compiled code on a GPU.

    flex_attention skips a block in which no query shares a document with a key. A kernel that takes
    a mask computes the block and discards it. But in uncompiled code (validation, --compile=False)
    flex_attention would store all T x T logits, and on a CPU it has no backward pass. In these two
    cases the mask of Attention is used instead.
    """

    def make_mask(self, T, cached, device, documents=None):
        compiled_on_gpu = device.type == "cuda" and torch.compiler.is_compiling()
        if documents is None or not compiled_on_gpu:
            return super().make_mask(T, cached, device, documents)
        return self.block_mask(documents)

    def block_mask(self, documents):
        def sees(row, head, i, j):
            return (j <= i) & (documents[row, i] == documents[row, j])

        B, T = documents.shape
        return create_block_mask(sees, B, None, T, T, device=documents.device)

    def attend(self, q, k, v, mask):
        if not isinstance(mask, BlockMask):
            return super().attend(q, k, v, mask)
        return flex_attention(q, self.per_head(k), self.per_head(v), block_mask=mask,
                              scale=1 / math.sqrt(self.head_size))


# -----------------------------------------------------------------------------
# layers that differ


class Unpositioned(Attention):
    """An L layer: it sees all keys and has no position (NoPE), where the S layers have RoPE."""

    def rotate(self, x, position):
        return x.float()


class Recent:
    """Wraps a KVCache and keeps the last window - 1 keys of a layer: all that later queries see."""

    def __init__(self, cache, window):
        self.cache, self.keep = cache, window - 1

    def append(self, layer, k, v):
        """Append k, v (B, H, T, D); return at most window - 1 older keys, and then these."""
        new = torch.stack((k, v))
        if layer in self.cache.layers:
            new = torch.cat((self.cache.layers[layer], new), dim=-2)
        # cloned, since a view would keep the keys of the whole prompt in memory
        self.cache.layers[layer] = new[..., max(0, new.size(-2) - self.keep):, :].clone()
        return new[0], new[1]


class Window(Attention):
    """
    An S layer, with RoPE: a query sees itself and the window - 1 tokens before it.

    The factor is 1: beyond the window n no longer grows. Published models with log n do the same.
    RoPE is never stretched, because no distance is longer than in training. The sequence is cut
    into blocks of W queries, W being the window. Each block attends to its own keys and to those of
    the block before, so the cost is linear in T.
    """
    kind = "S"

    def __init__(self, config, layer):
        super().__init__(config, layer)
        self.reach = config.window

    def set_type(self, attention_type):
        super().set_type("softmax")

    def swap(self, attention_type, model, scale=1.0):
        pass  # an S layer stays softmax

    def mix(self, x, position, cache=None, last=False):
        recent = None if cache is None else Recent(cache, self.reach)
        return super().mix(x, position, recent, last)

    def make_mask(self, T, cached, device, documents=None):
        """
        Return the mask of attention in blocks, (B or 1, blocks, 1, W, 2 W), or the mask of
        Attention if all keys fit in one window.
        """
        W = self.reach
        older = min(cached, W - 1)  # keys that the cache still has
        if documents is None and older + T <= W:
            return super().make_mask(T, older, device)
        blocks = math.ceil((older + T) / W)
        # A block has W queries and 2 W keys: those of the block before and its own. Both are
        # counted from the start of the block.
        query, key = torch.arange(W, device=device)[:, None], torch.arange(-W, W, device=device)
        # Keys that pad the last block come after all queries, so key <= query leaves them out.
        in_window = (key <= query) & (key > query - W)  # the same in all blocks
        # i and j are places in a row of the `older` cached keys and then the T new tokens. The mask
        # has a row for every place, also for cached ones: `attend` puts dummy queries there.
        block_start = torch.arange(blocks, device=device)[:, None, None, None] * W
        i, j = block_start + query, block_start + key  # (blocks, 1, W, 1), (blocks, 1, 1, 2 W)
        mask = in_window & (j >= 0)
        if documents is None:
            return mask[None]
        documents = F.pad(documents, (0, blocks * W - T), value=-1)
        of_queries = documents[:, i]  # (B, blocks, 1, W, 1)
        of_keys = documents[:, j.clamp(min=0)]  # (B, blocks, 1, 1, 2 W)
        return mask & (of_queries == of_keys)

    def attend(self, q, k, v, mask):
        W, T, S = self.reach, q.size(2), k.size(2)
        if mask is None and T == 1:  # with `last`, mix passes all keys of the prompt and no mask
            k, v = k[:, :, -W:], v[:, :, -W:]
        in_blocks = mask is not None and mask.dim() == 5
        if not in_blocks:
            return super().attend(q, k, v, mask)
        B, blocks = len(q), mask.size(1)
        # S - T dummy queries in front align queries with keys; zeros at the end fill the last block
        q = F.pad(q, (0, 0, S - T, blocks * W - S))
        k, v = (F.pad(self.per_head(z), (0, 0, 0, blocks * W - S)) for z in (k, v))

        def split(z):  # (B, H, blocks * W, D) -> (B, blocks, H, W, D)
            return z.unflatten(2, (blocks, W)).transpose(1, 2)

        def with_previous_block(z):  # -> (B, blocks, H, 2 W, D); zeros precede the first block
            z = split(z)
            previous = torch.cat((torch.zeros_like(z[:, :1]), z[:, :-1]), dim=1)
            return torch.cat((previous, z), dim=3)

        # blocks are merged into the batch, since fused kernels need four dimensions
        q, k, v = split(q), with_previous_block(k), with_previous_block(v)
        mask = mask.expand(B, -1, -1, -1, -1)
        q, k, v, mask = (z.flatten(0, 1) for z in (q, k, v, mask))
        y = F.scaled_dot_product_attention(q, k, v, mask, scale=1 / math.sqrt(self.head_size))
        y = y.unflatten(0, (B, blocks)).transpose(1, 2).flatten(2, 3)  # (B, H, blocks * W, D)
        return y[:, :, S - T:S]

    def logits(self, q, k):
        z = super().logits(q, k)
        T, S = z.shape[-2:]
        i, j = (torch.arange(start, S, device=z.device) for start in (S - T, 0))
        return z.masked_fill(j <= i[:, None] - self.reach, -math.inf)


# -----------------------------------------------------------------------------
# on the output


class Gated(Attention):
    """Attention's output times sigmoid(x W), elementwise, before the output projection."""

    def __init__(self, config, layer):
        super().__init__(config, layer)
        self.gate = nn.Linear(config.n_embd, config.n_embd, bias=False)

    def mix(self, x, position, cache=None, last=False):
        y = super().mix(x, position, cache, last)
        return self.gate(x[:, -y.size(1):]).sigmoid() * y
