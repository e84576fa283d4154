#!/usr/bin/env bash
# With prompt tuning and P-tuning, generate does not give the tokens that the model finds most likely
# Versions: peft 0.21.2, transformers 5.24.0, torch 2.13.0 (random small Llama, 4 virtual tokens).
# Guess: greedy generate gives the argmax of the model's logits, token by token, as without the virtual tokens.
# True: the first token is right, those after it, which are computed with the cache, are not. use_cache=False is
#   right, and so is the cache without virtual tokens. The one warning is about position ids.
# Hurt: evaluation of prompt tuning by its generated answers: the loss is right, the answers are not the model's.
# Output seen:
#   no virtual tokens: argmax [90, 59, 96, 67, 86, 57, 90, 36, 73, 80], generate [90, 59, 96, 67, 86, 57, 90, 36, 73, 80], without cache [90, 59, 96, 67, 86, 57, 90, 36, 73, 80]
#   prompt tuning: argmax [90, 48, 39, 90, 81, 86, 86, 68, 39, 90], generate [90, 81, 98, 44, 44, 90, 81, 20, 19, 81], without cache [90, 48, 39, 90, 81, 86, 86, 68, 39, 90]
#   P-tuning: argmax [90, 91, 91, 91, 91, 11, 13, 19, 62, 57], generate [90, 19, 8, 19, 19, 19, 7, 8, 81, 19], without cache [90, 91, 91, 91, 91, 11, 13, 19, 62, 57]
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0 peft==0.21.2 accelerate==1.15.0

"$python" - <<'PY'
import torch
from peft import PromptEncoderConfig, PromptTuningConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM
def greedy_and_generated(method):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=100, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, initializer_range=0.2, eos_token_id=None))
    ids = torch.randint(3, 100, (1, 20))
    if method:
        model = get_peft_model(model, method(task_type="CAUSAL_LM", num_virtual_tokens=4))
        torch.nn.init.normal_(model.prompt_encoder["default"].embedding.weight, std=0.5)
    model.eval()
    text = ids
    with torch.no_grad():
        for _ in range(10):
            logits = model(input_ids=text, attention_mask=torch.ones_like(text)).logits
            text = torch.cat([text, logits[:, -1:].argmax(-1)], 1)
    settings = dict(attention_mask=torch.ones_like(ids), max_new_tokens=10, do_sample=False)
    generated = [model.generate(input_ids=ids, use_cache=cache, **settings) for cache in (True, False)]
    return [tokens[0, 20:].tolist() for tokens in (text, *generated)]
for name, method in (("no virtual tokens", None), ("prompt tuning", PromptTuningConfig), ("P-tuning", PromptEncoderConfig)):
    greedy, cached, uncached = greedy_and_generated(method)
    print(f"{name}: argmax {greedy}, generate {cached}, without cache {uncached}")
    assert greedy == uncached and (greedy == cached) == (method is None)
PY
