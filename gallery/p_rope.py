"""
p-RoPE: only a share of the pairs of channels rotates, the fastest ones. The slowest carry no
position, so they can compare contents at any distance:

    pair i turns by theta^(-2i/D) per token if i < share D/2, and not at all otherwise

It changes R layers; L layers have no RoPE anyway. Barbero et al., "Round and Round We Go! What
makes Rotary Positional Encodings useful?" (arXiv 2410.06205), with shares of 0.25 and 0.75.
"""
import torch

from model import Attention


class PRoPE(Attention):
    share = 0.5  # of the pairs, which rotates

    def frequencies(self, pair):
        rotates = pair < int(self.share * len(pair))
        return torch.where(rotates, super().frequencies(pair), 0)
