#!/usr/bin/env bash
# Training a WordPiece tokenizer again gives tokens other ids
# Versions: tokenizers 0.23.3.
# Guess: the trainer has no seed and draws nothing, so the same corpus gives the same tokenizer, as with BPE and
#   Unigram.
# True: WordPiece gives some tokens other ids after each training, also within one program.
# Hurt: a tokenizer that is trained again instead of kept: tokenized corpora and checkpoints load without an
#   error, and their ids stand for other letters.
# Output seen:
#   trained 5 times on the same corpus: different vocabularies {'BPE': 1, 'Unigram': 1, 'WordPiece': 5}
. "$(dirname "$0")/common.sh"
venv tokenizers==0.23.3

"$python" - <<'PY'
import random
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
random.seed(0)
words = ["".join(random.choices("abcdefgh", k=random.randint(2, 7))) for _ in range(300)]
corpus = [" ".join(random.choices(words, k=30)) for _ in range(300)]
def train(model, trainer):
    tokenizer = Tokenizer(model())
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(corpus, trainer(vocab_size=200, show_progress=False))
    return tokenizer.get_vocab()
ids = {}
for model, trainer in ((models.BPE, trainers.BpeTrainer), (models.Unigram, trainers.UnigramTrainer),
        (models.WordPiece, trainers.WordPieceTrainer)):
    ids[model.__name__] = len({tuple(sorted(train(model, trainer).items())) for _ in range(5)})
print(f"trained 5 times on the same corpus: different vocabularies {ids}")
assert ids["BPE"] == ids["Unigram"] == 1 < ids["WordPiece"]
PY
