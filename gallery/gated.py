"""
Gated attention: the output of the heads times a gate that depends on the layer's input x:

    o_i = W_o (sigmoid(W_g x_i) * y_i),    y_i: the outputs of all heads side by side

It changes no weight, so it combines with any other attention, as in --attention=gated+sink. Qiu et
al., "Gated Attention for Large Language Models" (arXiv 2505.06708); Qwen3-Next and OLMo 3.5.
"""
import torch.nn as nn

from model import Attention


class Gated(Attention):
    in_windows = True

    def setup(self):
        super().setup()
        C = self.config.n_embd
        self.gate = nn.Linear(C, C, bias=False)
        nn.init.normal_(self.gate.weight, std=self.config.init_std)

    def mix(self, x, position, cache=None, last=False):
        y = super().mix(x, position, cache, last)
        return self.gate(x[:, -y.size(1):]).sigmoid() * y
