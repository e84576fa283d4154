#!/usr/bin/env bash
# bm25s throws words of one character away: "vitamin c" and "vitamin d" are the same query, "Gemma 3" and "Gemma 2", too
# Versions: bm25s 0.3.16, numpy 2.4.6 (1,000 passages: 100 subjects, each with the parts 1 to 9 and A).
# Guess: a keyword search finds the passage that has all words of the query. Its signs and stop words may be left out.
# True: tokenize() keeps words of two characters or more. A single digit or letter is removed from the passages and from
#   the query, silently, and so are both halves of 3.5, the X of "model X", the names C and R, and what is left of C++.
#   Passages that differ in such a word are equal. A query of nothing else scores 0 everywhere, and retrieve() returns k
#   passages all the same. The pattern is the one of scikit-learn's CountVectorizer; another token_pattern mends it.
# Hurt: keyword search and baselines for long documents by chapter, version, figure, plan, programming language or
#   vitamin; needles that are digits; hybrid search, in which this half decides about exact words.
# Output seen:
#   as it is: the right passage is first in 10%, MRR 0.29; query 7: 3 passages of score 0.00
#     Gemma 3 has 3.5 points on C++ and plan B: gemma has points plan
#   with one-character words: the right passage is first in 100%, MRR 1.00; query 7: 3 passages of score 0.91
#     Gemma 3 has 3.5 points on C++ and plan B: gemma 3 has 3 5 points c plan b
. "$(dirname "$0")/common.sh"
venv bm25s==0.3.16 numpy==2.4.6

"$python" - <<'PY'
import bm25s
import numpy as np

rng = np.random.default_rng(0)
texts = [f"The results of subject{subject} in section {part} of the report." for subject in range(100)
         for part in "123456789A"]
order = rng.permutation(len(texts))                      # so that no place is favoured among equal scores
corpus = [texts[i] for i in order]
seen = {}
for name, options in (("as it is", {}), ("with one-character words", {"token_pattern": r"(?u)\b\w+\b"})):
    def split(lines, **more):
        return bm25s.tokenize(lines, show_progress=False, **options, **more)

    index = bm25s.BM25()
    index.index(split(corpus), show_progress=False)
    found, _ = index.retrieve(split([f"subject{i // 10} section {'123456789A'[i % 10]}" for i in order]), k=10,
                              show_progress=False)
    rank = (found == np.arange(1000)[:, None]).argmax(1) + 1
    words = split(["Gemma 3 has 3.5 points on C++ and plan B"], return_ids=False)[0]
    documents, scores = index.retrieve(split(["7"]), k=3, show_progress=False)
    seen[name] = (rank == 1).mean(), (1 / rank).mean(), words, scores.max()
    print(f"{name}: the right passage is first in {seen[name][0]:.0%}, MRR {seen[name][1]:.2f};",
          f"query 7: {documents.shape[1]} passages of score {scores.max():.2f}")
    print(f"  Gemma 3 has 3.5 points on C++ and plan B: {' '.join(words)}")
assert seen["as it is"][0] < 0.2 and seen["as it is"][3] == 0
assert seen["as it is"][2] == ["gemma", "has", "points", "plan"]
assert seen["with one-character words"][0] == 1
PY
