#!/usr/bin/env bash
# jiwer: a line break in a transcript is no space between words, and equal words have a WER of .53
# Versions: jiwer 4.0.0.
# Guess: words are what str.split() gives: line breaks, tabs and no-break spaces separate them as spaces do.
# True: by default words are split at the character " " alone. Two words with a line break or a tab between them are one
#   word: a substitution and an insertion. Two white spaces or more become one space before that, so that blank lines, "\r\n"
#   and a tab after a space are right, and a plain "\n" is wrong. The character error rate counts the break as one
#   character. wer_standardize knows all white space.
# Hurt: speech recognition: a reference in lines, such as subtitles or segments that are joined by "\n", against a
#   transcript in one line, or lines of another length. The shorter the lines, the worse the model.
# Output seen:
#   the same 24 words, in one line: wer 0.00
#   lines of 2 words: 1.69, 4 words: 0.53, 8 words: 0.18, 12 words: 0.09
#   lines of 4 words, joined by '\n': 0.53, '\t': 0.53, '\xa0': 0.53, '\n\n': 0.00, '\r\n': 0.00, ' \n': 0.00
#   lines of 4 words with "\n" in both, the second cut at other words: 0.68; with wer_standardize 0.00
. "$(dirname "$0")/common.sh"
venv jiwer==4.0.0

"$python" - <<'PY'
import jiwer
words = [f"{tens} {ones}" for tens in ("twenty", "thirty", "forty") for ones in ("one", "two", "three", "four")]
words = " ".join(words).split()
line = " ".join(words)
def lines(size, joint="\n", first=0):
    cuts = [0, *range(first or size, len(words), size), len(words)]
    return joint.join(" ".join(words[a:b]) for a, b in zip(cuts, cuts[1:]))
assert len(words) == 24 and lines(4).split() == words
print(f"the same 24 words, in one line: wer {jiwer.wer(line, line):.2f}")
by_size = {size: jiwer.wer(lines(size), line) for size in (2, 4, 8, 12)}
print("lines of", ", ".join(f"{size} words: {rate:.2f}" for size, rate in by_size.items()))
by_joint = {joint: jiwer.wer(lines(4, joint), line) for joint in ("\n", "\t", "\u00a0", "\n\n", "\r\n", " \n")}
print("lines of 4 words, joined by", ", ".join(f"{joint!r}: {rate:.2f}" for joint, rate in by_joint.items()))
other = jiwer.wer(lines(4), lines(4, first=2))
standard = jiwer.wer(lines(4), lines(4, first=2), jiwer.wer_standardize, jiwer.wer_standardize)
print(f'lines of 4 words with "\\n" in both, the second cut at other words: {other:.2f}; with wer_standardize {standard:.2f}')
assert by_size[2] > by_size[4] > by_size[8] > by_size[12] > 0 and by_size[4] > 0.4
assert list(by_joint.values()) == [by_size[4]] * 3 + [0] * 3 and other > 0.6 and standard == 0
PY
