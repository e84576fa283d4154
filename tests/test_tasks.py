"""The prompts of eval_niah.py, and how answers are judged."""
import json
import random
import re
import zlib

import numpy as np
import pytest
import torch
from conftest import CPU, byte_tokenizer, call, refused, save_model, tiny_model

import eval_niah
from eval_niah import NiahConfig, grade
from lib import storage, tasks
from lib.config import configure
from lib.corpora.almanac import CITIES
from lib.evaluate import digest_of
from lib.tasks import make_sample, open_haystack
from lib.text import GPT2, GPT2_EOT, Tokenizer
from model import GPT


def sample_of(*arguments, vocab=GPT2, size=1000, depth=50, i=0):
    """One prompt of eval_niah.py with these arguments."""
    cfg = configure(NiahConfig, ["x", *map(str, arguments)])
    first = GPT2_EOT if cfg.begin else None
    return make_sample(cfg, vocab, open_haystack(cfg, vocab)[0], size, depth, i, first)


def what_is_asked(prompt):
    """Return the answer that stands in a prompt, by reading it."""
    city = re.search(r"magic (\w+) number(?:\?\nAnswer| is):$", prompt)[1]
    number, = re.findall(rf"magic {city} number is: (\d+)\.", prompt)
    return number


@pytest.mark.parametrize("task, crc", [("needle", 0x2964f504), ("multikey", 0x7598d9df)])
def test_prompts_stay_those_that_were_published(task, crc):
    arguments = ["--haystack=noise", f"--task={task}", "--prompt=sft", "--begin"]
    prompts = [sample_of(*arguments, size=size, depth=depth, i=i)["prompt"]
               for size in (400, 700) for depth in (30, None) for i in (-1, 0, 1)]
    assert zlib.crc32(json.dumps(prompts).encode()) == crc


def test_prompts_of_every_depth_differ_in_the_question_alone():
    arguments = ["--haystack=noise", "--task=every_depth", "--depths=10,50,90"]
    vocab = Tokenizer(byte_tokenizer().to_str())  # in bytes the questions differ in length
    for i in range(10):
        samples = {depth: sample_of(*arguments, vocab=vocab, size=3000, depth=depth, i=i)
                   for depth in (10, 50, 90)}
        for depth, sample in samples.items():
            prompt = sample["prompt"]
            assert what_is_asked(vocab.decode(prompt)) == sample["answer"]
            assert abs(sample["span"][0] / 3000 - depth / 100) < 0.12
            assert len(prompt) == 3000 and prompt[:2900] == samples[10]["prompt"][:2900]
        assert len({sample["answer"] for sample in samples.values()}) == 3
    refused("81 needles need as many", sample_of, *arguments[:2], f"--depths={[*range(81)]}")


@pytest.mark.parametrize("text, end", [
    ("words without any end ", ""), ("An end. " + "and then none " * 500, ""),
    ("「本当に。」", "」"), ('It said: "You there!" "I?"', '"'), ("یہ ایک جملہ ہے۔ ", "۔"),
    ("🙂👍", ("🙂", "👍")), ("漢字", ("漢", "字"))], ids=range(7))
