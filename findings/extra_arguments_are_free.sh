#!/usr/bin/env bash
# ragas: a tool call with further arguments is fully right; without order one wrong call makes the others wrong
# Versions: ragas 0.4.3, langchain-community 0.4.1.
# Guess: ToolCallAccuracy gives a call with further arguments less than 1, and two right calls of three in any order
#   .67. ToolCallF1 gives a call that is made 20 times instead of once a low precision.
# True: only the arguments of the reference are compared, so further ones cost nothing. With strict_order=False both
#   lists are sorted and compared place by place: one wrong call shifts the others. ToolCallF1 compares sets, so a call
#   that is repeated counts once.
# Hurt: evaluations of agents: wrong arguments and loops go unseen, and parallel calls look wrong.
# Output seen:
#   wanted: read(path='a.txt')
#     extra arguments {}: accuracy 1.00, F1 1.00
#     extra arguments {'first_line': 40, 'reverse': True}: accuracy 1.00, F1 0.00
#   wanted in any order: weather of Berlin, Oslo, Paris
#     Paris Oslo Berlin: accuracy 1.00
#     Rome Oslo Berlin: accuracy 0.67
#     Paris Oslo Amsterdam: accuracy 0.67
#     Oslo Paris Rome: accuracy 0.00
#   wanted: weather of Oslo; called 20 times: F1 1.00
. "$(dirname "$0")/common.sh"
venv ragas==0.4.3 langchain-community==0.4.1

RAGAS_DO_NOT_TRACK=true "$python" - 2> /dev/null <<'PY'
import asyncio
from ragas.messages import AIMessage, ToolCall
from ragas.metrics.collections import ToolCallAccuracy, ToolCallF1

def score(metric, calls, wanted):
    message = AIMessage(content="", tool_calls=calls)
    return asyncio.run(metric.ascore(user_input=[message], reference_tool_calls=wanted)).value

def weather(cities):
    return [ToolCall(name="weather", args={"city": city}) for city in cities.split()]

wanted = [ToolCall(name="read", args={"path": "a.txt"})]
print("wanted: read(path='a.txt')")
for extra in ({}, {"first_line": 40, "reverse": True}):
    calls = [ToolCall(name="read", args={"path": "a.txt", **extra})]
    accuracy, f1 = score(ToolCallAccuracy(), calls, wanted), score(ToolCallF1(), calls, wanted)
    print(f"  extra arguments {extra}: accuracy {accuracy:.2f}, F1 {f1:.2f}")
    assert accuracy == 1 and f1 == (not extra)

print("wanted in any order: weather of Berlin, Oslo, Paris")
found = {}
for cities in ("Paris Oslo Berlin", "Rome Oslo Berlin", "Paris Oslo Amsterdam", "Oslo Paris Rome"):
    found[cities] = score(ToolCallAccuracy(strict_order=False), weather(cities), weather("Berlin Oslo Paris"))
    print(f"  {cities}: accuracy {found[cities]:.2f}")
assert found["Oslo Paris Rome"] == 0 and found["Rome Oslo Berlin"] > 0.6

f1 = score(ToolCallF1(), weather("Oslo " * 20), weather("Oslo"))
print(f"wanted: weather of Oslo; called 20 times: F1 {f1:.2f}")
assert f1 == 1
PY
