#!/usr/bin/env bash
# sentencepiece: a unigram vocabulary depends on the length of the lines: whole words are missing if lines are long
# Versions: sentencepiece 0.2.3 (vocabulary of 1,000, trained on half of the words of Python 3.11's own documentation).
# Guess: pieces do not cross spaces, so that the same words in the same order give the same vocabulary, in lines of any
#   length (below max_sentence_length).
# True: the candidates are taken from whole lines, before these are cut into words: strings that are followed by two
#   different characters at least. A word that is always followed by a space is none, as only "word and space" is, which
#   is thrown away. It becomes a candidate if it stands before a comma or at the end of a line. In transcripts without
#   punctuation 40 % of the pieces are others in lines of 1,000 words, and the text has 11 % more tokens: fewer than
#   with BPE become more. BPE counts words and does not change.
# Hurt: vocabularies trained on documents instead of sentences, on transcripts and normalized text; comparisons of
#   unigram and BPE.
# Output seen:
#   text, unigram, lines of 5 words: 568 whole words, the other half has 73480 tokens, 0 pieces are new
#   text, unigram, lines of 20 words: 523 whole words, the other half has 73241 tokens, 111 pieces are new
#   text, unigram, lines of 1000 words: 469 whole words, the other half has 73326 tokens, 192 pieces are new
#   text, bpe, lines of 5 words: 299 whole words, the other half has 72678 tokens, 0 pieces are new
#   text, bpe, lines of 20 words: 299 whole words, the other half has 72678 tokens, 0 pieces are new
#   text, bpe, lines of 1000 words: 299 whole words, the other half has 72678 tokens, 0 pieces are new
#   transcript, unigram, lines of 5 words: 816 whole words, the other half has 45715 tokens, 0 pieces are new
#   transcript, unigram, lines of 20 words: 683 whole words, the other half has 45721 tokens, 211 pieces are new
#   transcript, unigram, lines of 1000 words: 545 whole words, the other half has 50764 tokens, 395 pieces are new
#   transcript, bpe, lines of 5 words: 439 whole words, the other half has 47514 tokens, 0 pieces are new
#   transcript, bpe, lines of 20 words: 439 whole words, the other half has 47514 tokens, 0 pieces are new
#   transcript, bpe, lines of 1000 words: 439 whole words, the other half has 47514 tokens, 0 pieces are new
. "$(dirname "$0")/common.sh"
venv sentencepiece==0.2.3

"$python" - 2> /dev/null <<'PY'
import io
import re
from pydoc_data.topics import topics
import sentencepiece

texts = {"text": " ".join(topics[name] for name in sorted(topics)).split()}
texts["transcript"] = re.findall("[a-z]+", " ".join(texts["text"]).lower())

def train(words, length, kind):
    model = io.BytesIO()
    lines = (" ".join(words[i:i + length]) for i in range(0, len(words), length))
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=lines, model_writer=model, model_type=kind,
                                             vocab_size=1000, max_sentence_length=100000, minloglevel=2)
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())

seen = {}
for name, words in texts.items():
    half = len(words) // 2
    rest = " ".join(words[half:])
    for kind in ("unigram", "bpe"):
        for length in (5, 20, 1000):
            model = train(words[:half], length, kind)
            pieces = {model.id_to_piece(i) for i in range(1000)}
            first = pieces if length == 5 else first
            found = sum("\u2581" + word in pieces for word in set(words[:half]))
            seen[name, kind, length] = found, len(model.encode(rest)), len(pieces - first)
            print("{}, {}, lines of {} words: {} whole words, the other half has {} tokens, {} pieces are new".format(
                name, kind, length, *seen[name, kind, length]))
for name in texts:
    assert seen[name, "unigram", 1000][2] > 100
    assert seen[name, "bpe", 5] == seen[name, "bpe", 20] == seen[name, "bpe", 1000]
assert seen["transcript", "unigram", 1000][0] < 0.8 * seen["transcript", "unigram", 5][0]
PY
