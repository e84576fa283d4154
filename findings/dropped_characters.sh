#!/usr/bin/env bash
# A BPE tokenizer leaves out the characters that it does not know, and misplaces those after them
# Versions: tokenizers 0.23.3.
# Guess: a character outside of the vocabulary gives an unknown token or an error, as it does with WordLevel.
# True: BPE without an unk_token, which its trainer does not ask for, skips the character. Ids, decoded text and
#   loss per token look right; the text is another one. The offsets of the tokens after it in the same word are
#   those of a text without it, so they point at other characters.
# Hurt: own tokenizers that are trained on a part of the corpus (rare digits are gone), and labels by offsets.
# Output seen:
#   'it is 24 to 25 hot' becomes 'it is  to  hot'
#   tokens whose offsets hold another text: [(' ', '2'), ('t', '4'), ('o', ' '), (' ', 't'), (' ', 'o'), ('h', ' '), ('o', '2'), ('t', '5')] of 12; WordLevel: WordLevel error: Missing [UNK] token from the vocabulary
. "$(dirname "$0")/common.sh"
venv tokenizers==0.23.3

"$python" - <<'PY'
from tokenizers import Tokenizer, models, trainers
bpe = Tokenizer(models.BPE())
bpe.train_from_iterator(["the price is low", "the price is high"], trainers.BpeTrainer(show_progress=False))
text = "it is 24 to 25 hot"
encoded = bpe.encode(text)
pairs = list(zip(encoded.tokens, [text[a:b] for a, b in encoded.offsets]))
wrong = [(token, there) for token, there in pairs if token != there]
try:
    word_level = Tokenizer(models.WordLevel({"the": 0})).encode("price").tokens
except Exception as error:
    word_level = error
print(f"{text!r} becomes {''.join(encoded.tokens)!r}")
print(f"tokens whose offsets hold another text: {wrong} of {len(pairs)}; WordLevel: {word_level}")
assert not set("245") & set("".join(encoded.tokens)) and wrong and isinstance(word_level, Exception)
PY
