"""
A factor on the queries with two numbers that are learned for each head:

    a_i = 1 + beta (log(n + 1))^gamma,    beta from 0.55, gamma from 0

This is the option "learn" of the authors of ASEntmax, with softmax here. What they call ASEntmax
makes beta and gamma of each token: asentmax.py. Vasylenko et al., "Long-Context Generalization with
Sparse Attention" (arXiv 2506.16640).
"""
from model import Attention, Learned


class LogPower(Attention):
    has_own_factor = True

    def setup(self):
        super().setup()
        self.set_scale("beta", Learned(0.55))
        self.set_scale("gamma", Learned(0.0))

    def factor(self, x, context):
        # n + 1, as in the authors' code: the first query would have log 1 = 0, and 0^gamma has no
        # derivative at gamma = 0.
        return 1 + self.beta[:, None] * (context.n + 1).float().log() ** self.gamma[:, None]
