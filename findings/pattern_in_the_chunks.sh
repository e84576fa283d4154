#!/usr/bin/env bash
# LangChain's splitters write the regular expression itself into the chunks, as text
# Versions: langchain-text-splitters 1.1.3.
# Guess: with is_separator_regex=True the text is cut where the expression matches, and pieces that fit into one chunk
#   are joined by what stood between them, or by nothing.
# True: without keep_separator, the default of CharacterTextSplitter, the pieces are joined by the source of the
#   expression: backslashes, brackets and stars stand between the sentences. Only a chunk of a single piece is clean, so
#   that the larger the chunks are, the more of it they hold. Such a chunk is not in the text: its start_index is -1.
#   Expressions that begin with a lookaround are joined by nothing, and keep_separator=True joins as the text was.
# Hurt: indexes and training data made with an expression for blank lines, sentence ends or page marks: the pattern is
#   embedded, retrieved and learned with the text, and places of quotations are lost.
# Output seen:
#   'One.\n\n\nTwo.\n\nThree.' at '\\n{2,}'       -> ['One.\\n{2,}Two.\\n{2,}Three.'] starts at [-1]
#   'One. Two.  Three.'        at '(?:\\.)?\\s+'  -> ['One(?:\\.)?\\s+Two(?:\\.)?\\s+Three.'] starts at [-1]
#   'One.\n-- 1 --\nTwo.'      at '\\n-- \\d+ --\\n' -> ['One.\\n-- \\d+ --\\nTwo.'] starts at [-1]
#   a Markdown text by from_language("markdown", keep_separator=False): ['A.\n#{1,6} B\nb.\n#{1,6} C\nc.', 'D\nd.\n#{1,6} D\nd.\n#{1,6} D\nd.'] starts at [-1, -1]
#   share of the characters that are the pattern: chunks of 100 characters 8%, of 400 14%; with keep_separator=True 0%
. "$(dirname "$0")/common.sh"
venv langchain-text-splitters==1.1.3

"$python" - <<'PY'
from langchain_text_splitters import CharacterTextSplitter, Language, RecursiveCharacterTextSplitter
def split(splitter, text):
    documents = splitter.create_documents([text])
    return [part.page_content for part in documents], [part.metadata["start_index"] for part in documents]
def characters(pattern, size=100, **options):
    return CharacterTextSplitter(separator=pattern, is_separator_regex=True, chunk_size=size, chunk_overlap=0,
                                 add_start_index=True, **options)
for text, pattern in (("One.\n\n\nTwo.\n\nThree.", r"\n{2,}"), ("One. Two.  Three.", r"(?:\.)?\s+"),
                      ("One.\n-- 1 --\nTwo.", r"\n-- \d+ --\n")):
    chunks, starts = split(characters(pattern), text)
    print(f"{text!r:26} at {pattern!r:15} -> {chunks} starts at {starts}")
    assert pattern in chunks[0] and starts == [-1]
    chunks, starts = split(characters(pattern, keep_separator=True), text)
    assert chunks == [text] and starts == [0]
markdown = RecursiveCharacterTextSplitter.from_language(Language.MARKDOWN, chunk_size=30, chunk_overlap=0,
                                                        keep_separator=False, add_start_index=True)
chunks, starts = split(markdown, "A.\n# B\nb.\n# C\nc." + "\n# D\nd." * 3)
print('a Markdown text by from_language("markdown", keep_separator=False):', chunks, "starts at", starts)
assert any("#{1,6}" in chunk for chunk in chunks) and -1 in starts
text = "\n\n".join("This is a sentence of some words." for _ in range(200))
shares = []
for size, options in ((100, {}), (400, {}), (400, dict(keep_separator=True))):
    chunks = split(characters(r"\n{2,}", size, **options), text)[0]
    shares.append(sum(chunk.count(r"\n{2,}") for chunk in chunks) * 6 / sum(map(len, chunks)))
print(f"share of the characters that are the pattern: chunks of 100 characters {shares[0]:.0%}, of 400 {shares[1]:.0%}; "
      f"with keep_separator=True {shares[2]:.0%}")
assert shares[0] > 0.05 and shares[1] > shares[0] and shares[2] == 0
PY
