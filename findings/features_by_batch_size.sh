#!/usr/bin/env bash
# The feature-extraction pipeline returns the padding too, so features depend on the batch size
# Versions: transformers 5.24.0, tokenizers 0.23.3, torch 2.13.0 (random small BERT, texts of 2 and 11 tokens).
# Guess: pipeline("feature-extraction") gives for each text one vector for each of its tokens, and batch_size changes
#   the speed alone.
# True: the vectors of the padding are returned as if they were tokens: the text of 2 tokens has 11 vectors if it
#   shares a batch with the one of 11. The mask is not returned.
# Hurt: texts embedded by the mean or the last of the returned vectors: similarities depend on the neighbours.
# Output seen:
#   batch_size 1: vectors [2, 11], cosine of the texts' mean vectors 0.75
#   batch_size 2: vectors [11, 11], cosine of the texts' mean vectors 0.98
#   the shorter text: its 2 vectors differ by 2e-07, cosine of its mean vector with itself 0.75
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0 tokenizers==0.23.3

"$python" - <<'PY'
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, pipeline
texts = ["the cat", "the cat sat on a mat and slept all day long"]
words = {"[PAD]": 0, "[UNK]": 1, **{word: i + 2 for i, word in enumerate(texts[1].split())}}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
torch.manual_seed(0)
model = BertModel(BertConfig(vocab_size=20, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=32)).eval()
extract = pipeline("feature-extraction", model=model, tokenizer=tokenizer)
vectors = {size: [torch.tensor(rows[0]) for rows in extract(texts, batch_size=size)] for size in (1, 2)}
for size, features in vectors.items():
    similarity = torch.cosine_similarity(features[0].mean(0), features[1].mean(0), dim=0)
    print(f"batch_size {size}: vectors {[len(rows) for rows in features]},",
          f"cosine of the texts' mean vectors {similarity:.2f}")
alone, together = vectors[1][0], vectors[2][0]
same = (alone - together[:2]).abs().max().item()
cosine = torch.cosine_similarity(alone.mean(0), together.mean(0), dim=0).item()
print(f"the shorter text: its 2 vectors differ by {same:.0e}, cosine of its mean vector with itself {cosine:.2f}")
assert len(alone) == 2 and len(together) == 11 and same < 1e-5 and cosine < 0.95
PY
