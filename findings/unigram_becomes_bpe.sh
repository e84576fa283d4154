#!/usr/bin/env bash
# transformers loads a unigram model of sentencepiece as BPE: a text has twice as many tokens, and no warning comes
# Versions: transformers 5.24.0, sentencepiece 0.2.3, tokenizers 0.23.3, protobuf 7.36.2.
# Guess: a folder with a tokenizer.model of sentencepiece, whose file says that it is unigram (sentencepiece's default),
#   gives sentencepiece's ids under LlamaTokenizer, as it did when LlamaTokenizer ran sentencepiece itself.
# True: the class alone decides: LlamaTokenizer makes merges out of the pieces and splits as BPE. A unigram model has few
#   pieces that are two others together, so here most words fall into letters. Decoding gives the text back, so it looks right.
# Hurt: models of Llama's architecture whose makers trained sentencepiece with its defaults: pretraining goes on in other
#   tokens than before, and an evaluation of a trained model sees text that it has never seen.
# Output seen:
#   bpe, LlamaTokenizer: loaded as BPE, texts with sentencepiece's ids 50 of 50, tokens 1,715 and 1,715
#   bpe, AutoTokenizer: loaded as BPE, texts with sentencepiece's ids 50 of 50, tokens 1,715 and 1,715
#   unigram, LlamaTokenizer: loaded as BPE, texts with sentencepiece's ids 0 of 50, tokens 1,470 and 3,512
#   unigram, AutoTokenizer: loaded as BPE, texts with sentencepiece's ids 0 of 50, tokens 1,470 and 3,512
#     sentencepiece's: ▁so ▁mi s o g a ▁bonodigi ▁laki ▁sona
#     transformers': ▁ s o ▁ m i s o g
#   texts that come back when decoded: 50 of 50; warnings: none
. "$(dirname "$0")/common.sh"
venv numpy==2.4.6 transformers==5.24.0 tokenizers==0.23.3 sentencepiece==0.2.3 protobuf==7.36.2
export TRANSFORMERS_VERBOSITY=warning PYTHONWARNINGS=default

"$python" - "$work" <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
import json
import random
import sys
from pathlib import Path

import sentencepiece
from transformers import AutoTokenizer, LlamaTokenizer
work, draw = Path(sys.argv[1]), random.Random(0)
syllables = [consonant + vowel for consonant in "bdfgklmnprst" for vowel in "aeiou"]
words = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(300)]
def text(n):
    return " ".join(draw.choices(words, weights=range(300, 0, -1), k=n))
(work / "corpus.txt").write_text("\n".join(text(20) for _ in range(3000)))
texts = [text(12) for _ in range(50)]
for kind in ("bpe", "unigram"):
    folder = work / kind
    folder.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        input=str(work / "corpus.txt"), model_prefix=str(folder / "tokenizer"), model_type=kind, vocab_size=400,
        byte_fallback=True, normalization_rule_name="identity", num_threads=1, minloglevel=2)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"}))
    own = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    for loader in (LlamaTokenizer, AutoTokenizer):
        loaded = loader.from_pretrained(folder)
        pairs = [(own.encode(each), loaded(each, add_special_tokens=False).input_ids) for each in texts]
        same = sum(ours == theirs for ours, theirs in pairs)
        n_own, n_loaded = (sum(map(len, ids)) for ids in zip(*pairs))
        print(f"{kind}, {loader.__name__}: loaded as {type(loaded.backend_tokenizer.model).__name__}, texts with "
              f"sentencepiece's ids {same} of 50, tokens {n_own:,} and {n_loaded:,}")
        assert (same, n_loaded) == (50, n_own) if kind == "bpe" else same == 0 and n_loaded > 2 * n_own
ours, theirs = pairs[0]
print("  sentencepiece's:", *own.id_to_piece(ours[:9]))
print("  transformers':", *loaded.convert_ids_to_tokens(theirs[:9]))
back = sum(loaded.decode(ids) == each for each, (_, ids) in zip(texts, pairs))
print(f"texts that come back when decoded: {back} of 50; warnings:", end=" ")
assert back == 50
PY
grep -iE "unigram|bpe|sentencepiece" "$work/log" && exit 1 || echo none
