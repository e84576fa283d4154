"""The evaluations measure what they say: planted models, plain forwards, killed and shared runs."""
import itertools
import json
import random
import re
import zlib

import numpy as np
import pytest
import tokenizers
import torch
import torch.nn.functional as F
from conftest import CPU, EVALS, call, refused, save_model, signal_in, tiny_model, two_ranks

import eval_niah
import eval_posloss
from eval_niah import NiahConfig, score
from lib import checkpoint, runtime, storage
from lib.config import configure
from lib.corpora.almanac import CITIES
from lib.data import Tokens
from lib.results import wilson
from lib.tasks import TASKS, WITHOUT_DEPTH, make_sample, open_haystack
from lib.text import GPT2_EOT, decode, encode, end_of_text
from model import GPT

PROGRAMS = pytest.mark.parametrize("program, kind", [
    (eval_niah, "niah"), (eval_posloss, "posloss")])


def read(folder, name):
    """(header, records) of a result file."""
    header, *records = storage.read_lines(folder / f"{name}.jsonl")
    return header, records


@pytest.fixture
def evaluate(corpus, tmp_path):
    """evaluate(program, name, *arguments) -> records, of checkpoint a (softmax), b (ssmax), pn."""
    vocab = Tokens(corpus, "train").vocab
    for name, attention_type in {"pn": "pn", "a": "softmax", "b": "ssmax"}.items():
        model = tiny_model(attention_type, vocab_size=len(vocab))
        save_model(tmp_path / name / "ckpt.pt", model, vocab)
    save_model(tmp_path / "reversed/ckpt.pt", model, vocab[::-1])

    def evaluate(program, name, *arguments):
        call(program, *EVALS[program.__name__], tmp_path / name, f"--data_dir={corpus}", *arguments)
        kind = program.__name__.removeprefix("eval_")
        if any("--trials" in str(argument) for argument in arguments):
            kind = "scores"
        return read(tmp_path / name, kind)[1]

    return evaluate


def same(one, two):
    """Equal records in any order; losses may differ by the order of a sum."""
    one, two = (sorted(records, key=str) for records in (one, two))
    if "losses" not in one[0]:
        return one == two
    assert [record["i"] for record in one] == [record["i"] for record in two]
    losses = ([record["losses"] for record in records] for records in (one, two))
    return np.allclose(*losses, rtol=0, atol=2e-6)


def sample_of(*arguments, vocab=None, size=1000, depth=50, i=0):
    """One prompt of eval_niah.py with these arguments."""
    cfg = configure(NiahConfig, ["x", *map(str, arguments)])
    return make_sample(cfg, vocab, open_haystack(cfg, vocab)[0], size, depth, i)


def what_is_asked(prompt):
    """Return the answers that stand in a prompt, by reading it."""
    if chain := re.search(r"assigned the value (\d+), they are:$", prompt):
        names, value = [], chain[1]
        while assigned := re.search(rf"VAR (\w+) = {value}\.", prompt):
            names.append(assigned[1])
            value = f"VAR {assigned[1]}"
            prompt = prompt[assigned.end():]  # the order is part of the task
        return names
    if keys := re.search(r"numbers for ([^?]*) mentioned in the provided text are$", prompt):
        keys = "|".join(re.split(", and |, ", keys[1]))
        return re.findall(rf"magic numbers for (?:{keys}) is: (\d+)\.", prompt)
    if city := re.search(r"magic (\w+) number(?:\?\nAnswer| is):$", prompt):
        return re.findall(rf"magic {city[1]} number is: (\d+)\.", prompt)
    *words, key = prompt.split()  # mqar: the word that followed the last one
    return [words[words.index(key) + 1]]


# -----------------------------------------------------------------------------
# prompts


@pytest.mark.parametrize("task, crc", [
    ("needle", 0x2964f504), ("multikey", 0x020f2c26), ("multivalue", 0xf0bfaf41),
    ("multiquery", 0x64e73e27), ("tracking", 0x574d4dc3), ("mqar", 0xf0887ccc)])
