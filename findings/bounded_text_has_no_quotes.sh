#!/usr/bin/env bash
# xgrammar: a string of a schema with maxLength cannot hold a quote, a line break or a backslash: it ends at the quote
# Versions: xgrammar 0.2.9, torch 2.13.0, transformers 5.24.0, numpy 2.4.6 (a model that wants to write a given text).
# Guess: maxLength limits the length. A text that is shorter is written as it would be without the limit.
# True: with minLength, maxLength or a pattern, even ^[\s\S]*$, the grammar has no escapes. JSON cannot write a quote,
#   a line break, a tab or a backslash without one. The mask forbids the backslash. Where the model wants \" the mark
#   itself is allowed, and ends the string; \n becomes n, and \\frac is frac. The result is valid JSON by the schema, so
#   no check fails. Without a limit, or with minLength 0, all texts can be written.
# Hurt: answers by a schema with a limit, such as Field(max_length=...) or min_length=1: code, quotations, LaTeX, texts
#   of several paragraphs. Scores of code and of judges' reasons fall, and the model seems to be the cause.
# Output seen:
#   wanted 'He said "no" twice.': without a limit the same, maxLength 100 'He said ', minLength 1 'He said '
#   wanted 'if x:\n  print("yes")': without a limit the same, maxLength 100 'if x:n  print(', minLength 1 'if x:n  print('
#   wanted '\\frac{1}{2}': without a limit the same, maxLength 100 'frac{1}{2}', minLength 1 'frac{1}{2}'
#   wanted 'One sentence.': without a limit the same, maxLength 100 the same, minLength 1 the same
. "$(dirname "$0")/common.sh"
venv xgrammar==0.2.9 torch==2.13.0 transformers==5.24.0 numpy==2.4.6

"$python" - <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
import json
import xgrammar
tokens = [bytes([byte]) for byte in range(256)] + [b"<end>"]
information = xgrammar.TokenizerInfo(tokens, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[256])
compiler = xgrammar.GrammarCompiler(information)

def write(wanted, limits):
    """Let a model write the bytes of the JSON that it wants, leaving out those that the mask forbids."""
    schema = {"type": "object", "properties": {"text": {"type": "string", **limits}}, "required": ["text"]}
    matcher = xgrammar.GrammarMatcher(compiler.compile_json_schema(json.dumps(schema)))
    mask = xgrammar.allocate_token_bitmask(1, len(tokens))
    written = b""
    for byte in json.dumps({"text": wanted}).encode():
        matcher.fill_next_token_bitmask(mask)
        if mask[0, byte // 32] >> byte % 32 & 1:
            assert matcher.accept_token(byte)
            written += bytes([byte])
    assert matcher.is_completed()
    return json.loads(written)["text"]

limits = {"without a limit": {}, "maxLength 100": {"maxLength": 100}, "minLength 1": {"minLength": 1},
          "pattern": {"pattern": r"^[\s\S]*$"}}
texts = ['He said "no" twice.', 'if x:\n  print("yes")', "\\frac{1}{2}", "One sentence."]
for wanted in texts:
    written = {name: write(wanted, limit) for name, limit in limits.items()}
    same = {name: "the same" if text == wanted else repr(text) for name, text in written.items()}
    print(f"wanted {wanted!r}:", ", ".join(f"{name} {same[name]}" for name in list(limits)[:3]))
    assert written["without a limit"] == wanted == write(wanted, {"minLength": 0})
    assert written["maxLength 100"] == written["minLength 1"] == written["pattern"] and len(wanted) < 100
    assert (written["maxLength 100"] == wanted) == (wanted == texts[-1])
PY
