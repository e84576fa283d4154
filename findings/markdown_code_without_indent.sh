#!/usr/bin/env bash
# LangChain's Markdown splitter removes the indentation of code, and all tabs and no-break spaces
# Versions: langchain-text-splitters 1.1.3.
# Guess: MarkdownHeaderTextSplitter cuts a text at its headings. The parts between them are as they were.
# True: each line is stripped, in code blocks too, and then loses each character for which Python's str.isprintable() is
#   False: tabs, no-break spaces, the wide space of Chinese and Japanese, and the joiners inside Persian and Hindi words. They
#   are removed, not replaced by a space, so that words and numbers run together.
#   ExperimentalMarkdownSyntaxTextSplitter keeps the text.
# Hurt: retrieval over documentation: the model is shown Python that does not compile, lists without levels, and tables
#   whose columns are one number. Training data that is cut at headings has the same.
# Output seen:
#   code    'def f(x):\n    if x:\n        return 1\n    return 2'  ->  'def f(x):\nif x:\nreturn 1\nreturn 2'
#   list    '- model\n    - layers'  ->  '- model\n- layers'
#   table   'loss\t3.1\t2.7'  ->  'loss3.12.7'
#   French  'soit 10\xa0000\xa0km'  ->  'soit 10000km'
#   Persian 'می\u200cخواهم'  ->  'میخواهم'
#   the code that is left: expected an indented block after function definition on line 1; with ExperimentalMarkdownSyntaxTextSplitter all five are as they were
. "$(dirname "$0")/common.sh"
venv langchain-text-splitters==1.1.3

"$python" - <<'PY'
from langchain_text_splitters import ExperimentalMarkdownSyntaxTextSplitter, MarkdownHeaderTextSplitter
code = "def f(x):\n    if x:\n        return 1\n    return 2"
texts = {"code": code, "list": "- model\n    - layers", "table": "loss\t3.1\t2.7", "French": "soit 10\u00a0000\u00a0km",
         "Persian": "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"}
def split(splitter, text):
    parts = splitter([("#", "title")]).split_text(f"# Title\n{text}\n")
    return "\n".join(part.page_content.strip("\n") for part in parts)
seen = {}
for name, text in texts.items():
    fenced = f"```python\n{text}\n```" if name == "code" else text
    seen[name] = split(MarkdownHeaderTextSplitter, fenced).removeprefix("```python\n").removesuffix("\n```")
    print(f"{name:7} {text!r}  ->  {seen[name]!r}")
    assert split(ExperimentalMarkdownSyntaxTextSplitter, fenced) == fenced
compile(code, "code", "exec")
try:
    compile(seen["code"], "code", "exec")
except IndentationError as error:
    print(f"the code that is left: {error.msg}; with ExperimentalMarkdownSyntaxTextSplitter all five are as they were")
else:
    raise AssertionError
assert seen["list"] == "- model\n- layers" and seen["table"] == "loss3.12.7" and seen["French"] == "soit 10000km"
assert seen["Persian"] == texts["Persian"].replace("\u200c", "")
PY
