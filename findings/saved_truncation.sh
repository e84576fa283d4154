#!/usr/bin/env bash
# A call with truncation is saved into tokenizer.json, and cuts texts elsewhere
# Versions: transformers 5.24.0, tokenizers 0.23.3.
# Guess: truncation=True, max_length=8 and padding belong to the one call, so save_pretrained writes the tokenizer
#   as it was.
# True: they stay in the fast tokenizer, and save_pretrained writes them into tokenizer.json. transformers resets
#   them at its next call, so nothing is seen there. Whatever reads the file by itself cuts each text to 8 tokens,
#   and pads shorter ones.
# Hurt: servers, corpus builders and other programs that read the tokenizer.json of a fine-tuned model.
# Output seen:
#   texts of 30 and 2 tokens, saved before the call: by transformers [30, 2], by tokenizers [30, 2]
#   texts of 30 and 2 tokens, saved after the call: by transformers [30, 2], by tokenizers [8, 8]
. "$(dirname "$0")/common.sh"
venv tokenizers==0.23.3 transformers==5.24.0

"$python" - "$work" <<'PY'
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
words = Tokenizer(models.WordLevel({"<pad>": 0, **{f"w{i}": i for i in range(1, 100)}}, unk_token="<pad>"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", unk_token="<pad>")
text = " ".join(f"w{i}" for i in range(1, 31))
lengths = {}
for name in ("before", "after"):
    tokenizer.save_pretrained(sys.argv[1])
    by_itself = Tokenizer.from_file(sys.argv[1] + "/tokenizer.json")
    lengths[name] = [len(AutoTokenizer.from_pretrained(sys.argv[1])(t).input_ids) for t in (text, "w1 w2")] + [
        len(by_itself.encode(t).ids) for t in (text, "w1 w2")]
    tokenizer(text, truncation=True, max_length=8, padding="max_length")
for name, (*by_transformers, long, short) in lengths.items():
    print(f"texts of 30 and 2 tokens, saved {name} the call: by transformers {by_transformers}, by tokenizers {[long, short]}")
assert lengths["before"] == [30, 2, 30, 2] and lengths["after"] == [30, 2, 8, 8]
PY
