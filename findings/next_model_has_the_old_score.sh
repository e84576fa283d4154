#!/usr/bin/env bash
# mteb gives each model from a folder the scores of the first one: a bad checkpoint, and the model after more training
# Versions: mteb 2.26.24, sentence-transformers 6.2.0, torch 2.13.0 (CPU; static models, an STS task of 500 pairs).
# Guess: evaluate(model, tasks) evaluates the model that it is given.
# True: evaluate() keeps its results in ~/.cache/mteb, without being asked, and looks there first. The key is the name
#   and the revision in the model card. A SentenceTransformer from a folder, or made in memory, has neither there: all
#   of them are no_model_name/available. What is evaluated first gives its scores to all that come later, in later
#   processes, too. Nothing says that they were read and not measured. cache=None measures, and so does
#   overwrite_strategy="always".
# Hurt: comparisons of checkpoints, of training recipes, of a model before and after fine-tuning: all are equal. In one
#   loop this is seen, but an evaluation of yesterday's model gives today's its score, which looks as one would expect.
# Output seen:
#   first: evaluate() 0.952, measured 0.952, kept as no_model_name/available
#   second, of another folder: evaluate() 0.952, measured 0.589, kept as no_model_name/available
#   third, the second after more training: evaluate() 0.952, measured 0.653, kept as no_model_name/available
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0 datasets==5.2.0 mteb==2.26.24 sentence-transformers==6.2.0 \
    tokenizers==0.23.3

export MTEB_CACHE="$work/mteb"
"$python" - "$work" <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
import sys
import mteb
import numpy as np
import torch
from datasets import Dataset, DatasetDict
from mteb.mocks import MockSTSTask
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, models, pre_tokenizers

class Pairs(MockSTSTask):                                      # its score is the share of words that two texts share
    def load_data(self, **options):
        random = np.random.default_rng(0)
        first, other = random.integers(100, size=(2, 500, 8))
        second = np.where(random.random((500, 8)) < random.random((500, 1)), first, other)
        texts = [[" ".join(f"w{word}" for word in row) for row in rows] for rows in (first, second)]
        shared = (first == second).mean(1).tolist()
        test = Dataset.from_dict({"sentence1": texts[0], "sentence2": texts[1], "score": shared})
        self.dataset, self.data_loaded = DatasetDict(test=test), True

def score(model, **options):
    result = mteb.evaluate(model, [Pairs()], show_progress_bar=False, **options)
    return result.task_results[0].scores["test"][0]["main_score"], result.model_name

words = Tokenizer(models.WordLevel({f"w{word}": word for word in range(100)}, unk_token="w0"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
torch.manual_seed(0)
good = torch.randn(100, 64)
for folder, weights in (("good", good), ("bad", good + 3 * good[:, :1])):
    model = SentenceTransformer(modules=[StaticEmbedding(words, embedding_weights=weights.numpy())])
    model.save(f"{sys.argv[1]}/{folder}")
seen = []
for name, folder in (("first", "good"), ("second, of another folder", "bad"),
                     ("third, the second after more training", None)):
    if folder:
        model = SentenceTransformer(f"{sys.argv[1]}/{folder}")
    else:
        with torch.no_grad():
            for weights in model.parameters():
                weights.copy_(torch.lerp(weights, good, 0.4))  # a part of the way to the good one
    (reported, key), (measured, _) = score(model), score(model, cache=None)
    seen.append((reported, measured))
    print(f"{name}: evaluate() {reported:.3f}, measured {measured:.3f}, kept as {key}")
    assert key == "no_model_name/available"
assert abs(seen[0][0] - seen[0][1]) < 1e-6 and seen[1][0] == seen[2][0] and abs(seen[1][0] - seen[0][0]) < 1e-6
assert seen[1][1] < seen[2][1] - 0.05 < seen[0][1] - 0.1
PY
