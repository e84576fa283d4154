#!/usr/bin/env bash
# optax's Adafactor decays weights without the learning rate: 0.1 leaves 12 % of them after 20 updates
# Versions: optax 0.2.8, jax 0.10.2 (CPU).
# Guess: a weight decay of 0.1 shrinks a weight by 0.1 times the learning rate in each update, as in adamw and in nine
#   other optimizers of optax that we tried. Warmup and schedule hold for the decay too, and a rate of 0 changes nothing.
# True: adafactor adds the decay after the learning rate: each update takes 10 % of each weight, whatever the rate is.
#   A decay of 0.01 is what a decay of 10 is in adamw at a rate of .001. The documentation says "Optional rate at which to
#   decay weights".
# Hurt: trainings that change from adamw to adafactor to save memory and keep their weight decay: a decay of 0.01 undoes
#   what the gradients learn. At the start of a warmup and at the end of a schedule the decay is alone.
# Output seen:
#   adamw, decay .1: left after 20 updates at a learning rate of .001 0.9980, of 0 1.0000
#   adafactor, decay .1: left after 20 updates at a learning rate of .001 0.1216, of 0 0.1216
#   at a learning rate of 0 unchanged: adamw nadamw adamaxw adan lion lamb lars novograd muon ademamix
#   a regression, 1,000 updates of adamw with decay 0, .01, .1: loss 0.0000 0.0000 0.0000
#   a regression, 1,000 updates of adafactor with decay 0, .01, .1: loss 0.0000 1.0461 1.0507
#     of weights of 0: loss 1.0507
. "$(dirname "$0")/common.sh"
venv optax==0.2.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6

"$python" - <<'PY'
import jax
import jax.numpy as jnp
import optax
makers = {name: lambda rate, decay, make=getattr(optax, name): make(rate, weight_decay=decay)
          for name in ("adamw", "nadamw", "adamaxw", "adan", "lion", "lamb", "lars", "novograd")}
makers["muon"] = lambda rate, decay: optax.contrib.muon(rate, weight_decay=decay)
makers["ademamix"] = lambda rate, decay: optax.contrib.ademamix(rate, weight_decay=decay)
makers["adafactor"] = lambda rate, decay: optax.adafactor(rate, weight_decay_rate=decay)
def left(make, rate):  # what is left of weights of 1 after 20 updates with gradients of 0
    weights = jnp.ones((128, 128))
    optimizer = make(rate, 0.1)
    state = optimizer.init(weights)
    for _ in range(20):
        updates, state = optimizer.update(jnp.zeros_like(weights), state, weights)
        weights = optax.apply_updates(weights, updates)
    return float(weights.mean())
rates = {name: [left(make, rate) for rate in (0.001, 0.0)] for name, make in makers.items()}
for name in ("adamw", "adafactor"):
    print(f"{name}, decay .1: left after 20 updates at a learning rate of .001 {rates[name][0]:.4f}, of 0 {rates[name][1]:.4f}")
print("at a learning rate of 0 unchanged:", *(name for name in rates if rates[name][1] == 1))
assert max(rates["adafactor"]) < 0.13 and all(rates[name] > [0.97, 0.999] for name in rates if name != "adafactor")
inputs, target = jax.random.normal(jax.random.key(0), (512, 128)), jax.random.normal(jax.random.key(1), (128, 128)) / 11
def loss(weights):
    return ((inputs @ (weights - target)) ** 2).mean()
def trained(make, decay):
    optimizer = make(optax.warmup_cosine_decay_schedule(0.0, 0.01, 50, 1000), decay)
    weights = jax.random.normal(jax.random.key(2), target.shape) / 11
    state = optimizer.init(weights)
    @jax.jit
    def step(weights, state):
        updates, state = optimizer.update(jax.grad(loss)(weights), state, weights)
        return optax.apply_updates(weights, updates), state
    for _ in range(1000):
        weights, state = step(weights, state)
    return float(loss(weights))
losses = {name: [trained(makers[name], decay) for decay in (0.0, 0.01, 0.1)] for name in ("adamw", "adafactor")}
for name, values in losses.items():
    print(f"a regression, 1,000 updates of {name} with decay 0, .01, .1: loss", *(f"{value:.4f}" for value in values))
print(f"  of weights of 0: loss {float(loss(0 * target)):.4f}")
assert max(losses["adamw"]) < 0.001 > losses["adafactor"][0] and min(losses["adafactor"][1:]) > 0.9 * loss(0 * target)
PY
