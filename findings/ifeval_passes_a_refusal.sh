#!/usr/bin/env bash
# deepeval: its IFEval passes 15 of the 25 kinds of instructions whatever the answer is, and always fails one of them
# Versions: deepeval 4.3.1, pandas 3.1.1, datasets 4.8.5.
# Guess: an answer that follows no instruction scores 0, as in the paper's code, which deepeval names as its source.
# True: many checks have other names than the instructions of google/IFEval, such as number_bullets for
#   number_bullet_lists and must_include for existence, and what has no check passes. So instructions about keywords,
#   JSON, bullets, paragraphs, capitals and the end of the answer pass. response_language fails in any language.
# Hurt: IFEval by deepeval beside papers and lm-eval: weak models score far too much, and differences shrink.
# Output seen:
#   "No, I will not." breaks 25 instructions; it passes 15, accuracy 0.60
#   passed: capital_word_frequency english_capital two_responses constrained_response json_format multiple_sections
#     number_bullet_lists existence forbidden_words frequency letter_frequency nth_paragraph_first_word
#     number_paragraphs end_checker quotation
#   an answer in Spanish, as asked for: accuracy 0.00
. "$(dirname "$0")/common.sh"
venv deepeval==4.3.1 pandas==3.1.1 datasets==4.8.5

DEEPEVAL_TELEMETRY_OPT_OUT=YES "$python" - 2> /dev/null <<'PY' | grep -v Accuracy
from deepeval.benchmarks import IFEval
from deepeval.models import DeepEvalBaseLLM

class Parrot(DeepEvalBaseLLM):
    """A model that gives one answer to everything."""
    def __init__(self, answer):
        self.answer = answer

    def load_model(self):
        return self

    def generate(self, prompt):
        return self.answer

    async def a_generate(self, prompt):
        return self.answer

    def get_model_name(self):
        return "parrot"

INSTRUCTIONS = {  # the names and arguments of the published data
    "change_case:capital_word_frequency": {"capital_frequency": 9, "capital_relation": "at least"},
    "change_case:english_capital": {}, "change_case:english_lowercase": {},
    "combination:repeat_prompt": {"prompt_to_repeat": "Tell me about whales."}, "combination:two_responses": {},
    "detectable_content:number_placeholders": {"num_placeholders": 3},
    "detectable_content:postscript": {"postscript_marker": "P.S."},
    "detectable_format:constrained_response": {}, "detectable_format:json_format": {},
    "detectable_format:multiple_sections": {"num_sections": 4, "section_spliter": "SECTION"},
    "detectable_format:number_bullet_lists": {"num_bullets": 3},
    "detectable_format:number_highlighted_sections": {"num_highlights": 3}, "detectable_format:title": {},
    "keywords:existence": {"keywords": ["whale"]}, "keywords:forbidden_words": {"forbidden_words": ["not"]},
    "keywords:frequency": {"frequency": 2, "keyword": "whale", "relation": "at least"},
    "keywords:letter_frequency": {"let_frequency": 9, "let_relation": "at least", "letter": "z"},
    "language:response_language": {"language": "es"},
    "length_constraints:nth_paragraph_first_word": {"first_word": "whales", "nth_paragraph": 2, "num_paragraphs": 3},
    "length_constraints:number_paragraphs": {"num_paragraphs": 4},
    "length_constraints:number_sentences": {"num_sentences": 9, "relation": "at least"},
    "length_constraints:number_words": {"num_words": 200, "relation": "at least"},
    "punctuation:no_comma": {}, "startend:end_checker": {"end_phrase": "Any questions?"}, "startend:quotation": {}}

def evaluate(answer, names):
    rows = [{"prompt": "Tell me about whales.", "instruction_id_list": [name], "kwargs": [INSTRUCTIONS[name]]}
            for name in names]
    return IFEval(dataset={"train": rows}).evaluate(Parrot(answer))

refusal = "No, I will not."
result = evaluate(refusal, INSTRUCTIONS)
passed = [name.split(":")[1] for name, right in result.instruction_breakdown.items() if right]
print(f'"{refusal}" breaks {len(INSTRUCTIONS)} instructions; it passes {len(passed)}, '
      f"accuracy {result.overall_accuracy:.2f}")
for i in (0, 6, 12):
    print(("  " if i else "passed: ") + " ".join(passed[i:i + 6]))
assert (len(INSTRUCTIONS), len(passed)) == (25, 15)
spanish = evaluate("Las ballenas son animales muy grandes que viven en el mar.", ["language:response_language"])
print(f"an answer in Spanish, as asked for: accuracy {spanish.overall_accuracy:.2f}")
assert spanish.overall_accuracy == 0
PY
