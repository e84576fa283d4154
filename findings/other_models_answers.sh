#!/usr/bin/env bash
# lm-eval's cache gives a model the results of the model before it
# Versions: lm-eval 0.4.13, transformers 5.24.0, torch 2.13.0 (two random small Llamas).
# Guess: the file of --use_cache holds results by model and request, or belongs to one model and refuses another.
# True: a result's key is made from the type and the text of the request. The model, its dtype, its maximal length
#   and its adapter are not in it, and the file does not name them. A second model gets the first one's numbers.
# Hurt: loops over checkpoints or variants with one --use_cache: all lines of the table are the first model's.
# Output seen:
#   log-likelihood by models 0 and 1: without a cache [-4.9977, -4.4367], with one cache file [-4.9977, -4.9977]
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0 lm-eval==0.4.13

"$python" - "$work" <<'PY'
import sys
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from lm_eval.api.instance import Instance
from lm_eval.api.model import CachingLM
from lm_eval.models.huggingface import HFLM
words = Tokenizer(models.WordLevel({"<eos>": 0, **{f"w{i}": i for i in range(1, 100)}}, unk_token="<eos>"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", pad_token="<eos>", unk_token="<eos>")
def model(seed):
    torch.manual_seed(seed)
    llama = LlamaForCausalLM(LlamaConfig(vocab_size=100, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=4, max_position_embeddings=64, initializer_range=0.3, eos_token_id=0, bos_token_id=0))
    return HFLM(pretrained=llama.eval(), tokenizer=tokenizer, device="cpu", batch_size=1)
request = [Instance("loglikelihood", {}, ("w3 w1 w4 w1", " w5"), 0)]
cached, fresh = [], []
for seed in (0, 1):
    caching = CachingLM(model(seed), sys.argv[1] + "/cache.db")  # as simple_evaluate(use_cache=...) makes it
    cached.append(round(caching.loglikelihood(request)[0][0], 4))
    caching.dbdict.close()
    fresh.append(round(model(seed).loglikelihood(request)[0][0], 4))
print(f"log-likelihood by models 0 and 1: without a cache {fresh}, with one cache file {cached}")
assert cached[0] == cached[1] == fresh[0] != fresh[1]
PY
