#!/usr/bin/env bash
# ragas: BLEU scores the first sentence of an answer alone, against all sentences of the reference as alternatives
# Versions: ragas 0.4.3, langchain-community 0.4.1, sacrebleu 2.6.0.
# Guess: BleuScore of an answer and a reference is sacrebleu's BLEU of the two texts, divided by 100.
# True: both are cut at ". ". Each sentence of the reference becomes an alternative reference of the first sentence of
#   the answer, and sacrebleu ignores all other sentences of the answer. So one right sentence is worth 1, whatever
#   follows, and "Yes. " before a perfect answer is worth 0.
# Hurt: answers of more than one sentence, as in RAG and summaries: comparisons of models that open with a phrase
#   ("Sure.", "Based on the context.") or that go on after the answer.
# Output seen:
#   the reference itself: ragas 1.00, sacrebleu 1.00
#   its first sentence, then nonsense: ragas 1.00, sacrebleu 0.42
#   its last sentence alone: ragas 1.00, sacrebleu 0.11
#   "Yes. " and the reference: ragas 0.00, sacrebleu 0.93
. "$(dirname "$0")/common.sh"
venv ragas==0.4.3 langchain-community==0.4.1 sacrebleu==2.6.0

RAGAS_DO_NOT_TRACK=true "$python" - 2> /dev/null <<'PY'
import asyncio
from ragas.metrics.collections import BleuScore
from sacrebleu import corpus_bleu

first = "The model was trained on 300 billion tokens of text"
last = "Its context is at most 4096 tokens long."
reference = f"{first}. It has 70 billion parameters in 80 layers. {last}"
answers = {
    "the reference itself": reference,
    "its first sentence, then nonsense": f"{first}. It has two legs and it was baked by my aunt in Spain. I like green tea.",
    "its last sentence alone": last,
    '"Yes. " and the reference': f"Yes. {reference}",
}
scores = []
for name, answer in answers.items():
    of_ragas = asyncio.run(BleuScore().ascore(reference=reference, response=answer)).value
    of_text = corpus_bleu([answer], [[reference]]).score / 100
    scores.append((of_ragas, of_text))
    print(f"{name}: ragas {of_ragas:.2f}, sacrebleu {of_text:.2f}")
assert all(of_ragas > 0.99 for of_ragas, _ in scores[:3]) and scores[3][0] < 0.01
assert scores[1][1] < 0.6 and scores[2][1] < 0.6 and scores[3][1] > 0.8
PY
