"""Models leave for transformers: the same numbers there, and one line for what has no class."""
import json

import pytest
import tokenizers
import torch
from conftest import CPU, byte_tokenizer, call, refused, save_model, tiny_model

import hf
import prepare
import sample
from lib import checkpoint, text
from lib.checkpoint import LoadConfig
from lib.data import Tokens
from lib.text import GPT2, Tokenizer
from model import ATTENTION
from ssmax_hf import KINDS

transformers = pytest.importorskip("transformers")
EXPORTED = ["softmax", *KINDS]
V = 261  # tokens of TOKENIZER: bytes, three merges, a special token, a word that no merge makes
TOKENIZER = byte_tokenizer("Ġ a", "1 2", "Ġ 1", "xy").to_str()


def model_of(attention_type="ssmax", **changes):
    return tiny_model(attention_type, **{"vocab_size": V, **changes})


def export(tmp_path, model, *options, vocab=None):
    """The Hugging Face model that hf.py makes of `model`."""
    save_model(tmp_path / "ours", model, vocab or Tokenizer(TOKENIZER))
    call(hf, "export", tmp_path / "ours", f"--out_dir={tmp_path}/theirs", *options)
    return transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "theirs").eval()


def refuse_export(says, tmp_path, model, *options):
    save_model(tmp_path / "ours", model, Tokenizer(TOKENIZER))
    refused(says, call, hf, "export", tmp_path / "ours", f"--out_dir={tmp_path}/x", *options)
    assert [path.name for path in tmp_path.glob("[!.]*")] == ["ours"], "something is left of it"


def same_logits(theirs, model, tolerance=1e-4):
    idx = torch.randint(model.config.vocab_size, (2, min(70, model.max_len)))
    with torch.no_grad():
        far = (theirs(idx).logits - model(idx, idx)[0]).abs().max()
    assert far < tolerance


WINDOWS = {"window": 8, "window_pattern": "SL", "attention_type": "ssmax"}
CASES = [({"attention_type": kind}, "Llama") for kind in EXPORTED]
CASES += [({**WINDOWS, **changes}, "SmolLM3") for changes in [
    {"window_pattern": "SR"}, {"attention_type": "softmax"},
    {"attention_type": "head_scale"},
    {"window_pattern": "SSLR", "n_layer": 5, "attention_type": "ssmax_bias"},
    {"window_pattern": "L", "window": 0}, {"window_pattern": "S", "attention_type": "softmax"}]]


@pytest.mark.parametrize("settings, kind", CASES, ids=str)
def test_every_model_becomes_its_class_and_computes_the_same(tmp_path, settings, kind):
    model = model_of(**settings)
    theirs = export(tmp_path, model)
    assert type(theirs).__name__ == f"{kind}ForCausalLM"
    assert theirs.get_input_embeddings().padding_idx is None, "the end of text would not train"
    needs_ssmax_hf = settings["attention_type"] != "softmax"
    assert hasattr(theirs.config, "ssmax") == needs_ssmax_hf
    assert (tmp_path / "theirs/ssmax_hf.py").exists() == needs_ssmax_hf
    same_logits(theirs, model)
    prompt = torch.randint(V, (2, 9))
    answers = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=9,
                              do_sample=False, eos_token_id=None, pad_token_id=0)
    assert torch.equal(answers, model.generate(prompt, 9, temperature=0))


def test_an_export_that_computes_something_else_is_not_made(tmp_path, monkeypatch):
    def wrong_length(model, to_hf=hf.to_hf):
        theirs = to_hf(model)
        theirs.config.ssmax["length"] *= 2
        return theirs

    clip = model_of("logn_clip", block_size=400)  # 1 up to 400 tokens
    monkeypatch.setattr(hf, "to_hf", wrong_length)
    refuse_export("has other logits than the checkpoint", tmp_path, clip)