def test_prompts_stay_those_that_were_published(task, crc):
    cfg = configure(NiahConfig, ["x", "--haystack=noise", f"--task={task}", "--begin",
                                 "--prompt=sft"])
    hay, _ = open_haystack(cfg, None)
    prompts = [make_sample(cfg, None, hay, size, depth, i)["prompt"]
               for size in (400, 700) for depth in (30, None) for i in (-1, 0, 1)]
    assert zlib.crc32(json.dumps(prompts).encode()) == crc


@pytest.mark.parametrize("size", [64, 501])
@pytest.mark.parametrize("depth", [0, 10, 50, 90, 100])
def test_prompts_have_their_size_and_needle(corpus, size, depth):
    vocab = Tokens(corpus, "train").vocab
    cfg = configure(NiahConfig, ["config/quick_niah.py", "x", f"--data_dir={corpus}"])
    hay, _ = open_haystack(cfg, vocab)
    sample, again, other = (make_sample(cfg, vocab, hay, size, depth, i) for i in (3, 3, 4))
    prompt, ((start, end),) = sample["prompt"], sample["spans"]
    head = prompt[-len(encode(" The special magic number of Tokyo :", vocab)):]
    place = start - len(head)
    assert len(prompt) == size
    assert prompt[0] == end_of_text(vocab)
    assert decode(prompt[start:end], vocab).replace(" ", "") == sample["answers"][0]
    assert decode(prompt[end:end + 1], vocab) == " ."
    assert prompt[place:start] == head
    assert place <= size * depth / 100 + 1
    assert place == 1 or depth == 0 or decode(prompt[place - 1:place], vocab) == " ."
    assert sample == again != other


@pytest.mark.parametrize("text, end", [
    ("words without any end ", ""), ("An end. " + "and then none " * 500, ""),
    ("これは長い文です。", "。"), ("本当に？", "？"), ("「本当に。」", "」"), ("You there ! ", "!"),
    ('It said: "You there!" "I?"', '"'), ("यह एक वाक्य है। ", "।"), ("یہ ایک جملہ ہے۔ ", "۔"),
    ("🙂👍", ("🙂", "👍")), ("漢字", ("漢", "字"))], ids=range(11))