@pytest.mark.parametrize("depth", [10, 33.3, 90])
def test_a_needle_is_near_its_depth_after_a_sentence(tmp_path, text, end, depth):
    (tmp_path / "hay.txt").write_text(text * (10000 // len(text) + 1))
    sample = sample_of(f"--haystack={tmp_path}/hay.txt", depth=depth)
    place = sample["span"][0] - len(GPT2.encode(" The special magic Tokyo number is:"))
    assert abs(place / 1000 - depth / 100) < 0.05
    assert GPT2.decode(sample["prompt"][:place]).endswith(end)
    assert not GPT2.decode(sample["prompt"]).startswith("\ufffd"), "it begins inside a character"


@pytest.mark.parametrize("n_needles, size", [(3, 300), (15, 800), (30, 600)])
@pytest.mark.parametrize("depth", [0, 10, 50, 90, 100])
def test_the_needle_among_others_is_at_its_depth(tmp_path, n_needles, size, depth):
    (tmp_path / "hay.txt").write_text("Some words and an end. " * 200)
    for i in range(5):
        sample = sample_of(f"--haystack={tmp_path}/hay.txt", "--task=multikey",
                           f"--n_needles={n_needles}", size=size, depth=depth, i=i)
        # the question is the needle up to its number, which has four more tokens with its full stop
        question = len(GPT2.encode(" The special magic Tokyo number is:"))
        place = sample["span"][0] - question
        rest = size - 2 * question - 4  # hay and other needles
        assert abs(place / rest - depth / 100) < 0.05
        text = GPT2.decode(sample["prompt"])
        needles = re.findall(r" The special magic \w+ number is: \d{7}\.", text)
        assert (len(needles), len(sample["prompt"])) == (n_needles + 1, size)


@pytest.mark.parametrize(
    "vocab", [GPT2, Tokenizer(byte_tokenizer().to_str())], ids=["GPT-2", "bytes"])
@pytest.mark.parametrize("needle", [
    "The number of {city} is {number}, it says.", "{number} is of {city}.",
    "{city} has {number}th", "{city}: {number}"])
def test_the_span_of_a_needle_is_its_number_alone_and_leaves_room_for_it(needle, vocab):
    sample = sample_of("--haystack=noise", f"--needle={needle}", vocab=vocab)
    start, end = sample["span"]
    answer = " " + sample["answer"]
    assert vocab.decode(sample["prompt"][start:end]) == answer
    assert sample["max_new_tokens"] >= len(vocab.encode(answer + "."))


@pytest.mark.parametrize("needle", ["The magic number of {city} : {number} .",
                                    "{number} is the magic number of {city} ."])
def test_hay_never_states_what_is_asked(tmp_path, needle):
    numbers = random.Random(0)
    facts = [needle.format(city=city, number=numbers.randrange(10**7)) for city in CITIES * 20]
    numbers.shuffle(facts)
    (tmp_path / "hay.txt").write_text(" ".join(facts))
    arguments = [f"--haystack={tmp_path}/hay.txt", f"--needle={needle}", "--prompt=sft"]
    for i in range(10):
        sample = sample_of(*arguments, size=400, i=i)
        city = re.search(r"magic (\w+) number", GPT2.decode(sample["prompt"][-30:]))[1]
        text = GPT2.decode(sample["prompt"])
        assert text.count("magic number of ") > 10, "this hay has no facts"
        assert text.count(f"magic number of {city} ") == 1, "there are two answers"
    refused("the hay itself answers .*, in 10 of 10 pieces", sample_of, *arguments, size=9000)


def test_hay_that_answers_in_words_is_refused():
    hay = np.array(GPT2.encode("The box in Rome is red. The box in Tokyo is blue. " * 20))
    fact = tasks.Fact(f"The box in Tokyo is{tasks.ANSWER} .", "green")
    refused("the hay itself answers", tasks.draw_hay, GPT2, random.Random(0), hay, 60, [fact])
    other = tasks.Fact(f"The box in Oslo is{tasks.ANSWER} .", "green")
    assert len(tasks.draw_hay(GPT2, random.Random(0), hay, 60, [other])) == 60


@pytest.mark.parametrize("task, measure", [
    ("needle", "needles"), ("multikey", "needles among 3 others")])
def test_a_model_that_knows_odd_numbers_gets_these(tmp_path, monkeypatch, task, measure):
    def generate(self, idx, max_new_tokens, temperature, banned):
        assert (temperature, banned) == (0, (GPT2_EOT,))
        rows = []
        for row in idx.tolist():
            number = what_is_asked(GPT2.decode(row))
            new = GPT2.encode(f" {number}." if int(number) % 2 else " garden")
            rows.append(row + (new + [13] * max_new_tokens)[:max_new_tokens])
        return torch.tensor(rows)

    monkeypatch.setattr(GPT, "generate", generate)
    save_model(tmp_path, tiny_model(vocab_size=50257))
    call(eval_niah, tmp_path, "--haystack=noise", f"--task={task}", "--prompt=sft", *CPU,
         "--context_sizes=[400,600]", "--n_samples=3")
    records = storage.read_lines(tmp_path / "niah.jsonl")
    assert {record["depth"] for record in records} == {10, 30, 50, 70, 90}
    assert len(records) == 2 * 5 * 3
    for record in records:
        assert record[measure] == int(record["answer"]) % 2


@pytest.mark.parametrize("text, groups, right", [
    (" 8106422.", (7,), (True, True)), (" 81064223", (7,), (False, True)),
    (" 8 106422", (7,), (False, True)), (" the 8106422", (7,), (False, False)),
    ("", (7,), (False, False)), (" 81 06 42 2 .", (2, 2, 2, 1), (True, True)),
    (" 81 06 42 22", (2, 2, 2, 1), (False, True)), (" 81 06 42 2 2", (2, 2, 2, 1), (False, True)),
    (" 81 06 42 2\n3", (2, 2, 2, 1), (True, True)), (" 8,106,422.", (7,), (True, True)),
    (" 8,106,4223", (7,), (False, True)), (" 8106422, 3", (7,), (True, True))])
def test_scores_of_answers(text, groups, right):
    assert grade("8106422", text, groups) == right
    assert grade("cat", " cat dog", (2, 2, 2, 1))[0], "only a number is written in groups"


def test_models_that_were_fine_tuned_on_questions_are_asked_questions():
    model, tuned = tiny_model(vocab_size=50257, n_layer=1), {"squad": "train"}

    def prompt_of(source, *arguments):
        cfg = configure(NiahConfig, ["x", "--haystack=noise", "--context_sizes=64", *arguments])
        state = {"vocab": GPT2, "data": {"source": source}}
        *_, more = eval_niah.niah(cfg, "x", model, state)
        return more["prompt"]

    assert prompt_of({}) == "completion"
    assert prompt_of({}, "--prompt=sft") == "sft"
    refused("completion {number} comes last", prompt_of, {}, "--needle={number} is of {city}")
    assert prompt_of(tuned) == prompt_of(tuned, "--needle={number} is magic of {city}") == "sft"
    refused("lacks the word magic", prompt_of, tuned, "--needle={city} has {number}")


def test_a_copy_of_the_text_and_the_depth_10_as_10_0_continue_a_result(tmp_path):
    save_model(tmp_path, tiny_model(vocab_size=50257, n_layer=1))
    for name, depth, samples in (("a", "10", 1), ("b", "10.0", 2)):
        path = tmp_path / f"{name}.txt"
        path.write_text("The garden has a gate. " * 50)
        call(eval_niah, tmp_path, f"--haystack={path}", f"--depths={depth}", *CPU,
             f"--n_samples={samples}", "--context_sizes=64")
    prompts = [sample_of(f"--haystack={path}", "--prompt=completion", size=64, depth=10, i=i)
               for i in range(2)]
    digests = [record["digest"] for record in storage.read_lines(tmp_path / "niah.jsonl")]
    assert digests == [digest_of(sample["prompt"]) for sample in prompts]