def test_a_model_is_exported_with_its_swap_and_its_theta_which_all_may_read(tmp_path):
    theirs = export(tmp_path, model_of("softmax", doc_mask=True),  # a mask of training only
                    "--attention_type=ssmax", "--rope_factor=50")
    model, _ = checkpoint.load_model(tmp_path / "ours", LoadConfig(
        attention_type="ssmax", rope_factor=50.0))
    same_logits(theirs, model)
    config = tmp_path / "theirs/config.json"
    settings = json.loads(config.read_text())  # some programs read theta at the top level alone
    assert settings["rope_theta"] == settings["rope_parameters"]["rope_theta"] == 5e5
    assert settings["ssmax"]["kind"] == "ssmax"
    assert config.stat().st_mode == (tmp_path / "theirs/model.safetensors").stat().st_mode


@pytest.mark.parametrize("settings", [{}, WINDOWS], ids=str)
def test_a_folder_continues_prompts_as_sample_does(tmp_path, capsys, settings):
    theirs = export(tmp_path, model_of(**settings, vocab_size=text.GPT2_VOCAB), vocab=GPT2)
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    assert checkpoint.load_model(tmp_path / "theirs")[1]["vocab"] == GPT2, "it is not GPT-2's"
    cfg = prepare.PrepareConfig(files=("README.md",), name="x", tokenizer=f"{tmp_path}/theirs")
    assert prepare.new_manifest(cfg)["vocab"] is None, "the folder could not be asked this corpus"
    for prompt in (" the", "of and\nto", "", "naïve 中文 😀  two"):
        assert read(prompt)["input_ids"] == [text.GPT2_EOT, *GPT2.encode(prompt)]
        capsys.readouterr()
        call(sample, tmp_path / "ours", f"--prompt={prompt}", *CPU, "--temperature=0",
             "--num_samples=1", "--max_new_tokens=20")
        ours = capsys.readouterr().out.removesuffix("\n" + "-" * 80 + "\n")
        answer = theirs.generate(**read(prompt, return_tensors="pt"), max_new_tokens=20)
        assert read.decode(answer[0], skip_special_tokens=True) == ours


def test_a_token_that_no_training_text_had_is_put_in_front_of_nothing(tmp_path):
    words = tokenizers.Tokenizer.from_str(TOKENIZER)
    words.post_processor = tokenizers.processors.TemplateProcessing(
        "xy $A", None, [("xy", words.token_to_id("xy"))])
    vocab = Tokenizer(words.to_str())
    export(tmp_path, model_of(), vocab=vocab)
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    assert read("12 a")["input_ids"] == vocab.encode("12 a")
    for name in ("ours", "theirs"):
        _, state = checkpoint.load_model(tmp_path / name)
        assert state.get("bos") is None
        text.check_same_vocab("a corpus", vocab, "the model", state["vocab"], "")


def test_a_compact_vocabulary_leaves_with_a_tokenizer_that_gives_its_ids(corpus, tmp_path):
    tokens = Tokens(corpus, "val")
    export(tmp_path, model_of(vocab_size=tokens.vocab_size), vocab=tokens.vocab)
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    ids = tokens[0:3000].tolist()
    end = tokens.vocab.end
    first = ids.index(end) + 1  # a text without the end of text
    passage = ids[first:ids.index(end, first)]
    assert len(passage) > 20
    assert read(tokens.vocab.decode(passage))["input_ids"] == [end, *passage]
    model, state = checkpoint.load_model(tmp_path / "theirs")
    assert state["vocab"] == tokens.vocab and model.config.vocab_size == tokens.vocab.size
    assert state["model_config"]["attention_type"] == "ssmax"  # which was saved with it


def test_what_cannot_be_exported_is_one_line(tmp_path):
    for kind in ATTENTION.keys() - EXPORTED:
        refuse_export(f"attention_type={kind} cannot be exported", tmp_path, model_of(kind))
    refuse_export("rope_scaling=yarn cannot be exported", tmp_path,
                  model_of(rope_scaling="yarn", rope_factor=4.0))
    stretched = model_of(**WINDOWS | {"window_pattern": "SR"})
    refuse_export("rope_factor=50.0 with a window", tmp_path, stretched, "--rope_factor=50")
    refuse_export("already has attention_type", tmp_path, model_of(), "--attention_type=ssmax")
    (tmp_path / "x").mkdir()
    refused("exists, and is never overwritten", call, hf, "export", tmp_path / "ours",
            f"--out_dir={tmp_path}/x")
