#!/usr/bin/env bash
# litgpt: Gemma 2 reads its prompt with the future in sight, and a batch also reads the empty rest of the cache
# Versions: litgpt 0.5.13, lightning 2.6.6, torch 2.13.0 (CPU; Gemma-2-2b's settings, made small, random weights).
# Guess: a prompt read with the KV cache gives the logits of model(prompt): that is what a cache is for.
# True: the cache's mask is of True and False. Layers with attention_logit_softcapping, all of Gemma 2, add it to the
#   scores: a visible key gets 1 more, and a hidden one stays visible. Each token of the prompt sees those after it, so
#   that the last one reads wrong states from layer 2 on. batched_generate_fn passes no input_pos_maxp1: there the global
#   layers see the zeros in the unused part of the cache, too, and answers depend on the size of the cache. Without the
#   soft cap the logits are right.
# Hurt: Gemma 2 in litgpt's generate, chat and serve: it answers as another model than the one that was trained. Its
#   loss, which is computed without the cache, is right and shows nothing.
# Output seen:
#   soft cap 50: the last token is changed: logits before it change by 0.00 in model(x), by 14.88 with the cache
#   soft cap None: the last token is changed: logits before it change by 0.00 in model(x), by 0.00 with the cache
#   the same next token, of 100 prompts:
#   soft cap 50: generate and model(x) 21; generate and a batch 100; batches with caches of 32 and 512: 97
#   soft cap None: generate and model(x) 100; generate and a batch 100; batches with caches of 32 and 512: 100
. "$(dirname "$0")/common.sh"
venv litgpt==0.5.13 lightning==2.6.6 torch==2.13.0 numpy==2.4.6

"$python" - <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
import torch
from litgpt import GPT, Config
from litgpt.generate.base import batched_generate_fn, generate

def model_of(soft_cap):
    torch.manual_seed(0)
    model = GPT(Config.from_name("Gemma-2-2b", n_layer=4, n_embd=64, n_head=4, n_query_groups=2, head_size=16,
                                 vocab_size=64, padded_vocab_size=64, intermediate_size=128, block_size=512,
                                 attention_scores_scalar=16, attention_logit_softcapping=soft_cap)).eval()
    for weight in model.parameters():
        if weight.dim() == 2:
            torch.nn.init.normal_(weight, std=0.2)
    return model

prompts = torch.randint(64, (100, 24), generator=torch.Generator().manual_seed(1))
changed = prompts.clone()
changed[:, -1] = (changed[:, -1] + 1) % 64
seen = {}
with torch.no_grad():
    for cap in (50.0, None):
        model = model_of(cap)
        model.set_kv_cache(100)
        full = model(prompts)
        positions = torch.arange(24)
        cached = model(prompts, positions, input_pos_maxp1=24)
        leaks = [(logits - other)[:, :-1].abs().max().item() for logits, other in (
            (full, model(changed)), (cached, model(changed, positions, input_pos_maxp1=24)))]
        print("soft cap {}: the last token is changed: logits before it change by {:.2f} in model(x), by {:.2f} with "
              "the cache".format(cap and int(cap), *leaks))
        answers = [torch.cat([generate(model, row, 25, temperature=0.0, include_prompt=False) for row in prompts])]
        for size in (32, 512):
            model = model_of(cap)
            model.set_kv_cache(100, max_seq_length=size)
            tokens, = batched_generate_fn(model, prompts, 25, sample_args={"temperature": 0.0}, include_prompt=False,
                                          include_eos=False)
            answers.append(torch.cat(tokens))
        pairs = (answers[0], full[:, -1].argmax(-1)), (answers[0], answers[1]), (answers[1], answers[2])
        seen[cap] = leaks, [(a.flatten() == b.flatten()).sum().item() for a, b in pairs]
print("the same next token, of 100 prompts:")
for cap, (_, same) in seen.items():
    print("soft cap {}: generate and model(x) {}; generate and a batch {}; batches with caches of 32 and 512: {}".format(
        cap and int(cap), *same))
(capped, wrong), (plain, right) = seen[50.0], seen[None]
assert capped[0] < 1e-3 and capped[1] > 1 and max(plain) < 1e-3
assert wrong[0] < 50 and wrong[2] < 99 and right == [100] * 3
PY
