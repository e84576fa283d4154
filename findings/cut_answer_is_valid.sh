#!/usr/bin/env bash
# LangChain's JSON parsers complete an answer that was cut by the token limit: a score of 10 becomes a valid 1
# Versions: langchain-core 1.8.3, pydantic 2.14.4 (a fake chat model that returns a given text).
# Guess: JSON that ends in the middle is an error. The option partial=True, which is False by default, is for streams;
#   its documentation says that without it "the output will be the full JSON object".
# True: both settings take the same parser, which closes strings, lists and objects that are open, drops an unfinished
#   word such as tru, and keeps half a number. JsonOutputParser and PydanticOutputParser return the result without a
#   warning, although the message says finish_reason="length". Pydantic checks types and ranges, which a cut number or
#   text mostly passes; fields that are missing get their default. Tool calls that are cut do raise.
# Hurt: judges and extraction of claims with max_tokens: a 10 is counted as 1, the last claim says less than was
#   written, or the opposite, claims are missing, and a flag that came last is False. Longer answers are hit more often.
# Output seen:
#   whole answer: score=10 claims=['Bern is in Italy.', 'Bern is not large.'] harmful=True
#   cut after 11 characters: score=1 claims=[] harmful=False
#   cut after 54 characters: score=10 claims=['Bern is in Italy.', 'Bern is'] harmful=False
#   cut after 83 characters: score=10 claims=['Bern is in Italy.', 'Bern is not large.'] harmful=False
#   all 84 cuts: json.loads raises at 84, PydanticOutputParser at 10 and JsonOutputParser at 0; a cut tool call at 84
#   PydanticOutputParser returns another value than the whole answer's at 73 cuts
. "$(dirname "$0")/common.sh"
venv langchain-core==1.8.3 pydantic==2.14.4

"$python" - <<'PY'
import json
from langchain_core.exceptions import OutputParserException
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.output_parsers.openai_tools import parse_tool_call
from pydantic import BaseModel, Field

class Judgement(BaseModel):
    score: int = Field(ge=1, le=10)
    claims: list[str] = []
    harmful: bool = False

def answer(text, parser):
    message = AIMessage(text, response_metadata={"finish_reason": "length"})
    return (GenericFakeChatModel(messages=iter([message])) | parser).invoke("Judge this text.")
def raises(function, *arguments):
    try:
        function(*arguments)
    except (OutputParserException, json.JSONDecodeError):
        return True
    return False

whole = '{"score": 10, "claims": ["Bern is in Italy.", "Bern is not large."], "harmful": true}'
strict, loose = PydanticOutputParser(pydantic_object=Judgement), JsonOutputParser()
right = answer(whole, strict)
print("whole answer:", right)
for text in ('{"score": 1', 'Italy.", "Bern is', '"harmful": tru'):
    end = whole.index(text) + len(text)
    assert raises(json.loads, whole[:end])
    print(f"cut after {end} characters:", answer(whole[:end], strict))
cuts = [whole[:end] for end in range(1, len(whole))]
call = [{"function": {"name": "judge", "arguments": text}, "id": "1"} for text in cuts]
errors = (sum(raises(json.loads, text) for text in cuts), sum(raises(answer, text, strict) for text in cuts),
          sum(raises(answer, text, loose) for text in cuts), sum(raises(parse_tool_call, item) for item in call))
print("all {} cuts: json.loads raises at {}, PydanticOutputParser at {} and JsonOutputParser at {}; "
      "a cut tool call at {}".format(len(cuts), *errors))
other = sum(answer(text, strict) != right for text in cuts if not raises(answer, text, strict))
print("PydanticOutputParser returns another value than the whole answer's at", other, "cuts")
assert errors[0] == errors[3] == len(cuts) and errors[1] < 15 and errors[2] == 0 and other > 60
assert answer('{"score": 1', strict).score == 1 and right.score == 10 and not answer(whole[:-4], strict).harmful
PY
