"""
A Llama-like Transformer whose attention is Softmax or a variant of Scalable-Softmax (SSMax):
K. M. Nakanishi, "Scalable-Softmax Is Superior for Attention" (arXiv 2501.19399).

Only mathematics lives here: no files, no ranks, no settings of a run.

Letters: B batch, T new tokens (queries), S keys (cached and new), C n_embd, H n_head, D = C/H,
V vocab_size; n = the number of keys that a query sees = its absolute position + 1.
"""
import math
from dataclasses import dataclass, replace

import torch
import torch.nn as nn
import torch.nn.functional as F

from lib.loss import chunked_cross_entropy

# -----------------------------------------------------------------------------
# The attention types. Every one multiplies the query by s * f(n) + b, after RoPE and on top of
# 1/sqrt(D): Eqs. 2-4 and 10 of the paper. f takes whole numbers n (T,) and the model, and returns
# fp32 (T,). A new variant is one more line in ATTENTION; nothing else has to know it.


def one(n, model):
    return torch.ones_like(n, dtype=torch.float32)


def log_n(n, model):
    return n.float().log()


def mean_log_n(n, model):
    N = model.config.block_size
    return torch.full_like(n, math.lgamma(N + 1) / N, dtype=torch.float32)


def p_n(n, model):
    return model.p_n[n - 1]


def clipped(power):
    """max(1, (log n / log N)^power), N the training length: softmax up to there"""
    def f(n, model):
        return (n.float().log() / math.log(model.config.block_size)).pow(power).clamp(min=1)
    return f


