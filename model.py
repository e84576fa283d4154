"""
A Llama-2-like Transformer whose attention is Softmax or a variant of Scalable-Softmax (SSMax), after K. M. Nakanishi,
"Scalable-Softmax Is Superior for Attention" (arXiv 2501.19399). Only mathematics lives here: no files, no devices, no ranks.

Letters: B batch, T new tokens (queries), S keys (cached and new), C n_embd, H n_head, D = C/H, V vocab_size; n = the number of keys
that a query sees = its absolute position + 1.
"""
import math
from dataclasses import dataclass, replace

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right

# Every attention type multiplies the query by s * f(n) + b, after RoPE and on top of 1/sqrt(D) (Eqs. 2-4 and 10 of the paper).
# f(n, model): whole numbers n (T,) -> fp32 (T,). s and b, where learned, are one number a layer and head; s starts at config.s_init.
# A seventh variant is one more line here: "sqrt": (lambda n, model: n.float().sqrt(), 1.0, 0.0, ("s",)).
ATTENTION = {
    #              f(n)                                        s    b    learned
    "softmax":    (None,                                       0.0, 1.0, ()),          # (a): the query stays as it is
    "ssmax":      (lambda n, model: n.float().log(),           1.0, 0.0, ("s",)),      # (b), Eq. 2
    "ssmax_s1":   (lambda n, model: n.float().log(),           1.0, 0.0, ()),          # (c)
    "ssmax_bias": (lambda n, model: n.float().log(),           1.0, 0.0, ("s", "b")),  # (d), Eq. 4
    "pn":         (lambda n, model: model.p_n[n - 1],          1.0, 0.0, ("s", "b")),  # Eq. 3: f is learned, shared by all layers and heads
    "head_scale": (lambda n, model: model.mean_log_n(n),       1.0, 0.0, ("s",)),      # control: as sharp at the start, but blind to n
}


@dataclass(frozen=True)
class GPTConfig:
    """Defaults: the paper's 162 M model (Appendix A). Dropout is 0 there and absent here."""
    attention_type: str = "softmax"  # softmax (a), ssmax (b), ssmax_s1 (c), ssmax_bias (d), pn (learned p_n), head_scale (control)
    block_size: int = 1024  # training length in tokens; evaluation may be longer
    vocab_size: int = 50257  # GPT-2's; a compact corpus brings its own
    n_layer: int = 12  # layers
    n_head: int = 12  # attention heads a layer
    n_embd: int = 768  # width of the residual stream
    n_inner: int = 2048  # width of the SwiGLU
    rope_theta: float = 10000.0  # base of the RoPE frequencies
    s_init: float = 1.0  # where a learned s starts; the paper says 1 for p_n and nothing for (b) and (d)
    init_std: float = 0.02  # of the normal initial weights; output projections get init_std / sqrt(2 n_layer)
    norm_eps: float = 1e-5  # epsilon of RMSNorm
    qk_norm: bool = False  # RMSNorm on each head's queries and keys, before RoPE; not in the paper, and known to interact with SSMax

    def __post_init__(self):
        if self.attention_type not in ATTENTION:
            raise ValueError(f"attention_type {self.attention_type!r} is none of {', '.join(ATTENTION)}")
        if min(self.block_size, self.vocab_size, self.n_layer, self.n_head, self.n_embd, self.n_inner) < 1:
            raise ValueError("block_size, vocab_size, n_layer, n_head, n_embd and n_inner must be positive")
        if min(self.rope_theta, self.init_std, self.norm_eps) <= 0:
            raise ValueError("rope_theta, init_std and norm_eps must be positive")
        if self.n_embd % self.n_head or self.n_embd // self.n_head % 2:
            raise ValueError(f"n_embd / n_head must be an even whole number (RoPE turns pairs), not {self.n_embd}/{self.n_head}")
        if self.n_embd * (2 * self.vocab_size + self.n_layer * (4 * self.n_embd + 3 * self.n_inner)) + self.block_size > 10**12:
            raise ValueError("a model of more than 10^12 parameters; n_layer, n_embd, n_inner, vocab_size or block_size is too large")


