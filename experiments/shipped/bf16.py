"""
Run a program with the factor on the query computed in bf16, as Mistral Large 4 does: f(n), s and b
are rounded before the product, and the product is rounded, too. (model.py computes it in fp32.)

    python -m experiments.shipped.bf16 eval_niah.py out/run --tag=bf16 ...
"""
import runpy
import sys

import torch

from model import Attention


def factor_in_bf16(self, f):
    """Attention.factor, (H, T) in bf16, from f(n), (T,) in fp32."""
    f, s, b = (z.to(torch.bfloat16) for z in (f, self.s, self.b))
    return s[:, None] * f + b[:, None]


def main():
    del sys.argv[0]  # the program finds its own arguments
    Attention.factor = factor_in_bf16
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
