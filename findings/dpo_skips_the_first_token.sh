#!/usr/bin/env bash
# x-transformers: DPO leaves out the first token of each answer and trains the padding: yes and no teach nothing
# Versions: x-transformers 2.31.10, torch 2.13.0 (CPU; a small decoder, eight prompts of six tokens, 200 updates).
# Guess: the loss compares the log-probabilities of all answer tokens, those outside prompt_mask and the padding. After
#   training on the answers 3 (preferred) and 4 the model writes 3.
# True: the log-probability at place i is that of token i + 1, and it is masked by the mask of token i. So the first
#   answer token counts as prompt, and the first padding after the answer as a part of it. Answers of one token have a
#   loss of log 2 and no gradient. With padding the loss falls, as the padding is made sure after 3 and impossible
#   after 4. Of the answers 3 1 and 4 1 only the 1 is trained, likely after 3, unlikely after 4.
# Hurt: preferences between choices, labels or short answers; answers that differ in their first tokens; comparisons
#   with DPO elsewhere.
# Output seen:
#   [3] against [4], padding 0: loss 0.693, largest gradient 0; log-odds of the first token -0.61, then -0.61
#   [3] against [4], padding 1: loss 0.122, largest gradient 0.02; log-odds of the first token -0.61, then 0.78
#     log-probability of the padding after the good and the bad answer: -3.0 -4.1, then -0.0 -21.6
#   [3, 1] against [4, 1], padding 0: loss 0.111, largest gradient 0.02; log-odds of the first token -0.61, then -0.29
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 x-transformers==2.31.10

"$python" - <<'PY'
import math
import torch
from torch.nn.functional import pad
from x_transformers import Decoder, TransformerWrapper
from x_transformers.dpo import DPO

torch.set_num_threads(1)
prompts = torch.randint(5, 32, (8, 6), generator=torch.Generator().manual_seed(0))

def text(answer, padding):                                     # token 0 is the padding
    return pad(torch.cat([prompts, torch.tensor(answer).expand(8, -1)], 1), (0, padding))

def train(good, bad, padding):
    torch.manual_seed(0)
    model = TransformerWrapper(num_tokens=32, max_seq_len=16, attn_layers=Decoder(
        dim=32, depth=1, heads=2, rotary_pos_emb=True))
    good_text, bad_text = text(good, padding), text(bad, padding)
    prompt_mask = (torch.arange(good_text.shape[1]) < 6).expand(8, -1)
    dpo = DPO(model, pad_id=0)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def measure():
        with torch.no_grad():
            first = model(prompts)[:, -1].log_softmax(-1)
            after = [model(t)[:, 5 + len(good)].log_softmax(-1)[:, 0].mean().item() for t in (good_text, bad_text)]
        return (first[:, good[0]] - first[:, bad[0]]).mean().item(), *after
    seen = [measure()]
    for _ in range(200):
        loss = dpo(good_text, bad_text, prompt_mask=prompt_mask)
        loss.backward()
        gradient = max(p.grad.abs().max().item() for p in model.parameters() if p.grad is not None)
        optimizer.step()
        optimizer.zero_grad()
    return loss.item(), gradient, *seen, measure()

results = {}
for good, bad, padding in (([3], [4], 0), ([3], [4], 1), ([3, 1], [4, 1], 0)):
    loss, gradient, before, after = results[len(good), padding] = train(good, bad, padding)
    print(f"{good} against {bad}, padding {padding}: loss {loss:.3f}, largest gradient {gradient:.1g}; log-odds of the",
          f"first token {before[0]:.2f}, then {after[0]:.2f}")
    if padding:
        print(f"  log-probability of the padding after the good and the bad answer: {before[1]:.1f} {before[2]:.1f},",
              f"then {after[1]:.1f} {after[2]:.1f}")
loss, gradient, before, after = results[1, 0]
assert abs(loss - math.log(2)) < 1e-6 and gradient == 0 and before == after
loss, gradient, before, after = results[1, 1]
assert loss < 0.3 and after[1] > -0.1 and after[2] < before[2] - 10
PY
