"""The whole model in float64, written from the formulas of the papers and not from model.py."""
import math

import torch

from lib.models import ModelConfig
from model import ATTENTION, Learned

N = 32  # the training length, as in conftest.TINY

F_OF_N = {
    "softmax": lambda n: 1.0,
    **dict.fromkeys(("ssmax", "ssmax_s1", "ssmax_bias", "ssmax_bias_s0", "residual"), math.log),
    "head_scale": lambda n: math.log(math.factorial(N)) / N,
    "power": lambda n: (1 + n / N) ** 0.1,
    "logn_clip": lambda n: max(1, math.log(n) / math.log(N)),
    "llama4": lambda n: 1 + 0.1 * math.log(1 + math.floor(n / N)),
    "log_floor": lambda n: 1 + 0.1 * math.log(max(1, n / N)),
    "step_1.5": lambda n: 1.5 if n > N else 1,
    "step_2": lambda n: 2 if n > N else 1,
    "step_3": lambda n: 3 if n > N else 1,
}


def reference_logits(model, idx):
    """Return the logits (T, V) of idx (T,) in float64."""
    c = ModelConfig(**vars(model.config))
    P = {name: p.detach().double() for name, p in model.named_parameters()}
    x = P["wte.weight"][idx]
    for layer in range(c.n_layer):
        prefix = f"blocks.{layer}."
        p = {name.removeprefix(prefix): value for name, value in P.items()
             if name.startswith(prefix)} | {"p_n": P.get("p_n")}
        h = rms_norm(x, p["norm_1.weight"], c.norm_eps)
        y = attend(c, p, layer, h)
        x = x + y @ p["attn.proj.weight"].T
        h = rms_norm(x, p["norm_2.weight"], c.norm_eps)
        gate, up = (h @ p["mlp.gate_up.weight"].T).chunk(2, dim=-1)
        x = x + (gate * torch.sigmoid(gate) * up) @ p["mlp.down.weight"].T
    return rms_norm(x, P["norm.weight"], c.norm_eps) @ P["lm_head.weight"].T


def attend(c, p, layer, h):
    """Return the heads' outputs side by side, (T, C), for the normed input h (T, C)."""
    T, H, D = len(h), c.n_head, c.n_embd // c.n_head
    pattern = c.window_pattern or "R"
    letter = pattern[layer % len(pattern)]
    q, k, v = (h @ p["attn.qkv.weight"].T).view(T, -1, D).split(H, dim=1)
    if letter != "L":
        q, k = rope(q, c.rope_theta), rope(k, c.rope_theta)
    z = torch.einsum("thd,uhd->htu", q, k) / math.sqrt(D)
    distance = torch.arange(T)[:, None] - torch.arange(T).double()
    if letter == "S":
        w = z.exp().tril() * (distance < c.window)
    else:
        w = (z * factor(c, p, T)[..., None]).exp().tril()
    return torch.einsum("htu,uhd->thd", w / w.sum(-1, keepdim=True), v).flatten(1)


def factor(c, p, T):
    """Return s f(n) + b for each head and n = 1, ..., T, a tensor (H, T)."""
    f = p["p_n"]
    if c.attention_type != "pn":
        f = torch.tensor([F_OF_N[c.attention_type](n) for n in range(1, T + 1)]).double()

    def number(name):  # (H, 1) if it is learned
        value = getattr(ATTENTION[c.attention_type], name)
        return p[f"attn.{name}"][:, None] if isinstance(value, Learned) else value

    return (number("s") * f[:T] + number("b")).expand(c.n_head, T)


def rms_norm(x, weight, eps):
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def rope(z, theta):
    """Turn the pairs (i, i + D/2) of z (T, H, D) by t theta^(-2i/D)."""
    T, _, D = z.shape
    speeds = theta ** -torch.arange(0, 1, 2 / D).double()
    angles = torch.arange(T).view(T, 1, 1) * speeds
    turned = torch.complex(*z.chunk(2, dim=-1)) * torch.exp(1j * angles)
    return torch.cat((turned.real, turned.imag), dim=-1)


def farthest(a, b):
    return (a - b).abs().max().item()
