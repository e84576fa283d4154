"""
Read and write GGUF, the single file that llama.cpp and Ollama run: keys, tensors and tokenizer.

llama.cpp's architecture `mistral3` multiplies the query by 1 + a log(1 + floor(position / L)). With
L = 1 this is 1 + a log n, so that it can compute SSMax without a change (llama.cpp:
src/models/mistral3.cpp, src/llama-graph.cpp). hf.py decides which architecture a checkpoint gets.
"""
import json

import numpy as np
import torch

from lib import text
from lib.runtime import UserError, explain

# {beginning of the name of a class of transformers: llama.cpp's architecture}
ARCHITECTURES = {"Llama": "llama", "Qwen3": "qwen3", "Ministral3": "mistral3"}


def read(path):
    """Return ({key: value}, {name: tensor of the package gguf}) of the GGUF at `path`."""
    from gguf import GGUFReader
    reader = GGUFReader(path)
    return ({key: field.contents() for key, field in reader.fields.items()},
            {tensor.name: tensor for tensor in reader.tensors})


# -----------------------------------------------------------------------------
# tokenizers

WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def pre_tokenizers():
    """
    Return {llama.cpp's name: tokenizers.PreTokenizer}. A pre-tokenizer splits text into pieces
    before bytes are merged into tokens.
    """
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split
    gpt2 = ByteLevel(add_prefix_space=False)
    by_name = {"gpt-2": gpt2, "smollm": Sequence([Digits(individual_digits=True), gpt2])}
    for name, digits in (("llama-bpe", r"\p{N}{1,3}"), ("qwen2", r"\p{N}")):
        pattern = Regex(f"{WORDS}|{digits}|{OTHERS}")
        by_name[name] = Sequence([Split(pattern, "isolated"),
                                ByteLevel(add_prefix_space=False, use_regex=False)])
    return by_name


def byte_level(vocab, merges, end_of_text, pre="gpt-2"):
    """
    Return a tokenizers.Tokenizer that merges bytes as GPT-2's does.

    vocab: {token: id}. merges: [(token, token)]. end_of_text: list of special tokens. pre: name in
    `pre_tokenizers`.
    """
    from tokenizers import Tokenizer, decoders, models
    # ignore_merges: Llama 3's tokenizer first looks up the whole word, and so does llama.cpp
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre == "llama-bpe"))
    tokenizer.pre_tokenizer = pre_tokenizers()[pre]
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(end_of_text)
    return tokenizer


def pre_tokenizer_name(tokenizer):
    """
    Return llama.cpp's name for the pre-tokenizer of a tokenizer.json (parsed). UserError if it has
    none.
    """
    def parts(pre):
        """Return the pre-tokenizers of a nested Sequence in one list."""
        # trim_offsets does not change the split
        pre = {key: value for key, value in (pre or {}).items() if key != "trim_offsets"}
        inner = pre.get("pretokenizers")
        if not inner:
            return [pre]
        return [part for p in inner for part in parts(p)]

    model, normalizer = tokenizer["model"], tokenizer["normalizer"] or {"type": "NFC"}
    # llama.cpp does not normalize (NFC), which few texts need
    if model["type"] == "BPE" and not model["byte_fallback"] and normalizer["type"] == "NFC":
        for name, pre in pre_tokenizers().items():
            if parts(json.loads(pre.__getstate__())) == parts(tokenizer["pre_tokenizer"]):
                return name
    raise UserError("the tokenizer of this checkpoint has no name in llama.cpp that hf.py knows; "
                    f"it knows {', '.join(pre_tokenizers())}: export to a folder instead")


def tokenizer_config(fields):
    """Return what a tokenizer_config.json would contain, from the keys of a GGUF."""
    ids = {key: fields.get(f"tokenizer.ggml.{name}_token_id") for key, name in (
        ("bos_token", "bos"), ("eos_token", "eos"), ("pad_token", "padding"),
        ("unk_token", "unknown"))}
    tokens = fields["tokenizer.ggml.tokens"]
    settings = {key: tokens[i] for key, i in ids.items() if i is not None}
    if template := fields.get("tokenizer.chat_template"):
        settings["chat_template"] = template
    return settings


def tokenizer_json(fields):
    """
    Return the text of a tokenizer.json for the tokenizer in a GGUF. UserError for an unknown one.
    """
    # We do not use transformers' own conversion, because it does not split SmolLM's digits: it
    # makes two tokens of "  7" instead of three.
    model, pre = (fields.get(f"tokenizer.ggml.{name}") for name in ("model", "pre"))
    if model != "gpt2" or pre not in pre_tokenizers():
        raise UserError(f"hf.py does not know the tokenizer of this GGUF ({model}, {pre}); import "
                        "the model from its folder instead")
    from gguf import TokenType
    from tokenizers import AddedToken
    tokens, merges, kinds = (fields[f"tokenizer.ggml.{name}"]
                             for name in ("tokens", "merges", "token_type"))
    of_kind = {kind: [token for token, k in zip(tokens, kinds, strict=True) if k == kind]
               for kind in (TokenType.CONTROL, TokenType.USER_DEFINED)}
    tokenizer = byte_level(
        {token: i for i, token in enumerate(tokens)},
        [tuple(merge.split(" ")) for merge in merges], of_kind[TokenType.CONTROL], pre)
    # tokens such as <think>, which are never split
    tokenizer.add_tokens([AddedToken(token, normalized=False)
                          for token in of_kind[TokenType.USER_DEFINED]])
    return tokenizer.to_str()


