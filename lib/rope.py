"""RoPE, and what stretches it at evaluation: the frequencies and the rotation."""
import math

import torch

SCALINGS = ("", "theta", "pi", "ntk", "yarn", "yarn_mscale", "nope")


def frequencies(config, like):
    """Radians a token of each pair (i, i + D/2), (D/2,), in the type and on the device of `like`"""
    D, factor, theta = config.n_embd // config.n_head, config.rope_factor, config.rope_theta
    pair = torch.arange(D // 2, dtype=like.dtype, device=like.device)
    if config.rope_scaling == "theta":  # the paper's: 50 at 20 times the length
        theta *= factor
    if config.rope_scaling == "ntk":  # the slowest frequency is stretched by the factor
        theta *= factor ** (D / (D - 2))
    found = theta ** (-2 * pair / D)
    if config.rope_scaling == "pi":  # position interpolation (arXiv 2306.15595)
        found = found / factor
    if config.rope_scaling.startswith("yarn"):
        # what turns 32 times in a block stays, what turns less than once is stretched, between
        # them a ramp over the pairs (arXiv 2309.00071)
        low, high = (D * math.log(config.block_size / (turns * 2 * math.pi)) / 2 / math.log(theta)
                     for turns in (32, 1))
        low, high = max(0, math.floor(low)), min(D - 1, math.ceil(high))
        ramp = ((pair - low) / max(high - low, 0.001)).clamp(0, 1)
        found = found * (1 - ramp + ramp / factor)
    turned = 0 if config.rope_scaling == "nope" else int(config.rope_fraction * D / 2)
    return torch.where(pair < turned, found, 0)  # p-RoPE: the slowest stand still (2410.06205)


@torch.compiler.disable  # or every layer's kernel computes the cosines anew: 87 ms, not 13
def tables(positions, config):
    """Cosines and signed sines (T, D) in fp32, of angles in fp64: fp32 is off by 0.03 at 10^6."""
    wide = torch.float32 if positions.device.type == "mps" else torch.float64  # it has no fp64
    at = positions.to(wide)
    angles = at[:, None] * frequencies(config, at)
    # YaRN's temperature is a constant on both q and k, so its square is a factor on the logits:
    # a rival of SSMax, and a name of its own
    size = 1 + 0.1 * math.log(config.rope_factor) * (config.rope_scaling == "yarn_mscale")
    cos, sin = size * angles.cos().float(), size * angles.sin().float()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotate(x, cos, sin):
    """RoPE on x (B, H, T, D) -> fp32; pairs (i, i + D/2) as in Hugging Face's Llama."""
    x = x.float()
    # whole rows at once and the sign in the table: two products, where the halves need four
    return x * cos + x.roll(x.size(-1) // 2, dims=-1) * sin
