#!/usr/bin/env bash
# kvpress: in a batch with left padding the shorter text is hidden after the first new token, and padding is kept for it
# Versions: kvpress 0.5.5, transformers 5.2.0, torch 2.13.0 (CPU), numpy 2.4.6 (a Llama of random weights, 10 texts of
#   100 tokens, half of the cache kept, each text beside another one, with an attention mask, in generate()).
# Guess: the answer to a text is the one that it has alone, as it is without compression. Padding goes first.
# True: a press counts padding as text. It keeps padding by the same scores, and cuts the cache of all rows to one
#   length, but the mask keeps its old length: its first columns, the padding, then hide the first keys that were kept,
#   which are the text. The first new token is right, since the cache is cut after it. From the second on the answers
#   have nothing in common, with 25 tokens of padding as well. Beside a text of 200 tokens the model sees no token of
#   the prompt: after a given first token its logits are the same for all texts. There is no warning. Texts of one
#   length are right.
# Hurt: compression measured in batches with generate(), tables over texts of different lengths.
# Output seen:
#   beside a text of 100, 125, 200 tokens: first token as alone, tokens 2 to 8, spread of the logits over the texts
#   no press: 100%, 100%, 0.83; 100%, 100%, 0.83; 100%, 100%, 0.83
#   KnormPress: 100%, 100%, 0.93; 100%, 0%, 0.89; 100%, 0%, 0.00
#   StreamingLLMPress: 100%, 100%, 0.93; 100%, 1%, 0.89; 100%, 0%, 0.00
#   SnapKVPress: 100%, 100%, 0.93; 100%, 0%, 0.91; 100%, 1%, 0.00
#   ExpectedAttentionPress: 100%, 100%, 0.85; 100%, 0%, 0.92; 100%, 3%, 0.00
. "$(dirname "$0")/common.sh"
venv kvpress==0.5.5 transformers==5.2.0 torch==2.13.0 numpy==2.4.6

"$python" - <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
from contextlib import nullcontext
import kvpress
import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
torch.set_grad_enabled(False)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=300, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, initializer_range=0.2, bos_token_id=None, eos_token_id=None)).eval()
texts = torch.randint(3, 300, (10, 100))

def answer(text, total, press, first=None):
    """Eight new tokens after the text, and the logits of the second; `total` is the length of the text beside it."""
    rows = [text] if total is None else [text, torch.randint(3, 300, (total,))]
    length = max(map(len, rows))
    tokens = torch.stack([torch.cat([torch.full((length - len(row),), 2), row]) for row in rows])
    mask = torch.stack([(torch.arange(length) >= length - len(row)).long() for row in rows])

    def force(seen, scores):
        if first is not None and seen.shape[1] == length:
            scores = torch.full_like(scores, -1e9)
            scores[:, first] = 0
        return scores
    with press(compression_ratio=0.5)(model) if press else nullcontext():
        out = model.generate(tokens, attention_mask=mask, max_new_tokens=8, do_sample=False, pad_token_id=2,
                             logits_processor=[force], output_logits=True, return_dict_in_generate=True)
    return out.sequences[0, length:], out.logits[1][0]

print("beside a text of 100, 125, 200 tokens: first token as alone, tokens 2 to 8, spread of the logits over the texts")
seen = {}
for press in (None, kvpress.KnormPress, kvpress.StreamingLLMPress, kvpress.SnapKVPress, kvpress.ExpectedAttentionPress):
    name = press.__name__ if press else "no press"
    alone = [answer(text, None, press)[0] for text in texts]
    parts = []
    for total in (100, 125, 200):
        same = torch.stack([answer(text, total, press)[0] == one for text, one in zip(texts, alone)]).float().mean(0)
        logits = torch.stack([answer(text, total, press, first=7)[1] for text in texts])
        spread = (logits.std(0).mean() / logits.std(1).mean()).item()   # between texts, and within one
        seen[name, total] = same[0].item(), same[1:].mean().item(), spread
        parts.append(f"{same[0]:.0%}, {same[1:].mean():.0%}, {spread:.2f}")
    print(f"{name}:", "; ".join(parts))
for name in ("KnormPress", "StreamingLLMPress", "SnapKVPress", "ExpectedAttentionPress"):
    assert all(seen[name, total][0] == 1 for total in (100, 125, 200)) and seen[name, 100][1] == 1
    assert max(seen[name, 125][1], seen[name, 200][1]) < 0.15
    assert seen[name, 100][2] > 0.3 and seen[name, 200][2] < 0.001
assert all(seen["no press", total][:2] == (1, 1) for total in (100, 125, 200)) and seen["no press", 200][2] > 0.3
PY
