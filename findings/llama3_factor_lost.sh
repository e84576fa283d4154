#!/usr/bin/env bash
# CTranslate2 runs Llama 3.1 without its RoPE scaling: the converter leaves the factor out
# Versions: ctranslate2 4.8.5, transformers 5.24.0, torch 2.13.0 (random small Llama, float32, 400 tokens).
# Guess: the converter knows the types linear and llama3 and refuses others, so that a converted model has the logits
#   of the model that it was made of.
# True: for llama3 low_freq_factor and high_freq_factor are written, and factor is not. The engine divides the slow
#   frequencies by 1: the logits are those of the same weights without any scaling. linear is right.
# Hurt: Llama 3.1, 3.2 and 3.3 and their fine-tunes: short answers look good, long texts are read with the wrong
#   frequencies.
# Output seen:
#   no scaling: logits off by 3.7e-05 (largest 9.7), the most likely token is the same at 100%; from the model without scaling off by 3.7e-05
#   linear, factor 8: logits off by 5.9e-05 (largest 10.3), the most likely token is the same at 100%; from the model without scaling off by 13
#   llama3, factor 8: logits off by 5.2 (largest 9.7), the most likely token is the same at 81%; from the model without scaling off by 3.7e-05
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0 ctranslate2==4.8.5

"$python" - "$work" <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
import sys
import ctranslate2, numpy, torch
from ctranslate2.converters import TransformersConverter
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
work = sys.argv[1]
words = [f"t{i}" for i in range(97)] + ["<s>", "</s>", "<unk>"]
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(
    {word: i for i, word in enumerate(words)}, unk_token="<unk>")), bos_token="<s>", eos_token="</s>", unk_token="<unk>")
ids = torch.randint(97, (1, 400), generator=torch.Generator().manual_seed(0))
def logits(rope):
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=100, hidden_size=128, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2, max_position_embeddings=131072,
        bos_token_id=97, eos_token_id=98, rope_parameters={"rope_theta": 500000.0, **rope})
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(f"{work}/hf")
    tokenizer.save_pretrained(f"{work}/hf")
    TransformersConverter(f"{work}/hf").convert(f"{work}/ct2", force=True)
    converted = ctranslate2.Generator(f"{work}/ct2").forward_batch([[words[i] for i in ids[0]]])
    with torch.no_grad():
        return model(ids).logits, torch.tensor(numpy.array(converted))
ropes = {"no scaling": {"rope_type": "default"}, "linear, factor 8": {"rope_type": "linear", "factor": 8.0},
    "llama3, factor 8": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 8192}}
for name, rope in ropes.items():
    right, converted = logits(rope)
    if name == "no scaling":
        unscaled = right
    off, from_unscaled = ((converted - x).abs().max().item() for x in (right, unscaled))
    same = (converted.argmax(-1) == right.argmax(-1)).float().mean().item()
    print(f"{name}: logits off by {off:.2g} (largest {right.abs().max():.1f}), the most likely token is the same at "
          f"{same:.0%}; from the model without scaling off by {from_unscaled:.2g}")
    assert (off < 1e-3) == ("llama3" not in name) and (from_unscaled < 1e-3) == ("linear" not in name)
PY