def tokenizer_keys(vocab, vocab_size):
    """
    Return the keys of a GGUF that describe a tokenizer. vocab: the text of its tokenizer.json.
    vocab_size: number of the model's embeddings.
    """
    from gguf import TokenType
    # to_str() writes today's format, also for a file of an older version of tokenizers
    tokenizer = json.loads(text.tokenizer(vocab).to_str())
    tokens = [f"[PAD{i}]" for i in range(vocab_size)]  # stays for embeddings without a token
    kinds = [TokenType.UNUSED] * vocab_size
    for token, i in tokenizer["model"]["vocab"].items():
        tokens[i], kinds[i] = token, TokenType.NORMAL
    for token in tokenizer["added_tokens"]:
        tokens[token["id"]] = token["content"]
        kinds[token["id"]] = TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre_tokenizer_name(tokenizer),
            "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [int(k) for k in kinds],
            "tokenizer.ggml.merges": [" ".join(m) for m in tokenizer["model"]["merges"]]}


# -----------------------------------------------------------------------------
# models


def model_keys(architecture, config, theta, context_length, temperature):
    """
    Return the keys of a GGUF that describe a model of this GPTConfig with RoPE's `theta`.

    temperature: `a` in the factor 1 + a log n on q; None for `llama` and `qwen3`.
    """
    width = config.n_embd // config.n_head
    keys = {
        "context_length": context_length, "embedding_length": config.n_embd,
        "block_count": config.n_layer, "feed_forward_length": config.n_inner,
        "attention.head_count": config.n_head,
        "attention.head_count_kv": config.n_kv_head or config.n_head,
        "attention.key_length": width, "attention.value_length": width,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "rope.dimension_count": width, "rope.freq_base": theta}
    if temperature is not None:
        keys |= {
            "attention.temperature_scale": temperature,
            # this is L; YaRN is not used, because there is no rope.scaling.type
            "rope.scaling.original_context_length": 1,
            # Ollama's own engine reads `a` from this key, with 0.1 as default
            "rope.scaling_beta": temperature}
    return {f"{architecture}.{key}": value for key, value in keys.items()}


def to_arrays(architecture, tensors, config, bf16):
    """
    Return {name in a GGUF: numpy array} for tensors under transformers' names. bf16: convert the
    matrices.
    """
    import gguf
    arch = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(arch, config.n_layer)
    width, arrays = config.n_embd // config.n_head, {}
    for name, tensor in tensors.items():
        if architecture != "qwen3" and name.endswith(("q_proj.weight", "k_proj.weight")):
            # RoPE rotates the pairs (i, i + D/2) here, and (2i, 2i + 1) in llama.cpp's llama and
            # mistral3; its qwen3 rotates as we do.
            tensor = tensor.view(-1, 2, width // 2, tensor.size(1)).transpose(1, 2)
            tensor = tensor.reshape(-1, tensor.size(-1))
        array = tensor.contiguous().numpy()
        if bf16 and array.ndim > 1:  # llama.cpp needs vectors (of norms) in F32
            array = gguf.quantize(array, gguf.GGMLQuantizationType.BF16)
        arrays[names.get_name(name, [".weight"])] = array
    return arrays


def write(path, architecture, keys, arrays):
    """Write a GGUF and read it back. UserError if any key or tensor differs. `path` may be a
    temporary name, so the messages leave it out."""
    import gguf
    bf16 = gguf.GGMLQuantizationType.BF16
    writer = gguf.GGUFWriter(path, architecture)
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32,
           str: writer.add_string, list: writer.add_array}
    for key, value in keys.items():
        add[type(value)](key, value)
    for name, array in arrays.items():  # an array of bytes (uint8) holds bf16
        writer.add_tensor(name, array, raw_dtype=bf16 if array.dtype == np.uint8 else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with explain("the .gguf cannot be read back after it was written; try again, or export to a "
                 "folder"):
        fields, tensors = read(path)
    expected = {key: float(np.float32(value)) if type(value) is float else value
                for key, value in keys.items()}
    wrong = [key for key, value in expected.items() if fields.get(key) != value]
    wrong += [name for name, array in arrays.items()
              if name not in tensors or not np.array_equal(tensors[name].data, array)]
    if wrong or tensors.keys() != arrays.keys():
        raise UserError("the .gguf differs from what was written to it "
                        f"({', '.join(wrong)[:200]}); try again, or export to a folder")


def open_in_llama_cpp(path, n_ctx, cache="f32", logits_all=True):
    """
    Return a llama_cpp.Llama of a GGUF, on the CPU, for contexts of up to `n_ctx` tokens.

    cache: type of its KV cache, f32 or f16 (llama.cpp's default). logits_all: keep the logits of
    every position, as `llama_cpp_logits` needs them.
    """
    import llama_cpp
    kind = {"f32": llama_cpp.GGML_TYPE_F32, "f16": llama_cpp.GGML_TYPE_F16}[cache]
    return llama_cpp.Llama(str(path), n_ctx=n_ctx, logits_all=logits_all, type_k=kind, type_v=kind,
                           n_gpu_layers=0, verbose=False)


def llama_cpp_logits(llm, ids, prompt):
    """
    Return the logits (T, V) of a llama_cpp.Llama for the list `ids`. The first `prompt` ids go in
    together, and the others one by one, as in generation.
    """
    llm.reset()
    llm.eval(ids[:prompt])
    for i in ids[prompt:]:
        llm.eval([i])
    return torch.tensor(np.array(llm.scores[:len(ids)]))
