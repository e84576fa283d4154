"""
p-RoPE: only a share of the pairs of channels rotates, the fastest ones. The slowest carry no
position, so they can compare contents at any distance:

    pair i turns by theta^(-2i/D) per token if i < share D/2, and not at all otherwise

As in --attention=p_rope:share=0.25. It changes R layers; L layers have no RoPE anyway. Barbero et
al., "Round and Round We Go! What makes Rotary Positional Encodings useful?" (arXiv 2410.06205).
"""
import torch

from model import Attention


class PRoPE(Attention):
    share = 0.75  # of the pairs, which rotates; 0: no position

    def setup(self):
        super().setup()
        self.uses_rope &= self.share > 0

    def frequencies(self, pair, theta):
        rotates = pair < int(self.share * len(pair))
        return torch.where(rotates, super().frequencies(pair, theta), 0)
