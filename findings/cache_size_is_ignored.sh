#!/usr/bin/env bash
# mlx-lm: max_kv_size does nothing in Llama and Mistral; in Qwen it hides the kept first tokens from the prompt
# Versions: mlx-lm 0.32.2, mlx 0.32.4 (CPU), numpy 2.4.6 (random models, a prompt of 60 tokens, max_kv_size 16).
# Guess: 16 keys are kept, the first four of the text among them as attention sinks, as generate_step's docstring says.
#   The tokens of the prompt see the same as those that are generated.
# True: a model with a make_cache method never gets the number, as the docstring of make_prompt_cache says and the help
#   of the option does not. Llama has one, which Mistral uses, and so have the newer models with windows or recurrent
#   layers: the cache grows, the text is that of the full cache, no message. Where the number counts, as in Qwen 2.5
#   and 3, the mask of the prompt (RotatingKVCache.make_mask) is a plain window without the first four tokens. They are
#   seen by the first tokens of each piece of prefill_step_size alone, and again by each generated token. So the logits
#   depend on the step, and most of a long prompt is read without sinks.
# Hurt: measurements of quality by cache size: no loss at all for Llama; for Qwen, that of a window without sinks,
#   which is known to break models. Memory plans for long prompts.
# Output seen:
#   llama, prompt in pieces of 60: 60 of 60 tokens in the cache, the first four are seen by 56 of the 56 others
#   llama, prompt in pieces of 20: 60 of 60 tokens in the cache, the first four are seen by 56 of the 56 others
#   llama, prompt in pieces of 1: 60 of 60 tokens in the cache, the first four are seen by 56 of the 56 others
#   qwen2, prompt in pieces of 60: 16 of 60 tokens in the cache, the first four are seen by 15 of the 56 others
#   qwen2, prompt in pieces of 20: 16 of 60 tokens in the cache, the first four are seen by 23 of the 56 others
#   qwen2, prompt in pieces of 1: 16 of 60 tokens in the cache, the first four are seen by 56 of the 56 others
#   generate_step, 2 layers, max_kv_size 16 against none, steps of 64: llama 0.0000, qwen2 0.0869 off in probability
#   generate_step, 2 layers, max_kv_size 16, steps of 64 against 1: llama 0.0000, qwen2 0.0365 off in probability
. "$(dirname "$0")/common.sh"
venv mlx-lm==0.32.2 mlx==0.32.4 mlx-cpu==0.32.4 transformers==5.24.0 numpy==2.4.6

"$python" - <<'PY'
import mlx.core as mx
import numpy as np
from mlx_lm.generate import generate_step
from mlx_lm.models import llama, qwen2
from mlx_lm.models.cache import make_prompt_cache
mx.set_default_device(mx.cpu)
tokens = np.random.default_rng(0).integers(32, size=60)
changed = tokens.copy()
changed[:4] = (tokens[:4] + 1) % 32
modules = {"llama": llama, "qwen2": qwen2}

def make(name, layers):
    mx.random.seed(0)
    args = modules[name].ModelArgs(name, 32, layers, 64, 4, 1e-5, 32, num_key_value_heads=4)
    return modules[name].Model(args)

def read(model, tokens, step):                                 # as generate_step reads a prompt
    cache = make_prompt_cache(model, max_kv_size=16)
    pieces = [model(mx.array(tokens[None, i:i + step]), cache=cache) for i in range(0, 60, step)]
    return np.array(mx.concatenate(pieces, 1))[0], cache[0].size()

seen = {}
for name in modules:
    model = make(name, layers=1)
    for step in (60, 20, 1):
        logits, size = read(model, tokens, step)
        difference = np.abs(logits - read(model, changed, step)[0]).max(-1)[4:]
        seen[name, step] = int((difference > 1e-5).sum())
        print(f"{name}, prompt in pieces of {step}: {size} of 60 tokens in the cache, the first four are seen by "
              f"{seen[name, step]} of the 56 others")

def next_token(name, max_kv_size, step):
    steps = generate_step(mx.array(tokens), make(name, layers=2), max_tokens=1, max_kv_size=max_kv_size,
                          prefill_step_size=step)
    return np.exp(np.array(next(steps)[1]))

def off(name, one, other):
    return np.abs(next_token(name, *one) - next_token(name, *other)).sum() / 2

size = {name: off(name, (16, 64), (None, 64)) for name in modules}
step = {name: off(name, (16, 64), (16, 1)) for name in modules}
print("generate_step, 2 layers, max_kv_size 16 against none, steps of 64: llama {llama:.4f}, qwen2 {qwen2:.4f} off in "
      "probability".format(**size))
print("generate_step, 2 layers, max_kv_size 16, steps of 64 against 1: llama {llama:.4f}, qwen2 {qwen2:.4f} off in "
      "probability".format(**step))
assert [seen["llama", n] for n in (60, 20, 1)] == [56] * 3 and [seen["qwen2", n] for n in (60, 20, 1)] == [15, 23, 56]
assert size["llama"] < 1e-5 < 0.01 < size["qwen2"] and step["llama"] < 1e-5 < 0.01 < step["qwen2"]
PY
