#!/usr/bin/env bash
# setfit: distillation trains all pairs of texts to the cosine 1, whatever the teacher says, so the student collapses
# Versions: setfit 1.2.0, sentence-transformers 6.2.0, torch 2.13.0 (CPU), datasets 5.2.0, scikit-learn 1.9.1.
# Guess: the label of a pair is the teacher's cosine of its two texts, for which DistillationTrainer encodes them all.
# True: the pairs are made before the texts get their numbers, so each text has the number 0, and each label is the
#   teacher's cosine of the first text with itself. The logged loss falls nicely, towards equal embeddings for all
#   texts.
# Hurt: small students for serving, whose embeddings are worse after distillation than before it. The head is fitted
#   afterwards to the teacher's predictions on the training texts, which may hide it.
# Output seen:
#   teacher, cosine within a class 0.96, between classes 0.16
#   student before, cosine within a class 0.41, between classes 0.03
#   640 pairs; teacher's cosines from -0.10 to 1.00; labels from 1.00 to 1.00
#   student after, cosine within a class 0.97, between classes 0.96
. "$(dirname "$0")/common.sh"
venv setfit==1.2.0 sentence-transformers==6.2.0 torch==2.13.0 transformers==5.24.0 datasets==5.2.0 \
    scikit-learn==1.9.1 numpy==2.4.6 accelerate==1.15.0

WORK="$work" "$python" - 2> /dev/null <<'PY' | grep -E "^(teacher|student|[0-9]+ pairs)"
import os
import numpy as np
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from setfit import DistillationTrainer, SetFitModel, TrainingArguments
from sklearn.linear_model import LogisticRegression
from tokenizers import Tokenizer, models, pre_tokenizers

positive, negative = "good great fine nice".split(), "bad awful poor weak".split()
texts = [f"{a} {b}" for words in (positive, negative) for a in words for b in words]

def model(word_vectors):
    """A sentence model that averages word vectors. The first vector is that of unknown words."""
    vocabulary = {word: i for i, word in enumerate(["[UNK]", *positive, *negative])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    body = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=word_vectors)], device="cpu")
    return SetFitModel(model_body=body, model_head=LogisticRegression())

def cosines(name, of):
    vectors = of.model_body.encode(texts, normalize_embeddings=True)
    cosine = vectors @ vectors.T
    within, between = cosine[:16, :16].mean(), cosine[:16, 16:].mean()
    print(f"{name}, cosine within a class {within:.2f}, between classes {between:.2f}")
    return cosine, between

rng = np.random.default_rng(0)
centres = np.repeat(rng.normal(size=(2, 16)), 4, axis=0)  # one for each class
unknown = rng.normal(size=(1, 16))
teacher = model(np.concatenate([unknown, centres + 0.3 * rng.normal(size=(8, 16))]).astype("float32"))
teacher.model_head.fit(teacher.model_body.encode(texts), [0] * 16 + [1] * 16)
student = model(rng.normal(size=(9, 16)).astype("float32"))
wanted, _ = cosines("teacher", teacher)
cosines("student before", student)

settings = TrainingArguments(output_dir=os.environ["WORK"], batch_size=16, num_epochs=3, body_learning_rate=0.1,
                             num_iterations=20, report_to="none", save_strategy="no")
trainer = DistillationTrainer(teacher, student, settings, Dataset.from_dict({"text": texts}))
labels = trainer.get_dataset(texts, None, settings)[0]["label"]
print(f"{len(labels)} pairs; teacher's cosines from {wanted.min():.2f} to {wanted.max():.2f}; "
      f"labels from {min(labels):.2f} to {max(labels):.2f}")
assert min(labels) > 0.999 and wanted.min() < 0.5
trainer.train()
_, between = cosines("student after", student)
assert between > 0.9
PY
