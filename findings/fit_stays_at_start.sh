#!/usr/bin/env bash
# scipy's minimize of a loss in float32 returns the start as the optimum: success, 0 iterations
# Versions: scipy 1.17.1, torch 2.13.0 (a scaling law with five parameters, twelve runs).
# Guess: scipy works in float64; a loss that torch or jax computes in float32 is known to 7 digits, and the fit is good
#   to three or four of them.
# True: without `jac` the gradient is a difference over a step of 1.5e-8, less than half a unit in the last place of a
#   float32 parameter of 0.25 or more: the two losses are equal, the gradient is exactly 0, and that passes for an
#   optimum. BFGS, L-BFGS-B and SLSQP do so, without a warning. Nelder-Mead has no gradient, `jac` from autograd or
#   a float64 loss is right.
# Hurt: fits of scaling laws with a loss in torch: the start from a grid that has the best loss is published as the fit.
# Output seen:
#   BFGS: in float32 success, 0 iterations, loss 0.4, exponents 0.500 0.500; in float64 73 iterations, loss 1.2e-10, exponents 0.340 0.280
#   L-BFGS-B: in float32 success, 0 iterations, loss 0.4, exponents 0.500 0.500; in float64 26 iterations, loss 3.3e-05, exponents 0.275 0.227
#   SLSQP: in float32 success, 1 iterations, loss 0.4, exponents 0.500 0.500; in float64 27 iterations, loss 2.3e-05, exponents 0.285 0.229
#   Nelder-Mead: in float32 success, 434 iterations, loss 1.7e-05, exponents 0.364 0.223; in float64 632 iterations, loss 1e-06, exponents 0.337 0.266
#   L-BFGS-B with autograd's gradient: in float32 28 iterations, loss 3.4e-05
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 scipy==1.17.1

"$python" - <<'PY'
import numpy, torch
from scipy.optimize import minimize
random = numpy.random.default_rng(0)
size, data = 10 ** random.uniform(7, 10, 12), 10 ** random.uniform(9, 11, 12)
loss = 1.7 + 400 * size ** -0.34 + 410 * data ** -0.28
def fit(dtype, method, with_gradient=False):
    log_n, log_d, log_l = (torch.tensor(numpy.log(x)).to(dtype) for x in (size, data, loss))
    def objective(parameters):
        p = torch.tensor(parameters).to(dtype).requires_grad_()
        a, b, e, alpha, beta = p
        terms = torch.stack([a - alpha * log_n, b - beta * log_d, e.expand(12)])
        error = ((torch.logsumexp(terms, 0) - log_l) ** 2).mean()
        error.backward()
        return (error.item(), p.grad.double().numpy()) if with_gradient else error.item()
    return minimize(objective, [5, 5, 0.5, 0.5, 0.5], method=method, jac=with_gradient or None)
for method in ("BFGS", "L-BFGS-B", "SLSQP", "Nelder-Mead"):
    half, full = fit(torch.float32, method), fit(torch.float64, method)
    print(f"{method}: in float32 {'success' if half.success else 'failure'}, {half.nit} iterations, loss {half.fun:.2g}, "
          f"exponents {half.x[3]:.3f} {half.x[4]:.3f}; in float64 {full.nit} iterations, loss {full.fun:.2g}, "
          f"exponents {full.x[3]:.3f} {full.x[4]:.3f}")
    assert half.success and (list(half.x) == [5, 5, 0.5, 0.5, 0.5]) == (method != "Nelder-Mead")
    assert full.fun < 1e-3
given = fit(torch.float32, "L-BFGS-B", with_gradient=True)
print(f"L-BFGS-B with autograd's gradient: in float32 {given.nit} iterations, loss {given.fun:.2g}")
assert given.nit > 5 and given.fun < 1e-3
PY
