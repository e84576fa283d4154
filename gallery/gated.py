"""
Gated attention: the output of the heads times a gate that depends on the layer's input x:

    o_i = W_o (sigmoid(W_g x_i) * y_i),    y_i: the outputs of all heads side by side

It changes no attention weight, so it combines with any other attention (docs/examples.md). Qiu et
al., "Gated Attention for Large Language Models" (arXiv 2505.06708); Qwen3-Next.
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

    def mix(self, x, context):
        y = super().mix(x, context)
        return self.gate(x[:, -y.size(1):]).sigmoid() * y