@pytest.mark.parametrize("depth", [10, 33.3, 90])
def test_a_needle_is_near_its_depth_after_a_sentence_and_in_no_character(
        tmp_path, text, end, depth):
    (tmp_path / "hay.txt").write_text(text * (10000 // len(text) + 1))
    sample = sample_of(f"--haystack={tmp_path}/hay.txt", depth=depth)
    place = sample["spans"][0][0] - len(encode(" The special magic Tokyo number is:"))
    assert abs(place / 1000 - depth / 100) < 0.05
    assert decode(sample["prompt"][:place]).endswith(end)
    assert not decode(sample["prompt"]).startswith("\ufffd"), "it begins inside a character"


def test_no_needle_is_inside_another(tmp_path):
    (tmp_path / "hay.txt").write_text("words without any end " * 100)
    sample = sample_of(f"--haystack={tmp_path}/hay.txt", "--task=multikey", "--n_needles=30",
                       size=600)
    needles = re.findall(r" The special magic \w+ number is: \d{7}\.", decode(sample["prompt"]))
    assert len(needles) == 31


@pytest.mark.parametrize("needle, behind", [
    ("The number of {city} is {number}, it says.", ","), ("{number} is of {city}.", " is"),
    ("{city} has {number}th", "th"), ("{city}: {number}", None)])
def test_the_span_of_a_needle_is_its_number_alone(needle, behind):
    sample = sample_of("--haystack=noise", f"--needle={needle}")
    (start, end), = sample["spans"]
    assert decode(sample["prompt"][start:end]) == " " + sample["answers"][0]
    assert behind is None or decode(sample["prompt"][end:end + 1]) == behind


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
        city = re.search(r"magic (\w+) number", decode(sample["prompt"][-30:]))[1]
        text = decode(sample["prompt"])
        assert text.count("magic number of ") > 10, "this hay has no facts"
        assert text.count(f"magic number of {city} ") == 1, "there are two answers"
    refused("the hay itself answers .*, in 10 of 10 pieces", sample_of, *arguments, size=9000)


# -----------------------------------------------------------------------------
# answers


@pytest.mark.parametrize("model", ["right", "wrong", "first only"])
@pytest.mark.parametrize("task", sorted(TASKS))
def test_planted_models_get_what_they_know(tmp_path, monkeypatch, task, model):
    def generate(self, idx, max_new_tokens, temperature, banned):
        assert (temperature, banned) == (0, (GPT2_EOT,))
        rows = []
        for row in idx.tolist():
            answers = what_is_asked(decode(row)) if model != "wrong" else ["garden"]
            text = ", ".join(answers[:1] if model == "first only" else answers)
            new = encode(f" {text}.") + [13] * max_new_tokens
            rows.append(row + new[:max_new_tokens])
        return torch.tensor(rows)

    monkeypatch.setattr(GPT, "generate", generate)
    save_model(tmp_path / "ckpt.pt", tiny_model(vocab_size=50257), None)
    call(eval_niah, tmp_path, "--haystack=noise", f"--task={task}", "--prompt=sft", *CPU,
         "--context_sizes=[400,600]", "--n_samples=3")
    header, records = read(tmp_path, "niah")
    depths = {record["asked_depth"] for record in records}
    assert depths == ({None} if task in WITHOUT_DEPTH else {10, 30, 50, 70, 90})
    assert len(records) == header["records"] == 2 * len(depths) * 3
    n = len(records[0]["answers"])
    expected = {"right": (1, 1), "wrong": (0, 0), "first only": (int(n == 1), 1 / n)}[model]
    for record in records:
        assert (record["exact"], record["substring"]) == pytest.approx(expected)
        sample = sample_of("--haystack=noise", f"--task={task}", "--prompt=sft",
                           size=record["size"], depth=record["asked_depth"], i=record["i"])
        prompt = decode(sample["prompt"])
        # where pieces of it meet, two tokens may read as one, or one as two
        assert abs(len(encode(prompt)) - record["size"]) <= 1
        assert sorted(what_is_asked(prompt)) == sorted(record["answers"])


@pytest.mark.parametrize("task", sorted(TASKS.keys() - {"mqar"}))  # it needs GPT-2's words
def test_a_tokenizer_with_a_token_for_each_byte_leaves_room_for_all_answers(task):
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    names = ["<|endoftext|>", *sorted(letters)]
    model = tokenizers.models.BPE({name: i for i, name in enumerate(names)}, [])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    vocab = tokenizer.to_str()
    sample = sample_of("--haystack=noise", f"--task={task}", vocab=vocab, size=4000)
    assert len(sample["prompt"]) == 4000
    answer = " " + ", ".join(sample["answers"]) + "."
    assert sample["max_new_tokens"] >= len(encode(answer, vocab))
    texts = [decode(sample["prompt"][start:end], vocab).strip() for start, end in sample["spans"]]
    assert sorted(texts) == sorted(sample["answers"])


@pytest.mark.parametrize("text, groups, right", [
    (" 8106422.", (7,), "exact first substring"), (" 81064223", (7,), "first substring"),
    (" 8 106422", (7,), "first"), (" the 8106422", (7,), "substring"), ("", (7,), ""),
    (" 81 06 42 2 .", (2, 2, 2, 1), "exact first substring"),
    (" 81 06 42 22", (2, 2, 2, 1), "first substring")])
def test_scores_of_answers(text, groups, right):
    scores = score(["8106422"], text, groups)
    assert [key for key in scores if scores[key]] == right.split()
    assert score(["1", "2"], "3, 2", (7,)) == {"exact": False, "first": False, "substring": 0.5}
    assert score(["cat"], " cat dog", (2, 2, 2, 1))["exact"], "only a number is written in groups"


def test_wilson_intervals():
    assert wilson(0, 100) == pytest.approx([0, 0.0370], abs=1e-4)
    assert wilson(50, 100) == pytest.approx([0.4038, 0.5962], abs=1e-4)


def test_models_that_were_fine_tuned_on_questions_are_asked_questions(tmp_path, capsys):
    def prompt_of(*arguments):
        call(eval_niah, tmp_path, "--haystack=noise", "--context_sizes=64", "--n_samples=1",
             "--overwrite", *CPU, *arguments)
        return read(tmp_path, "niah")[0]["settings"]["prompt"]

    save_model(tmp_path / "ckpt.pt", tiny_model(vocab_size=50257, n_layer=1), None)
    assert prompt_of() == "completion"
    assert ": prompt=completion\n" in capsys.readouterr().out
    assert prompt_of("--prompt=sft") == "sft"
    refused("once and the last one last: city number", prompt_of, "--needle={number} is of {city}")
    state = checkpoint.load(tmp_path)
    state["data"] = {"digest": "x", "source": {"squad": "train"}}  # as sft.py leaves it
    checkpoint.save(tmp_path / "ckpt.pt", state)
    assert prompt_of() == prompt_of("--needle={number} is of {city}") == "sft"
    # trained on after sft.py: its base was fine-tuned
    state["base"] = {"iter": 1, "data": state["data"], "base": None}
    state["data"] = {"digest": "y", "source": {}}
    checkpoint.save(tmp_path / "ckpt.pt", state)
    assert prompt_of() == "sft"


# -----------------------------------------------------------------------------
# the attention on needles


def test_needle_scores_and_ranks_are_those_of_the_whole_attention_matrix(
        corpus, evaluate, tmp_path):
    records = evaluate(eval_niah, "b", "--trials=3", "--trial_sizes=(100,64,100)",
                       "--task=multikey", "--n_needles=1")
    model, state = checkpoint.load_model(tmp_path / "b")
    cfg = configure(NiahConfig, ["config/quick_niah.py", "x", f"--data_dir={corpus}",
                                 "--task=multikey", "--n_needles=1"])
    hay, _ = open_haystack(cfg, state["vocab"])
    assert [(r["size"], r["i"]) for r in records] == [
        *itertools.product((100, 64), range(-1, 3)), *((32, i) for i in range(3, 6))]
    for record in records:
        assert record["asked_depth"] is None and record["chooses_heads"] == (record["i"] >= 3)
        depth = 50 if record["i"] == -1 else None
        sample = make_sample(cfg, state["vocab"], hay, record["size"], depth, record["i"])
        assert sample["answers"] == record["answers"]
        (start, end), = sample["spans"]
        assert record["needle_tokens"] == end - start
        idx = torch.tensor([sample["prompt"]])
        x = model.wte(idx)
        for layer, block in enumerate(model.blocks):
            position = model.positions(idx)[block.attn.kind]
            q, k, _ = block.attn.project(block.norm_1(x), position)
            logits = q.double() @ k.double().transpose(-2, -1) / q.size(-1) ** 0.5
            for head, weights in enumerate(logits[0, :, -1].softmax(-1).tolist()):
                on_needle = weights[start:end]
                others = weights[:start] + weights[end:]
                assert record["scores"][layer][head] == pytest.approx(sum(on_needle), abs=2e-5)
                assert record["ranks"][layer][head] == 1 + sum(
                    weight > max(on_needle) for weight in others)
            x = block(x, position)
        assert record["top"] == max(map(max, record["scores"]))
    assert len({rank for record in records for layer in record["ranks"] for rank in layer}) > 10
    assert records[0]["answers"] == ["8106422"]


def test_scores_and_ranks_of_several_answers_and_of_ties():
    weights = torch.tensor([[[.1, .2, .3, .1, .2, .1], [0, 0, .5, 0, .5, 0]]])
    scores, ranks = eval_niah.needle_scores(weights, [(1, 2), (4, 6)])
    assert torch.allclose(scores, torch.tensor([[0.5, 0.5]]))
    assert ranks.tolist() == [[2, 1]], "only a larger weight comes before the needle"


def test_heads_are_chosen_on_other_prompts_of_the_training_length(corpus, evaluate, tmp_path):
    def chosen(name, sizes, *arguments):
        records = evaluate(eval_niah, name, "--trials=4", f"--trial_sizes={sizes}", "--overwrite",
                           *arguments)
        choosing = {(r["size"], r["depth"]) for r in records if r["chooses_heads"]}
        trials = {(r["size"], r["depth"]) for r in records
                  if not r["chooses_heads"] and r["i"] >= 0}
        assert len(choosing) == 4 and not choosing & trials, "a prompt is there twice"
        return {size for size, _ in choosing}

    assert chosen("b", 100) == chosen("b", "32,100") == {32}
    assert chosen("b", 24) == chosen("pn", 24) == {24}, "not longer than trials"
    refused("of 32 tokens is too small .* .--trials also makes prompts of the training length",
            chosen, "b", 200, "--task=multikey")


# -----------------------------------------------------------------------------
# the loss by position


def test_posloss_is_the_plain_forward(corpus, evaluate, tmp_path):
    records = evaluate(eval_posloss, "b", "--seq_len=64", "--loss_chunk=11", "--micro_batch_size=5")
    ends = read(tmp_path / "b", "posloss")[0]["ends"]
    assert {16, 32, 64} <= set(ends)
    model, tokens = checkpoint.load_model(tmp_path / "b")[0], Tokens(corpus, "test")
    cfg = configure(eval_posloss.PosLossConfig, ["x", "--seq_len=64", "--n_seqs=12"])
    starts = eval_posloss.choose_pieces(cfg, len(tokens))
    window = tokens.read(starts, 65)
    x, y = torch.from_numpy(window[:, :-1]), torch.from_numpy(window[:, 1:])
    with torch.no_grad():
        logits = model(x, y)[0].double()
    losses = F.cross_entropy(logits.transpose(1, 2), y, reduction="none").numpy()
    assert [record["i"] for record in records] == list(range(12))
    for record, row in zip(records, losses, strict=True):
        tenths = [row[end - max(1, end // 10):end].mean() for end in ends]
        assert record["losses"] == pytest.approx(tenths, abs=2e-6)


@pytest.mark.parametrize("n_seqs, n_tokens", [(12, 5000), (49, 5000), (1000, 5000), (3, 101)])
def test_windows_do_not_overlap_and_follow_from_the_seed(capsys, n_seqs, n_tokens):
    def pieces(seed):
        cfg = configure(eval_posloss.PosLossConfig, [
            "x", "--seq_len=100", f"--n_seqs={n_seqs}", f"--seed={seed}"])
        return eval_posloss.choose_pieces(cfg, n_tokens)

    fit = (n_tokens - 1) // 100
    for seed in range(20):
        starts = pieces(seed)
        assert len(starts) == min(n_seqs, fit)
        assert (np.diff(starts) >= 100).all()
        assert starts[0] >= 0 and starts[-1] + 100 < n_tokens, "the last position has no target"
        assert starts.tolist() == pieces(seed).tolist()
    assert (f"becomes {fit}" in capsys.readouterr().out) == (n_seqs > fit)
    if n_seqs == 12:
        firsts = [pieces(seed)[0] for seed in range(50)]
        assert len(set(firsts)) > 40, "the first window begins at the same place"


# -----------------------------------------------------------------------------
# result files


def test_a_change_at_load_is_measured_and_named(evaluate, tmp_path, capsys):
    def loss(*changes):
        records = evaluate(eval_posloss, "a", *changes, "--overwrite")
        return records, read(tmp_path / "a", "posloss")[0]

    plain, header = loss()
    assert header["model_config"]["rope_factor"] == 1, "RoPE is not as trained"
    assert "differ from the defaults: device=cpu dtype=float32 data_dir=" in capsys.readouterr().out
    swapped, header = loss("--attention_type=ssmax", "--tag=e")
    header, _ = read(tmp_path / "a", "posloss-e")
    assert (header["variant"], header["tag"]) == ("softmax>ssmax", "e")
    assert header["model_config"]["attention_type"] == "ssmax"
    assert header["settings"]["data"]["source"]["embedded"] == "almanac"
    assert header["settings"]["dtype"] == "float32"
    assert not same(read(tmp_path / "a", "posloss-e")[1], plain)
    stretched, header = loss("--rope_factor=50")
    assert not same(stretched, plain)
    assert (header["model_config"]["rope_scaling"], header["model_config"]["rope_factor"]) == (
        "theta", 50)
    assert "rope_factor 1.0 -> 50.0" in capsys.readouterr().out


def test_a_result_says_after_which_update_it_was_measured(run, corpus, tmp_path, capsys):
    def measured(*arguments):
        call(eval_posloss, *EVALS["eval_posloss"], tmp_path, f"--data_dir={corpus}", *arguments)
        header, _ = read(tmp_path, "posloss")
        return header["iter"], header["max_iters"]

    with signal_in(4):
        refused("stopped after iter 4", run, tmp_path)
    assert measured() == (4, 6)
    assert ", update 4 of 6\n" in capsys.readouterr().out
    run(tmp_path)
    refused(r"other settings \(checkpoint\)", measured)
    assert measured("--overwrite") == (6, 6)
    assert "trained on" not in capsys.readouterr().out
    measured("--split=train", "--overwrite")
    assert "*** this is the text that the model was trained on ***" in capsys.readouterr().out


@pytest.mark.parametrize("program, name, more", [
    (eval_niah, "answer", []), (eval_niah, "answer", ["--trials=8"]),
    (eval_posloss, "piece_losses", [])])
def test_out_of_memory_and_interrupted_it_ends_the_same_and_is_repeated(
        evaluate, tmp_path, monkeypatch, capsys, program, name, more):
    real, room, kill_after, measured = getattr(program, name), 2, 3, []

    def disturbed(*arguments):
        if len(arguments[3]) > room:  # prompts or pieces at once
            raise torch.OutOfMemoryError("CUDA out of memory")
        if len(measured) == kill_after:
            raise KeyboardInterrupt
        measured.append(len(arguments[3]))
        return real(*arguments)

    def n_measured(*arguments):
        measured.clear()
        assert same(evaluate(program, "b", *more, *arguments), whole)
        return sum(measured)

    whole = evaluate(program, "b", *more)
    n, (path,) = len(whole), (tmp_path / "b").glob("*.jsonl")
    path.unlink()
    monkeypatch.setattr(program, name, disturbed)
    with pytest.raises(KeyboardInterrupt):
        n_measured()
    assert path.read_text().count("\n") == 1 + 6, "not six of them were done"
    # killed in the middle of a line, after another process has written one of the records, too
    path.write_text(path.read_text() + path.read_text().splitlines()[-1] + '\n{"size": 6')
    kill_after = None
    capsys.readouterr()
    assert n_measured() == n - 6, "what was done is measured again"
    assert "not measured again" not in capsys.readouterr().out
    assert n_measured() == 0
    assert "not measured again" in capsys.readouterr().out
    # what an interrupted --overwrite has left is continued, and what is finished is replaced
    kill_after = 3
    with pytest.raises(KeyboardInterrupt):
        n_measured("--overwrite")
    kill_after = None
    assert [n_measured("--overwrite"), n_measured("--overwrite")] == [n - 6, n]
    refused(r"other settings \(seed\)", n_measured, "--seed=3")
    room = 0
    with pytest.raises(torch.OutOfMemoryError):
        n_measured("--overwrite")
    path.write_text('{"a": 1}\n')
    refused("is not a result of this program", evaluate, program, "b", *more)


@PROGRAMS
def test_a_result_names_all_commits_that_have_measured_it(
        evaluate, tmp_path, monkeypatch, capsys, program, kind):
    def evaluate_at(commit, *arguments):
        monkeypatch.setattr(runtime, "code_version", lambda: commit)
        evaluate(program, "b", *arguments)
        return read(tmp_path / "b", kind)[0]["code"], capsys.readouterr().out

    path = tmp_path / f"b/{kind}.jsonl"

    def cut():
        path.write_text("\n".join(path.read_text().splitlines()[:4]))

    assert evaluate_at("aaa")[0] == "aaa"
    code, printed = evaluate_at("bbb")
    assert code == "aaa" and "other code" not in printed, "it was finished"
    cut()
    code, printed = evaluate_at("bbb")
    assert code == "aaa, bbb" and "continued with other code, see --overwrite: aaa, bbb" in printed
    cut()
    code, printed = evaluate_at("bbb")
    assert code == "aaa, bbb" and "other code" not in printed
    cut()
    assert evaluate_at("ccc", "--overwrite")[0] == "ccc"


@PROGRAMS
def test_out_keeps_the_results_of_several_checkpoints_apart(
        evaluate, corpus, tmp_path, capsys, program, kind):
    def measure(*arguments):
        call(program, *EVALS[program.__name__], f"--data_dir={corpus}", *arguments)

    evaluate(program, "b")
    beside, out = read(tmp_path / "b", kind), tmp_path / "out"
    (tmp_path / f"b/{kind}.jsonl").unlink()
    measure(tmp_path / "a", tmp_path / "b/ckpt.pt", f"--out={out}")
    written = {str(path.relative_to(out)) for path in out.rglob("*.jsonl")}
    assert written == {f"{name}/{kind}.jsonl" for name in "ab"}
    header, records = read(out / "b", kind)
    assert same(records, beside[1])
    assert header == beside[0], "where a result lies is not a part of it"
    assert not list((tmp_path / "b").glob("*.jsonl")), "a result lies beside the checkpoint as well"
    capsys.readouterr()
    measure(tmp_path / "a", tmp_path / "b", f"--out={out}")
    assert capsys.readouterr().out.count("not measured again") == 2
    measure(tmp_path / "b", f"--out={out}", "--seed=3", "--tag=3")
    assert (out / f"b/{kind}-3.jsonl").exists()


def test_results_that_would_overwrite_each_other_are_refused_before_anything_is_measured(
        evaluate, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(eval_posloss, "piece_losses", None)  # calling it fails otherwise

    def refuse(message, *arguments):
        refused(message, call, eval_posloss, *EVALS["eval_posloss"], f"--data_dir={corpus}",
                *arguments)

    a, b, out = tmp_path / "a", tmp_path / "b", tmp_path / "out"
    for name in ("other/a/ckpt.pt", "a/ckpt_prev.pt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((a / "ckpt.pt").read_bytes())
    refuse("both be written to .*out/a/posloss.json", a, b, tmp_path / "other/a", f"--out={out}")
    refuse("both be written to .*a/posloss-t.json", b, a, a / "ckpt_prev.pt", "--tag=t")
    refuse("there is no checkpoint .*/nowhere;", a, tmp_path / "nowhere", f"--out={out}")
    assert not out.exists()
    out.write_text("not a folder")
    refuse("cannot write .*out/a/posloss.json", a, f"--out={out}")


@pytest.mark.parametrize("program, name, argument, message", [
    (eval_niah, "a", "--context_sizes=[15]", "too small for needle and question: take at least"),
    (eval_niah, "a", "--context_sizes=99999", "choose a smaller context"),
    (eval_niah, "a", "--context_sizes=256,1e3", "context_sizes must be positive whole"),
    (eval_niah, "a", "--number_format=()", "number_format must be positive whole"),
    (eval_niah, "a", "--n_needles=9999", "must be below"),
    (eval_niah, "a", "--haystack=nowhere*.txt", "is no file"),
    (eval_niah, "a", "--depths=110", "percentages"),
    (eval_niah, "a", "--needle=no city", "needle must have these fields .*: city number"),
    (eval_niah, "a", "--needle={city} {number} in {year}", "needle must have these fields"),
    (eval_niah, "a", "--question=Is {city} {city.x}?", "question must have these fields"),
    (eval_niah, "a", "--needle={city} {number}, {number}", "needle must have these fields"),
    (eval_niah, "a", "--attention_type=ssmx", "attention_type=ssmx must be one of softmax, ssmax"),
    (eval_niah, "a", "--qa_format={context} {answer} {question}", "qa_format must have"),
    (eval_niah, "pn", "--context_sizes=30", "p_n is learned for 32 positions, and 34 are needed"),
    (eval_posloss, "pn", "--seed=1", "p_n is learned for 32 positions, and 90 are needed"),
    (eval_niah, "reversed", "--seed=1", "different vocabularies"),
    (eval_posloss, "a", "--seq_len=99999", "choose a smaller --seq_len"),
    (eval_posloss, "a", "--tag=../x", "a slash"),
    (eval_posloss, "a", "--n_seqs=0", "positive"),
    (eval_posloss, "a", "--n_seqs=9_000_000", "at most 1,000,000"),
    (eval_niah, "a", "--n_samples=9_000_000", "36,000,000 prompts, and 1,000,000 are the most"),
    (eval_niah, "a", "--trials=9_000_000", "18,000,000 prompts, and"),
    (eval_posloss, "nowhere", "--seed=1", "no checkpoint .*nowhere"),
    (eval_posloss, "reversed", "--seed=1", "different vocabularies")])
def test_what_cannot_be_measured_is_one_line(
        evaluate, tmp_path, program, name, argument, message):
    assert refused(message, evaluate, program, name, argument) == 2
    assert not list(tmp_path.glob("*/*.jsonl"))


def test_a_model_that_has_diverged_is_not_measured(evaluate, tmp_path):
    state = checkpoint.load(tmp_path / "a")
    state["model"]["norm.weight"][0] = torch.nan
    checkpoint.save(tmp_path / "a/ckpt.pt", state)
    for program in (eval_posloss, eval_niah):
        refused("a: some weights are not finite", evaluate, program, "a")


@pytest.mark.slow
def test_two_ranks_measure_the_same(evaluate, corpus, tmp_path):
    one = [evaluate(eval_niah, "b", "--n_samples=1"),
           evaluate(eval_niah, "b", "--trials=4", "--micro_batch_size=2"),
           evaluate(eval_posloss, "b", "--n_seqs=3")]
    two_ranks(tmp_path, f"""
import torch
from conftest import EVALS, call
import eval_niah, eval_posloss
from lib import ranks

def answer(cfg, model, vocab, batch, device, real=eval_niah.answer):
    if ranks.RANK == 1 and len(batch) > 1:
        raise torch.OutOfMemoryError
    return real(cfg, model, vocab, batch, device)

eval_niah.answer = answer
more = ["{tmp_path}/b", "--data_dir={corpus}", "--micro_batch_size=2", "--tag=two"]
call(eval_niah, *EVALS["eval_niah"], *more, "--n_samples=1")
call(eval_niah, *EVALS["eval_niah"], *more, "--trials=4")
call(eval_posloss, *EVALS["eval_posloss"], *more, "--n_seqs=3")
""")
    for kind, records in zip(("niah", "scores", "posloss"), one, strict=True):
        header, of_two = read(tmp_path / "b", f"{kind}-two")
        assert same(of_two, records)
        assert {**header, "tag": ""} == read(tmp_path / "b", kind)[0]