# An op of its own, into which torch.compile does not look: it would compute the fp64 cosines anew in every layer, for every head and row.
@torch.library.custom_op("nanossmax::rope_tables", mutates_args=())
def rope_tables(positions: torch.Tensor, head_size: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines (T, D/2) in fp32. The angles are fp64 where there is one: at position 10^6 fp32 is off by 0.03 rad."""
    wide = torch.float32 if positions.device.type == "mps" else torch.float64
    exponents = torch.arange(0, head_size, 2, device=positions.device, dtype=wide) / head_size
    angles = positions.to(wide)[:, None] * theta ** -exponents
    return angles.cos().float(), angles.sin().float()


@rope_tables.register_fake
def _(positions, head_size, theta):
    return tuple(positions.new_empty(len(positions), head_size // 2, dtype=torch.float32) for _ in range(2))


def rotate(x, cos, sin):
    """RoPE on x (B, H, T, D), pairs (i, i + D/2) as in Hugging Face's Llama; computed in fp32, returned in x.dtype."""
    x1, x2 = x.float().chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_head, self.n_embd = config.n_head, config.n_embd
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=False)
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=False)
        self.q_norm, self.k_norm = (nn.RMSNorm(config.n_embd // config.n_head, eps=config.norm_eps) if config.qk_norm else nn.Identity() for _ in range(2))
        self.set_type(config.attention_type, config.s_init)

    def set_type(self, attention_type, s_init):
        """Make s and b (H,) for the type: fp32 parameters of rank 1 (so never decayed) where learned, constants elsewhere."""
        f, s, b, learned = ATTENTION[attention_type]
        self.scaled = f is not None
        for name, value in (("s", s_init if "s" in learned else s), ("b", b)):
            value = torch.full((self.n_head,), value, device=self.qkv.weight.device)
            if name in learned:
                setattr(self, name, nn.Parameter(value))
            elif self.scaled:
                self.register_buffer(name, value, persistent=False)

    def queries_keys_values(self, x, cos, sin, f):
        """x (B, T, C) -> q, k, v (B, H, T, D), with position and SSMax in q and k: all that differs from plain attention."""
        B, T, C = x.shape
        q, k, v = (z.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for z in self.qkv(x).split(C, dim=2))
        q, k = rotate(self.q_norm(q), cos, sin), rotate(self.k_norm(k), cos, sin)
        if self.scaled:
            scale = self.s[:, None] * f + self.b[:, None]  # (H, T) in fp32, s log n + b of Eq. 4, cast once
            q = q * scale.to(q.dtype)[..., None]
        return q, k, v

    def forward(self, x, cos, sin, f, cache=None, layer=None):
        B, T, C = x.shape
        q, k, v = self.queries_keys_values(x, cos, sin, f)
        if cache is not None:
            k, v = cache.append(layer, k, v)
        S = k.size(2)
        if S == T:  # every fused kernel knows this case
            y = F.scaled_dot_product_attention(q, k, v, is_causal=T > 1)
        else:  # T queries at the end of S keys; one query sees them all
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(T, S) if T > 1 else None)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_up = nn.Linear(config.n_embd, 2 * config.n_inner, bias=False)
        self.down = nn.Linear(config.n_inner, config.n_embd, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm_1 = nn.RMSNorm(config.n_embd, eps=config.norm_eps)
        self.attn = Attention(config)
        self.norm_2 = nn.RMSNorm(config.n_embd, eps=config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x, cos, sin, f, cache=None, layer=None):
        x = x + self.attn(self.norm_1(x), cos, sin, f, cache, layer)
        return x + self.mlp(self.norm_2(x))


class KVCache:
    """Keys and values of every layer, for up to `max_len` tokens a sequence. `length` tokens are in it."""

    def __init__(self, max_len):
        self.max_len, self.length, self.layers = max_len, 0, {}

    def append(self, layer, k, v):
        """Store k, v (B, H, T, D) of the next T positions; return all keys and values so far, (B, H, S, D)."""
        B, H, T, D = k.shape
        if layer not in self.layers:
            self.layers[layer] = k.new_empty(2, B, H, self.max_len, D)
        kv, end = self.layers[layer], self.length + T
        if end > self.max_len:
            raise ValueError(f"the KV cache holds {self.max_len} tokens, {end} asked for")
        kv[0, :, :, self.length:end], kv[1, :, :, self.length:end] = k, v
        return kv[0, :, :, :end], kv[1, :, :, :end]


class ChunkedCrossEntropy(torch.autograd.Function):
    """
    Cross-entropy of the rows of x (N, C) @ weight (V, C).T with targets (N,): its sum, and the loss of each row (N,), which has no
    gradient. Only `chunk` rows of logits exist at once, the log-sum-exp is fp32. The gradients are made (if `grad`) while a chunk's
    logits are at hand, so nothing is computed twice.
    """

    @staticmethod
    def forward(ctx, x, weight, targets, chunk, grad):
        V = ctx.V = len(weight)
        w = x.new_zeros(V + -V % 64, x.size(1))  # aligned rows of logits; softmax and losses never see the padding
        w[:V] = weight
        losses = torch.empty(len(x), device=x.device)
        logits = x.new_empty(min(chunk, len(x)), len(w))
        dx, dw, part = (torch.empty_like(x), x.new_zeros(w.T.shape, dtype=torch.float32), x.new_empty(w.T.shape)) if grad else (None,) * 3
        rows = max(1, 2**20 // V) if x.device.type == "cpu" else chunk  # so many rows stay in a CPU's cache during the softmax
        for i in range(0, len(x), chunk):
            xi = x[i:i + chunk]
            d = torch.mm(xi, w.T, out=logits[:len(xi)])  # the logits, and then, in their place, d loss / d logits
            for di, ti, li in zip(d[:, :V].split(rows), targets[i:i + chunk, None].split(rows), losses[i:i + chunk, None].split(rows)):
                log_p = di.log_softmax(dim=-1, dtype=torch.float32)
                torch.neg(log_p.gather(1, ti), out=li)
                if grad:  # softmax minus one-hot
                    di.copy_(log_p.exp_().scatter_add_(1, ti, torch.full_like(li, -1)))
            if grad:
                torch.mm(d, w, out=dx[i:i + chunk])
                torch.mm(xi.T.contiguous(), d, out=part)  # (C, V): CPUs are up to 1.7 times as fast at it as at (V, C) or without the copy
                n = 8 if x.device.type == "cpu" else len(dw)  # fp32 + bf16 makes an fp32 copy: a small one stays in a CPU's cache
                for total, piece in zip(dw.split(n), part.split(n)):
                    total += piece
        ctx.mark_non_differentiable(losses)
        ctx.save_for_backward(dx, dw)
        return losses.sum(), losses

    @staticmethod
    def backward(ctx, g, _):
        dx, dw = ctx.saved_tensors
        return (dx.float() * g).to(dx.dtype), dw.T[:ctx.V].contiguous().mul_(g), None, None, None


@torch.compiler.disable  # the loop over chunks would be unrolled: minutes of compilation for products that are as fast without
def chunked_cross_entropy(x, weight, targets, chunk, grad):
    """(sum, losses (N,)) of ChunkedCrossEntropy; where the target is -1 the loss is 0. Such rows, most of them in fine-tuning, get no logits."""
    counts = targets >= 0
    if counts.all():
        return ChunkedCrossEntropy.apply(x, weight, targets, chunk, grad)
    total, losses = ChunkedCrossEntropy.apply(x[counts], weight, targets[counts], chunk, grad)
    return total, torch.zeros(len(x), device=x.device).masked_scatter_(counts, losses)


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.norm = nn.RMSNorm(config.n_embd, eps=config.norm_eps)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)  # untied: 162 M only adds up this way
        if config.attention_type == "pn":
            self.p_n = nn.Parameter(torch.ones(config.block_size))
        for name, p in self.named_parameters():
            if p.dim() >= 2:
                residual = name.endswith(("proj.weight", "down.weight"))
                nn.init.normal_(p, std=config.init_std / (math.sqrt(2 * config.n_layer) if residual else 1))

    def f(self, n):
        """f(n) of the attention type for n = number of keys (T,), from whole numbers to fp32 (T,); None for softmax."""
        f = ATTENTION[self.config.attention_type][0]
        return None if f is None else f(n, self)

    def mean_log_n(self, n):
        """Mean of log n over the training length, for every n alike."""
        return torch.full(n.shape, math.lgamma(self.config.block_size + 1) / self.config.block_size, device=n.device)

    def hidden(self, idx, cache=None, each_block=None):
        """idx (B, T) -> the last hidden states (B, T, C). `each_block(block, x, cos, sin, f)` looks at the input of every block."""
        start, T = (cache.length if cache is not None else 0), idx.size(1)
        if self.config.attention_type == "pn" and start + T > self.config.block_size:
            raise ValueError(f"p_n is learned for n <= {self.config.block_size} (block_size) and undefined at n = {start + T}")
        positions = torch.arange(start, start + T, device=idx.device)
        cos, sin = rope_tables(positions, self.config.n_embd // self.config.n_head, self.config.rope_theta)
        f = self.f(positions + 1)
        x = self.wte(idx)
        for layer, block in enumerate(self.blocks):
            if each_block is not None:
                each_block(block, x, cos, sin, f)
            x = block(x, cos, sin, f, cache, layer)
        if cache is not None:
            cache.length += T
        return self.norm(x)

    def forward(self, idx, targets=None, reduction="mean", chunk=0, cache=None):
        """
        idx (B, T) -> (logits, loss), as in nanoGPT.

        Without targets: the logits of the last position (B, 1, V), and loss None. With targets (B, T), where -1 is ignored: the
        logits (B, T, V), and the cross-entropy in nats as `reduction` says: mean, sum, or none for one loss a token (B, T), 0 where
        ignored. With `chunk` > 0 only that many rows of logits exist at a time and the first result is None: 20,000 tokens fit anywhere
        (one loss a token has no gradient then).
        `cache`: a KVCache whose tokens come before idx, and which takes up idx.
        """
        x = self.hidden(idx, cache)
        if targets is None:
            return self.lm_head(x[:, [-1]]), None
        flat = targets.reshape(-1)
        if not chunk:
            logits = self.lm_head(x)
            losses = F.cross_entropy(logits.float().view(-1, logits.size(-1)), flat, ignore_index=-1, reduction="none")
            total = losses.sum()
        else:
            autocast = torch.is_autocast_enabled(x.device.type)
            rows = x.view(flat.numel(), -1).to(torch.get_autocast_dtype(x.device.type) if autocast else x.dtype)
            logits, grad = None, torch.is_grad_enabled() and reduction != "none"
            total, losses = chunked_cross_entropy(rows, self.lm_head.weight, flat, chunk, grad)
        if reduction == "none":
            return logits, losses.view_as(targets)
        return logits, total / (1 if reduction == "sum" else (flat >= 0).sum())

    def swap_attention(self, attention_type, scale=1.0):
        """
        Turn a softmax model into another attention type in place and keep its weights: the paper's (e) and (f). s becomes 1/mean(f(n))
        over the training length, 0.168 for SSMax and 1,024, so that the mean factor on q over a block is 1; p_n and head_scale start
        out equal to softmax. Another `scale` is the mean factor instead of 1: with head_scale, one constant temperature.
        """
        if self.config.attention_type != "softmax":
            raise ValueError(f"only softmax weights can be swapped, these are {self.config.attention_type}")
        self.config = replace(self.config, attention_type=attention_type)
        device = self.wte.weight.device
        if attention_type == "pn":
            self.p_n = nn.Parameter(torch.ones(self.config.block_size, device=device))
        f, _, _, learned = ATTENTION[attention_type]
        if f is None:
            return
        s = scale / self.f(torch.arange(1, self.config.block_size + 1, device=device)).double().mean().item()
        for block in self.blocks:
            block.attn.set_type(attention_type, s)
            if "s" not in learned:  # (c) has no s to set: its queries shrink instead
                with torch.no_grad():
                    (block.attn.q_norm.weight if self.config.qk_norm else block.attn.qkv.weight[:self.config.n_embd]).mul_(s)

    @torch.no_grad()
    def last_query_attention(self, idx):
        """
        The attention weights of the last position of idx (T,) -> (n_layer, n_head, T), or of each row of idx (B, T) ->
        (B, n_layer, n_head, T), in fp32 and in memory linear in T. Needle scores (section 3.4) are sums over it.
        """
        weights = []

        def look(block, x, cos, sin, f):
            q, k, _ = block.attn.queries_keys_values(block.norm_1(x), cos, sin, f)
            with torch.autocast(x.device.type, enabled=False):  # which would make the product bf16 again
                scores = q[:, :, -1:].float() @ k.float().transpose(-2, -1) / math.sqrt(q.size(-1))
                weights.append(scores.softmax(dim=-1)[:, :, 0])

        self.hidden(idx if idx.dim() == 2 else idx[None], each_block=look)
        weights = torch.stack(weights, dim=1)
        return weights if idx.dim() == 2 else weights[0]

    @torch.no_grad()
    def generate(self, idx, max_new_tokens, temperature=1.0, top_k=None, banned=(), prefill_chunk=0):
        """
        Continue each row of idx (B, T), rows of equal length, by `max_new_tokens` -> (B, T + max_new_tokens). Nothing is cropped.

        temperature 0 is greedy. `top_k` keeps the k likeliest tokens, `banned` token ids never come (end of text, in the paper's needle
        test). The prompt goes through the model once, in pieces of `prefill_chunk` tokens if given, then one token at a time.
        """
        cache = KVCache(idx.size(1) + max_new_tokens)
        new = idx
        for _ in range(max_new_tokens):
            for piece in new.split(prefill_chunk or new.size(1), dim=1):
                logits, _ = self(piece, cache=cache)
            logits = logits[:, -1].float()
            logits[:, list(banned)] = -math.inf
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
        """Training FLOPs a token at length T (PaLM, Appendix B): 6 a weight that multiplies, 12 C T a layer. The embedding is a lookup."""
        weights = sum(p.numel() for p in self.parameters() if p.dim() >= 2) - self.wte.weight.numel()
        return 6 * weights + 12 * self.config.n_layer * self.config.n_embd * T
