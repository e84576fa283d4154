#!/usr/bin/env bash
# CTranslate2 converts Gemma 2 without its sliding window and its soft caps, and Qwen2 without its window
# Versions: ctranslate2 4.8.5, transformers 5.24.0, torch 2.13.0 (random small models, float32, 120 tokens).
# Guess: a model that the converter takes has the logits that it had. The window of Gemma 2 and of Qwen2, and Gemma
#   2's caps on scores and logits, are in the config, and the converter writes the window of Gemma 3.
# True: the converter does not look at them. Every layer attends to the whole text, and nothing is capped; past the
#   window the logits are of another model.
# Hurt: texts longer than the window (4,096 in Gemma 2), and probabilities of Gemma 2 at any length.
# Output seen:
#   Gemma 2, no window, no caps: logits off by 3.6e-06 in the first 30 tokens, by 3.8e-06 after them (largest 10.6)
#   Gemma 2, no window, caps of 50 and 30: logits off by 0.38 in the first 30 tokens, by 0.43 after them (largest 10.2)
#   Gemma 2, window of 32: logits off by 3.6e-06 in the first 30 tokens, by 5.3 after them (largest 10.5)
#   Qwen2, no window: logits off by 8.8e-06 in the first 30 tokens, by 1.1e-05 after them (largest 6.7)
#   Qwen2, window of 32: logits off by 8.8e-06 in the first 30 tokens, by 8.3 after them (largest 7.2)
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0 ctranslate2==4.8.5

"$python" - "$work" <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
import sys
import ctranslate2, numpy, torch
from ctranslate2.converters import TransformersConverter
from tokenizers import Tokenizer, models
from transformers import Gemma2Config, Gemma2ForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
work = sys.argv[1]
words = [f"t{i}" for i in range(97)] + ["<s>", "</s>", "<unk>"]
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(
    {word: i for i, word in enumerate(words)}, unk_token="<unk>")), bos_token="<s>", eos_token="</s>",
    unk_token="<unk>", pad_token="</s>")
ids = torch.randint(97, (1, 120), generator=torch.Generator().manual_seed(0))
def compare(name, kind, config, **options):
    torch.manual_seed(0)
    model = kind(config(vocab_size=100, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2, max_position_embeddings=512,
        bos_token_id=97, eos_token_id=98, **options)).eval()
    model.save_pretrained(f"{work}/hf")
    tokenizer.save_pretrained(f"{work}/hf")
    TransformersConverter(f"{work}/hf").convert(f"{work}/ct2", force=True)
    converted = ctranslate2.Generator(f"{work}/ct2").forward_batch([[words[i] for i in ids[0]]])
    with torch.no_grad():
        right = model(ids).logits
    off = (torch.tensor(numpy.array(converted)) - right).abs()
    early, late = off[:, :30].max().item(), off[:, 30:].max().item()
    print(f"{name}: logits off by {early:.2g} in the first 30 tokens, by {late:.2g} after them "
          f"(largest {right.abs().max():.1f})")
    assert (early > 0.1) == ("caps of" in name) and (late > 0.1) == (" of " in name)
gemma = dict(kind=Gemma2ForCausalLM, config=Gemma2Config, head_dim=16, query_pre_attn_scalar=16)
no_caps = dict(attn_logit_softcapping=None, final_logit_softcapping=None)
qwen = dict(kind=Qwen2ForCausalLM, config=Qwen2Config, max_window_layers=0)
compare("Gemma 2, no window, no caps", sliding_window=512, **no_caps, **gemma)
compare("Gemma 2, no window, caps of 50 and 30", sliding_window=512, **gemma)
compare("Gemma 2, window of 32", sliding_window=32, **no_caps, **gemma)
compare("Qwen2, no window", **qwen)
compare("Qwen2, window of 32", use_sliding_window=True, sliding_window=32, **qwen)
PY
