#!/usr/bin/env bash
# gensim reads the first 10,000 words of a text and no more: of a text of 100,000 words nine tenths are never trained on
# Versions: gensim 4.4.0, numpy 2.4.6 (texts whose words belong to ten topics, one after the other).
# Guess: a text is a list of words of any length. All of them are trained on, and in infer_vector all count.
# True: the compiled code stops after 10,000 words of a text (what subsampling removes is not counted), in Word2Vec,
#   FastText and Doc2Vec, in training and in infer_vector. build_vocab reads all, so that the later words are in the
#   vocabulary, with the random vectors of the start: most_similar answers for them, and all counts of the corpus are
#   right. Nothing is said. In Doc2Vec a text has the vector of its first 10,000 words, whatever follows. The same
#   text in lines of 1,000 words is trained on as a whole, unless batch_words is raised: then each batch is cut.
# Hurt: word vectors of books, logs, code or joined corpora; Doc2Vec of long documents, in the field of long context.
# Output seen:
#   Word2Vec, a text of 10,000 words: 100 % of the vectors ever moved, neighbour of the same topic 99 %
#   Word2Vec, a text of 100,000 words: 10 % of the vectors ever moved, neighbour of the same topic 18 %
#   Word2Vec, the same in lines of 1,000: 100 % of the vectors ever moved, neighbour of the same topic 98 %
#   Word2Vec, in lines of 1,000, batch_words=100,000: 10 % of the vectors ever moved, neighbour of the same topic 18 %
#   Doc2Vec, 10,000 words and 40,000 of another topic: cosine with the first 10,000 alone 1.00
#   Doc2Vec, 5,000 words and 5,000 of another topic: cosine with the first 5,000 alone 0.80
. "$(dirname "$0")/common.sh"
venv gensim==4.4.0 numpy==2.4.6
export PYTHONHASHSEED=0

"$python" - <<'PY'
import numpy as np
from gensim.models import Doc2Vec, Word2Vec
from gensim.models.doc2vec import TaggedDocument

rng = np.random.default_rng(0)
def words(topic, count):
    return [f"{topic}:{word}" for word in rng.integers(30, size=count)]

seen = []
for name, length, line, batch in (("a text of 10,000 words", 10_000, 10_000, 10_000),
                                  ("a text of 100,000 words", 100_000, 100_000, 10_000),
                                  ("the same in lines of 1,000", 100_000, 1_000, 10_000),
                                  ("in lines of 1,000, batch_words=100,000", 100_000, 1_000, 100_000)):
    text = sum((words(topic, length // 10) for topic in range(10)), [])
    lines = [text[i:i + line] for i in range(0, length, line)]
    model = Word2Vec(vector_size=16, min_count=1, sample=0, workers=1, seed=1, batch_words=batch)
    model.build_vocab(lines)
    start = model.wv.vectors.copy()
    model.train(lines, total_examples=len(lines), epochs=1_000_000 // length)
    moved = np.mean((model.wv.vectors != start).any(1))
    same = np.mean([model.wv.most_similar(word, topn=1)[0][0][0] == word[0] for word in model.wv.index_to_key])
    print(f"Word2Vec, {name}: {100 * moved:.0f} % of the vectors ever moved,",
          f"neighbour of the same topic {100 * same:.0f} %")
    seen.append((moved, same))
model = Doc2Vec([TaggedDocument(words(i % 10, 300), [i]) for i in range(400)], vector_size=16, min_count=1, epochs=20,
                sample=0, workers=1, seed=1)

def vector(text):
    model.random.seed(0)
    found = model.infer_vector(text)
    return found / np.linalg.norm(found)

cosines = []
for name, first, rest in (("10,000 words and 40,000 of another topic", 10_000, 40_000),
                          ("5,000 words and 5,000 of another topic", 5_000, 5_000)):
    text = words(0, first)
    cosines.append(vector(text) @ vector(text + words(1, rest)))
    print(f"Doc2Vec, {name}: cosine with the first {first:,} alone {cosines[-1]:.2f}")
assert seen[0][0] == seen[2][0] == 1 and abs(seen[1][0] - 0.1) < 0.01
assert min(seen[0][1], seen[2][1]) > 0.9 and max(seen[1][1], seen[3][1]) < 0.3 and abs(seen[3][0] - 0.1) < 0.01
assert cosines[0] > 0.999 and cosines[1] < 0.95
PY
