#!/usr/bin/env bash
# kvpress: if a tenth of the cache is cut, an own loop takes its length for the position and writes another answer
# Versions: kvpress 0.5.5, transformers 5.2.0, torch 2.13.0 (CPU), numpy 2.4.6 (a Llama of random weights, 10 texts of
#   100 tokens, eight new tokens by argmax).
# Guess: model(text, past_key_values=cache) under a press, and then one token after the other with this cache, gives
#   what generate() gives under the same press. A second turn with the cache costs its new tokens.
# True: the kept keys have their places among 0 to 99, and the model takes the length of the cache as the next position,
#   90 or 50. The new tokens then stand among the old ones, and all but the first are others, even if a tenth is cut.
#   With position_ids from 100 on they are right. generate() counts well within one call. The next call takes the tokens
#   beyond the length of the cache as new: it feeds the last 10 or 50 tokens before the turn again, which are then twice
#   in the cache. There is no warning.
# Hurt: own decoding loops, perplexities of answers after compression, chats with a compressed cache.
# Output seen:
#   tokens as in generate()
#   KnormPress, 0% cut: tokens 2 to 8 in a loop 100%, with position_ids 100%; a turn of 11 tokens feeds 11
#   KnormPress, 10% cut: tokens 2 to 8 in a loop 0%, with position_ids 100%; a turn of 11 tokens feeds 21
#   KnormPress, 50% cut: tokens 2 to 8 in a loop 0%, with position_ids 100%; a turn of 11 tokens feeds 61
#   StreamingLLMPress, 0% cut: tokens 2 to 8 in a loop 100%, with position_ids 100%; a turn of 11 tokens feeds 11
#   StreamingLLMPress, 10% cut: tokens 2 to 8 in a loop 0%, with position_ids 100%; a turn of 11 tokens feeds 21
#   StreamingLLMPress, 50% cut: tokens 2 to 8 in a loop 1%, with position_ids 100%; a turn of 11 tokens feeds 61
#   SnapKVPress, 0% cut: tokens 2 to 8 in a loop 100%, with position_ids 100%; a turn of 11 tokens feeds 11
#   SnapKVPress, 10% cut: tokens 2 to 8 in a loop 0%, with position_ids 100%; a turn of 11 tokens feeds 21
#   SnapKVPress, 50% cut: tokens 2 to 8 in a loop 1%, with position_ids 100%; a turn of 11 tokens feeds 61
#   ExpectedAttentionPress, 0% cut: tokens 2 to 8 in a loop 100%, with position_ids 100%; a turn of 11 tokens feeds 11
#   ExpectedAttentionPress, 10% cut: tokens 2 to 8 in a loop 0%, with position_ids 100%; a turn of 11 tokens feeds 21
#   ExpectedAttentionPress, 50% cut: tokens 2 to 8 in a loop 3%, with position_ids 100%; a turn of 11 tokens feeds 61
. "$(dirname "$0")/common.sh"
venv kvpress==0.5.5 transformers==5.2.0 torch==2.13.0 numpy==2.4.6

"$python" - <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
import kvpress
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
torch.set_grad_enabled(False)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=300, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, initializer_range=0.2, bos_token_id=None, eos_token_id=None)).eval()
fed = []
model.model.embed_tokens.register_forward_hook(lambda module, inputs, output: fed.append(inputs[0].shape[1]))
texts = torch.randint(3, 300, (10, 1, 100))
options = {"do_sample": False, "pad_token_id": 2}

def loop(text, press, positions):
    """Eight new tokens, one after the other, with the cache."""
    cache, tokens = DynamicCache(), []
    with press(model):
        logits = model(text, past_key_values=cache).logits
    for step in range(8):
        tokens.append(logits[:, -1:].argmax(-1))
        more = {"position_ids": torch.tensor([[100 + step]])} if positions else {}
        logits = model(tokens[-1], past_key_values=cache, **more).logits
    return torch.cat(tokens, 1)[0]

print("tokens as in generate()")
for kind in (kvpress.KnormPress, kvpress.StreamingLLMPress, kvpress.SnapKVPress, kvpress.ExpectedAttentionPress):
    for ratio in (0, 0.1, 0.5):
        press, same = kind(compression_ratio=ratio), {False: [], True: []}
        for text in texts:
            cache = DynamicCache()
            with press(model):
                answer = model.generate(text, past_key_values=cache, max_new_tokens=8, **options)
            for positions in same:
                same[positions].append(loop(text, press, positions) == answer[0, 100:])
        agree = {positions: torch.stack(rows).float()[:, 1:].mean().item() for positions, rows in same.items()}
        fed.clear()
        turn = torch.cat([answer, torch.randint(3, 300, (1, 10))], 1)       # the last new token and a turn of ten
        model.generate(turn, past_key_values=cache, max_new_tokens=1, **options)
        print(f"{kind.__name__}, {ratio:.0%} cut: tokens 2 to 8 in a loop {agree[False]:.0%}, with position_ids",
              f"{agree[True]:.0%}; a turn of 11 tokens feeds {fed[0]}")
        assert agree[True] == 1 and (agree[False] == 1 if ratio == 0 else agree[False] < 0.2)
        assert fed == [11 + round(100 * ratio)]
PY
