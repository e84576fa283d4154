#!/usr/bin/env bash
# T5Tokenizer of a sentencepiece model with default ids writes the end token for each unknown character
# Versions: transformers 5.24.0, tokenizers 0.23.3, sentencepiece 0.2.3, protobuf 7.36.2.
# Guess: T5Tokenizer reads from the sentencepiece model which id is the unknown token: 0 by sentencepiece's default, 2 in
#   T5's own. It reports the right id as unk_token_id.
# True: the class builds its model with unk_id=2, whatever the file says. By sentencepiece's default 2 is </s>. So an
#   unknown character is an end token in the middle of the text; a saved tokenizer keeps this, and unk_token_id, 0, never
#   occurs. RemBertTokenizer does the same. sentencepiece, BigBirdTokenizer and XLNetTokenizer give 0.
# Hurt: T5 models with a vocabulary of their own: as a target, such a text teaches the model to stop after a word;
#   losses and answers are cut at the first end token; a count of unknown tokens finds none.
# Output seen:
#   T5's ids: unknown is 2, end is 1; T5Tokenizer: gala <unk> bodu <unk> sono</s>
#     unknown and end tokens: sentencepiece 2 and 0, T5Tokenizer 2 and 0, T5Tokenizer, saved 2 and 0, RemBertTokenizer 2 and 0, BigBirdTokenizer 2 and 0, XLNetTokenizer 2 and 0
#   default ids: unknown is 0, end is 2; T5Tokenizer: gala </s> bodu </s> sono</s>
#     unknown and end tokens: sentencepiece 2 and 0, T5Tokenizer 0 and 2, T5Tokenizer, saved 0 and 2, RemBertTokenizer 0 and 2, BigBirdTokenizer 2 and 0, XLNetTokenizer 2 and 0
#   warnings: none
. "$(dirname "$0")/common.sh"
venv numpy==2.4.6 transformers==5.24.0 tokenizers==0.23.3 sentencepiece==0.2.3 protobuf==7.36.2
export TRANSFORMERS_VERBOSITY=warning PYTHONWARNINGS=default

"$python" - "$work" <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
import random
import sys
from pathlib import Path

import sentencepiece
from transformers import AutoTokenizer, BigBirdTokenizer, RemBertTokenizer, T5Tokenizer, XLNetTokenizer
draw = random.Random(0)
words = ["".join(draw.choices("abdefgiklmnoprstu", k=draw.randint(2, 6))) for _ in range(100)]
corpus = [" ".join(draw.choices(words, k=12)) for _ in range(2000)]
text = "gala № bodu ½ sono"
for kind, options in (("T5's ids", dict(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)), ("default ids", {})):
    folder = Path(sys.argv[1]) / kind
    folder.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus), model_prefix=str(folder / "spiece"), vocab_size=100, num_threads=1, minloglevel=2,
        normalization_rule_name="identity", **options)
    (folder / "sentencepiece.model").write_bytes((folder / "spiece.model").read_bytes())
    own = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    ids = {"sentencepiece": own.encode(text)}
    for loader in (T5Tokenizer, RemBertTokenizer, BigBirdTokenizer, XLNetTokenizer):
        tokenizer = loader.from_pretrained(folder)
        ids[loader.__name__] = tokenizer(text, add_special_tokens=False).input_ids
        assert tokenizer.unk_token_id == own.unk_id()
        if loader is T5Tokenizer:
            tokenizer.save_pretrained(folder / "saved")
            ids["T5Tokenizer, saved"] = AutoTokenizer.from_pretrained(folder / "saved")(text, add_special_tokens=False).input_ids
            print(f"{kind}: unknown is {own.unk_id()}, end is {own.eos_id()}; T5Tokenizer: {tokenizer.decode(tokenizer(text).input_ids)}")
    counts = {name: (row.count(own.unk_id()), row.count(own.eos_id())) for name, row in ids.items()}
    print("  unknown and end tokens:", ", ".join(f"{name} {unknown} and {end}" for name, (unknown, end) in counts.items()))
    wrong = {"T5Tokenizer", "T5Tokenizer, saved", "RemBertTokenizer"} if kind == "default ids" else set()
    assert all(count == ((0, 2) if name in wrong else (2, 0)) for name, count in counts.items())
PY
grep -iE "unk|sentencepiece" "$work/log" && exit 1 || echo "warnings: none"
