#!/usr/bin/env bash
# With guidance_scale, generate mixes the texts of the beams, and prompt lookup changes the answer
# Versions: transformers 5.24.0, torch 2.13.0 (random small Llama, 20 prompts).
# Guess: guidance_scale (classifier-free guidance) works with each way to decode: a beam's score is that of its own
#   text, and prompt lookup gives the tokens of greedy decoding, only faster, as it does without guidance.
# True: the text without the prompt is kept apart and gets the last token of each row at each step. It is not moved
#   when beams change places, so a beam is compared with the text of another one. And it keeps the tokens that
#   prompt lookup proposes, also those that are then rejected. No warning.
# Hurt: guided or contrastive decoding with beams, and speed-ups that are believed to be lossless.
# Output seen:
#   guidance 1.0: score of the best beam off by 0.00 nats a token; prompt lookup changes 0 of 20 greedy texts
#   guidance 1.5: score of the best beam off by 0.77 nats a token; prompt lookup changes 18 of 20 greedy texts
#   guidance 3.0: score of the best beam off by 4.17 nats a token; prompt lookup changes 19 of 20 greedy texts
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0

"$python" - <<'PY'
import torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(vocab_size=60, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
    num_attention_heads=4, initializer_range=0.3, eos_token_id=None, pad_token_id=0)).eval()
prompts = torch.randint(6, 60, (20, 1, 12))
def generate(prompt, guidance, **settings):
    return model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False,
                          guidance_scale=guidance, **settings)
def score(text, guidance):
    "Mean guided log-likelihood of the 12 new tokens; without guidance the text starts at the prompt's last token."
    with torch.no_grad():
        guided = model(text).logits.log_softmax(-1)[:, 11:-1]
        plain = model(text[:, 11:]).logits.log_softmax(-1)[:, :-1]
    return (plain + guidance * (guided - plain)).gather(-1, text[:, 12:, None]).mean().item()
errors, changed = {}, {}
for guidance in (1.0, 1.5, 3.0):
    outputs = [generate(prompt, guidance, num_beams=4, return_dict_in_generate=True, output_scores=True) for prompt in prompts]
    errors[guidance] = sum(abs(output.sequences_scores.item() - score(output.sequences, guidance)) for output in outputs) / 20
    changed[guidance] = sum(not torch.equal(generate(prompt, guidance), generate(prompt, guidance, prompt_lookup_num_tokens=3))
                            for prompt in prompts)
    print(f"guidance {guidance}: score of the best beam off by {errors[guidance]:.2f} nats a token; "
          f"prompt lookup changes {changed[guidance]} of 20 greedy texts")
assert errors[1.0] < 1e-4 and changed[1.0] == 0 and errors[1.5] > 0.1 and changed[1.5] > 5
PY
