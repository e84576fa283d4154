#!/usr/bin/env bash
# chonkie: with tokenizer="word" the chunks have lost a space at each border, and their offsets one character more each
# Versions: chonkie 1.7.0, numpy 2.4.6 (2,000 facts of nine words, and a table of 300 lines).
# Guess: text[chunk.start_index:chunk.end_index] is chunk.text, and the chunks together are the text. A word ends at a
#   space or at the end of a line.
# True: the text is split at spaces and each chunk joined again, without the space between two chunks. The offsets are
#   sums of the lengths of the chunks. So TokenChunker's are one character too small for each chunk before, 899 at the
#   end of 900 chunks, and a number that is looked up by its place in the text is in another chunk. Joined chunks have
#   two words in one at each border. RecursiveChunker has the same where it goes down to words, and is right again at
#   the next sentence. As only a space ends a word, a table with commas is one word of 300 lines, and a chunk of size
#   20. tokenizer="character" has none of this.
# Hurt: retrieval evaluated by spans, citations and highlights by offsets, chunks joined into long contexts, needles at
#   a known place.
# Output seen:
#   TokenChunker, 120 characters: 761 chunks, 0 with wrong offsets, 0 spaces lost, 99% of the numbers found
#   TokenChunker, 20 words: 900 chunks, 899 with wrong offsets, 899 spaces lost, 6% of the numbers found
#   TokenChunker, 200 words: 90 chunks, 89 with wrong offsets, 89 spaces lost, 96% of the numbers found
#   RecursiveChunker, 5 words: 4,000 chunks, 2,000 with wrong offsets, 2,000 spaces lost, 100% of the numbers found
#   TokenChunker, 20 words, a table of 300 lines: 1 chunk of 1 token
#   RecursiveChunker, 20 words, a table of 300 lines: 1 chunk of 1 token
. "$(dirname "$0")/common.sh"
venv chonkie==1.7.0 numpy==2.4.6

"$python" - <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
import chonkie

facts = [f"The {i}th secret number of the city is {7 * i}." for i in range(2000)]
text, starts = " ".join(facts), []
place = 0
for fact in facts:
    starts.append(place)
    place += len(fact) + 1
assert all(text[start:start + len(fact)] == fact for start, fact in zip(starts, facts))

def find(chunks, start, fact):
    """Is the number of the fact in the chunk that holds its last digit?"""
    place = start + len(fact) - 2
    return any(chunk.start_index <= place < chunk.end_index and fact.split()[-1][:-1] in chunk.text for chunk in chunks)

seen = {}
for kind, unit, size in ((chonkie.TokenChunker, "character", 120), (chonkie.TokenChunker, "word", 20),
                         (chonkie.TokenChunker, "word", 200), (chonkie.RecursiveChunker, "word", 5)):
    chunks = kind(tokenizer=unit, chunk_size=size).chunk(text)
    wrong = sum(text[chunk.start_index:chunk.end_index] != chunk.text for chunk in chunks)
    lost = len(text) - len("".join(chunk.text for chunk in chunks))
    hits = sum(find(chunks, start, fact) for start, fact in zip(starts, facts)) / len(facts)
    seen[kind, unit, size] = wrong / len(chunks), lost, hits
    print(f"{kind.__name__}, {size} {unit}s: {len(chunks):,} chunks, {wrong:,} with wrong offsets,",
          f"{lost:,} spaces lost, {hits:.0%} of the numbers found")
table = "\n".join(f"{i},{i * i},{i % 7}" for i in range(300))
for kind in (chonkie.TokenChunker, chonkie.RecursiveChunker):
    chunks = kind(tokenizer="word", chunk_size=20).chunk(table)
    print(f"{kind.__name__}, 20 words, a table of 300 lines: {len(chunks)} chunk of {chunks[0].token_count} token")
    assert len(chunks) == chunks[0].token_count == 1
assert seen[chonkie.TokenChunker, "character", 120][:2] == (0, 0)
assert seen[chonkie.TokenChunker, "character", 120][2] > 0.98 and seen[chonkie.TokenChunker, "word", 20][2] < 0.2
assert min(seen[chonkie.TokenChunker, "word", size][0] for size in (20, 200)) > 0.9
assert seen[chonkie.RecursiveChunker, "word", 5][0] > 0.4 and seen[chonkie.RecursiveChunker, "word", 5][1] > 1000
PY