def llama4(n, model):
    return 1 + 0.1 * (1 + n // model.config.block_size).float().log()


def log_floor(n, model):
    return 1 + 0.1 * (n / model.config.block_size).clamp(min=1).log()


# The factor is in fp32 and per head: 144 numbers for the paper's model, learned like any other.
LEARNED = "learned"  # one fp32 number a layer and head; s starts at config.s_init, b at 0

ATTENTION = {
    #              f(n)        s        b
    "softmax":    (one,        1.0,     0.0),      # (a)
    "ssmax":      (log_n,      LEARNED, 0.0),      # (b), Eq. 2
    "ssmax_s1":   (log_n,      1.0,     0.0),      # (c)
    "ssmax_bias": (log_n,      LEARNED, LEARNED),  # (d), Eq. 4
    "pn":         (p_n,        LEARNED, LEARNED),  # Eq. 3; f is learned, one for all layers
    "head_scale": (mean_log_n, LEARNED, 0.0),      # control: starts as sharp, but is blind to n
    # rivals that need no training: softmax weights, swapped at load (--attention_type)
    "logn_clip":  (clipped(1), 1.0,     0.0),
    "sqrt_log":   (clipped(0.5), 1.0,   0.0),
    "log_squared": (clipped(2), 1.0,    0.0),
    "llama4":     (llama4,     1.0,     0.0),      # Llama 4's temperature
    "log_floor":  (log_floor,  1.0,     0.0),      # Inkling's form of it
}


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
    rope_scaling: str = ""  # pi, ntk, yarn: RoPE stretched by rope_factor; none: no position at all
    rope_factor: float = 1.0  # by how much, from block_size on
    s_init: float = 1.0  # start of a learned s; the paper says 1 for p_n, nothing for (b), (d)
    init_std: float = 0.02  # of the initial weights; output projections: / sqrt(2 n_layer)
    norm_eps: float = 1e-5  # epsilon of RMSNorm
    qk_norm: bool = False  # RMSNorm on each head's queries and keys before RoPE; not in the paper

    def __post_init__(self):
        if self.attention_type not in ATTENTION:
            known = ", ".join(ATTENTION)
            raise ValueError(f"attention_type {self.attention_type} is none of {known}")
        for key in ("block_size", "vocab_size", "n_layer", "n_head", "n_embd", "n_inner",
                    "rope_theta", "init_std", "norm_eps"):
            if getattr(self, key) <= 0:
                raise ValueError(f"{key} must be positive")
        if self.rope_scaling not in ("", "pi", "ntk", "yarn", "none") or self.rope_factor < 1:
            raise ValueError("rope_scaling must be pi, ntk, yarn, none or empty, rope_factor >= 1")
        if self.n_kv_head < 0 or self.n_head % (self.n_kv_head or 1):
            raise ValueError("n_kv_head must divide n_head")
        if self.n_embd % self.n_head or self.n_embd // self.n_head % 2:
            raise ValueError(f"n_embd/n_head = {self.n_embd}/{self.n_head} must be an even whole "
                             "number: RoPE turns pairs")


@torch.compiler.disable  # or every layer's kernel computes the cosines anew: 87 ms, not 13
def rope_tables(positions, config):
    """Cosines and sines (T, D/2) in fp32, of angles in fp64: fp32 is off by 0.03 rad at 10^6."""
    wide = torch.float32 if positions.device.type == "mps" else torch.float64  # it has no fp64
    D, factor, theta = config.n_embd // config.n_head, config.rope_factor, config.rope_theta
    if config.rope_scaling == "ntk":  # the slowest frequency is stretched by the factor
        theta *= factor ** (D / (D - 2))
    pair = torch.arange(D // 2, device=positions.device, dtype=wide)
    frequencies = theta ** (-2 * pair / D)
    if config.rope_scaling == "pi":  # position interpolation (arXiv 2306.15595)
        frequencies = frequencies / factor
    if config.rope_scaling == "yarn":
        # what turns 32 times in a block stays, what turns less than once is stretched, between
        # them a ramp over the pairs (arXiv 2309.00071, without its temperature)
        low, high = (D * math.log(config.block_size / (turns * 2 * math.pi)) / 2 / math.log(theta)
                     for turns in (32, 1))
        low, high = max(0, math.floor(low)), min(D - 1, math.ceil(high))
        ramp = ((pair - low) / max(high - low, 0.001)).clamp(0, 1)
        frequencies = frequencies * (1 - ramp + ramp / factor)
    if config.rope_scaling == "none":
        frequencies = 0 * frequencies
    angles = positions.to(wide)[:, None] * frequencies
    return angles.cos().float(), angles.sin().float()


def rotate(x, cos, sin):
    """RoPE on x (B, H, T, D) -> fp32; pairs (i, i + D/2) as in Hugging Face's Llama."""
    x1, x2 = x.float().chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)


class Attention(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.layer, self.n_head, head_size = layer, config.n_head, config.n_embd // config.n_head
        self.n_kv_head = config.n_kv_head or config.n_head
        heads = self.n_head + 2 * self.n_kv_head
        self.qkv = nn.Linear(config.n_embd, heads * head_size, bias=False)
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=False)
        norm = nn.RMSNorm if config.qk_norm else nn.Identity  # which takes any arguments
        self.q_norm = norm(head_size, config.norm_eps)
        self.k_norm = norm(head_size, config.norm_eps)
        self.set_type(config.attention_type, config.s_init)

    def set_type(self, attention_type, s_init):
        """Make s and b (H,): fp32 parameters of rank 1 where learned, or else constants."""
        device = self.qkv.weight.device
        _, s, b = ATTENTION[attention_type]
        for name, value, start in (("s", s, s_init), ("b", b, 0.0)):
            if value == LEARNED:
                start = start * torch.ones(self.n_head, device=device)
                setattr(self, name, nn.Parameter(start))
            else:
                fixed = value * torch.ones(self.n_head, device=device)
                self.register_buffer(name, fixed, persistent=False)

    def queries_keys_values(self, x, position):
        """x (B, T, C) -> q, k, v (B, H, T, D), position and SSMax in them. The rest is plain."""
        B, T, C = x.shape
        cos, sin, f = position
        heads = self.qkv(x).view(B, T, -1, C // self.n_head).transpose(1, 2)
        q, k, v = heads.split((self.n_head, self.n_kv_head, self.n_kv_head), dim=1)
        q, k = rotate(self.q_norm(q), cos, sin), rotate(self.k_norm(k), cos, sin)
        # SSMax: softmax((s log n + b) q k) is n^(s q k) e^(b q k) / sum, Eqs. 2 and 4.
        # In fp32 and cast once: log n in bf16 has steps of 0.06 at n = 20,000.
        scale = self.s[:, None] * f + self.b[:, None]  # (H, T)
        q = q * scale[..., None]
        return q.to(v.dtype), k.to(v.dtype), v

    def for_each_query(self, z):
        """Keys or values of n_kv_head heads -> of n_head; every fused kernel knows these."""
        return z.repeat_interleave(self.n_head // self.n_kv_head, dim=1)

    def forward(self, x, position, cache=None):
        B, T, C = x.shape
        q, k, v = self.queries_keys_values(x, position)
        if cache is not None:  # keys are stored turned: their position does not change
            k, v = cache.append(self.layer, k, v)
        k, v = self.for_each_query(k), self.for_each_query(v)
        S = k.size(2)
        if S == T:  # every fused kernel knows this case
            y = F.scaled_dot_product_attention(q, k, v, is_causal=T > 1)
        else:  # T queries at the end of S keys; one query sees them all
            mask = None
            if T > 1:
                mask = torch.ones(T, S, dtype=torch.bool, device=x.device).tril(S - T)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_up = nn.Linear(config.n_embd, 2 * config.n_inner, bias=False)
        self.down = nn.Linear(config.n_inner, config.n_embd, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)  # one product for both is faster than two
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
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
        return ATTENTION[self.config.attention_type][0](n, self)

    @property
    def max_len(self):
        """The longest context that the attention is defined for: p_n ends where it was trained."""
        is_pn = ATTENTION[self.config.attention_type][0] is p_n
        return self.config.block_size if is_pn else math.inf

    def add_p_n(self):
        if self.max_len < math.inf:
            self.p_n = nn.Parameter(torch.ones(self.max_len, device=self.wte.weight.device))

    def embed(self, idx, start=0):
        """idx (B, T) from position `start` on -> x (B, T, C), and what depends on position."""
        T = idx.size(1)
        if start + T > self.max_len:
            n = start + T
            raise ValueError(f"p_n is learned for n <= {self.max_len}, undefined at n = {n}")
        at = torch.arange(start, start + T, device=idx.device)
        cos, sin = rope_tables(at, self.config)
        return self.wte(idx), (cos, sin, self.f(at + 1))

    def hidden(self, idx, cache=None):
        """idx (B, T) -> the last hidden states (B, T, C)."""
        x, position = self.embed(idx, cache.length if cache is not None else 0)
        for block in self.blocks:
            x = block(x, position, cache)
        if cache is not None:
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

    def swap_attention(self, attention_type, scale=1.0):
        """
        Turn a softmax model into another attention type in place, weights kept: (e) and (f).

        s becomes 1 / mean f(n) over the training length, 0.168 for SSMax and 1,024 (section 3.5),
        so that the mean factor on q over a block is 1. Another `scale` is that mean factor: with
        head_scale one constant temperature.
        """
        was = self.config.attention_type
        if was != "softmax":
            raise ValueError(f"only softmax weights can be swapped, these are {was}")
        # the config is the model's alone, so that a checkpoint says what these weights are now
        self.config = replace(self.config, attention_type=attention_type)
        self.add_p_n()
        n = torch.arange(1, self.config.block_size + 1, device=self.wte.weight.device)
        with torch.no_grad():
            s = scale / self.f(n).double().mean()
        _, fixed, _ = ATTENTION[attention_type]
        for block in self.blocks:
            block.attn.set_type(attention_type, s)
            if fixed != LEARNED:  # (c) has no s to set: its queries shrink instead
                normed = self.config.qk_norm
                q = block.attn.q_norm.weight if normed else block.attn.qkv.weight
                with torch.no_grad():
                    q[:self.config.n_embd].mul_(s / fixed)  # the first rows of qkv make q

    def scales(self):
        """{name: parameter} of what the attention type learns: s and b by layer, p_n."""
        names = (".attn.s", ".attn.b", "p_n")
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
            k = block.attn.for_each_query(k)
            with torch.autocast(x.device.type, enabled=False):  # which would make it bf16 again
                z = q[:, :, -1:].float() @ k.float().transpose(-2, -1) / math.sqrt(q.size(-1))
            weights.append(z.softmax(dim=-1)[:, :, 0])
            x = block(x, position)
        return torch.stack(weights, dim=1)

    @torch.no_grad()
    def generate(self, idx, max_new_tokens, temperature=1.0, top_k=None, banned=(),
                 prefill_chunk=0):
        """
        Continue each row of idx (B, T), all of one length, -> (B, T + max_new_tokens).

        temperature 0 is greedy; `top_k` keeps the k likeliest tokens; `banned` ids never come (end
        of text, in the paper's needle test). The prompt goes through the model once, in pieces of
        `prefill_chunk` tokens if given, then one token at a time. Nothing is cropped.
        """
        cache = KVCache(idx.size(1) + max_new_tokens)
        new = idx
        for _ in range(max_new_tokens):
            for piece in new.split(prefill_chunk or new.size(1), dim=1):
                logits, _ = self(piece, cache=cache)
            logits = logits[:, -1].float()
            logits[:, list(banned)] = -math.inf  # before top_k, which they would use up
            if temperature == 0:
                new = logits.argmax(dim=-1, keepdim=True)
            else:
                logits /= temperature
                if top_k is not None:
                    kth = logits.topk(min(top_k, logits.size(-1))).values[:, [-1]]
                    logits[logits < kth] = -math.inf
                new = torch.multinomial(logits.softmax(dim=-1), num_samples=1)
            idx = torch.cat((idx, new), dim=1)
        return idx

    def num_params(self):
        """Trainable numbers: 162,148,608 for (a) of the paper."""
        return sum(p.numel() for p in self.parameters())

    def flops_per_token(self, T):
        """Training FLOPs a token at length T (PaLM, Appendix B): 6 a weight that multiplies."""
        matrices = [p.numel() for p in self.parameters() if p.dim() >= 2]
        weights = sum(matrices) - self.wte.weight.numel()  # the embedding is a lookup
        return 6 * weights + 12 * self.config.n_layer * self.config.n_embd * T
