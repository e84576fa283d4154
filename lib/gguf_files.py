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


def byte_level(vocab, merges, special, pre="gpt-2"):
    """
    Return a tokenizers.Tokenizer that merges bytes as GPT-2's does.

    vocab: {token: id}. merges: [(token, token)]. special: list of special tokens, such as the end
    of text. pre: name in `pre_tokenizers`.
    """
    from tokenizers import Tokenizer, decoders, models
    # ignore_merges: Llama 3's tokenizer first looks up the whole word, and so does llama.cpp
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre == "llama-bpe"))
    tokenizer.pre_tokenizer = pre_tokenizers()[pre]
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    return tokenizer


def pre_tokenizer_name(tokenizer):
    """
    Return llama.cpp's name for the pre-tokenizer of a tokenizer.json (parsed). UserError if it has
    none.
    """
    def steps(pre):
        """Return the pre-tokenizers that run one after the other, without trim_offsets, which does
        not change the split."""
        return [{key: value for key, value in step.items() if key != "trim_offsets"}
                for step in pre.get("pretokenizers", [pre])]

    model, normalizer = tokenizer["model"], tokenizer["normalizer"] or {"type": "NFC"}
    # llama.cpp does not normalize (NFC), which few texts need
    if model["type"] == "BPE" and not model["byte_fallback"] and normalizer["type"] == "NFC":
        for name, pre in pre_tokenizers().items():
            if steps(json.loads(pre.__getstate__())) == steps(tokenizer["pre_tokenizer"] or {}):
                return name
    raise UserError("the tokenizer of this checkpoint has no name in llama.cpp that hf.py knows; "
                    f"it knows {', '.join(pre_tokenizers())}: export to a folder instead")


def tokenizer_config(keys):
    """Return the text of a tokenizer_config.json for the tokenizer in a GGUF."""
    tokens = keys["tokenizer.ggml.tokens"]
    settings = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        if (i := keys.get(f"tokenizer.ggml.{key}_token_id")) is not None:
            settings[f"{name}_token"] = tokens[i]
    if template := keys.get("tokenizer.chat_template"):
        settings["chat_template"] = template
    return json.dumps(settings)


def tokenizer_json(keys):
    """
    Return the text of a tokenizer.json for the tokenizer in a GGUF. UserError for an unknown one.
    """
    # We do not use transformers' own conversion, because it does not split SmolLM's digits: it
    # makes two tokens of "  7" instead of three.
    model, pre = (keys.get(f"tokenizer.ggml.{name}") for name in ("model", "pre"))
    if model != "gpt2" or pre not in pre_tokenizers():
        raise UserError(f"hf.py does not know the tokenizer of this GGUF ({model}, {pre}); import "
                        "the model from its folder instead")
    from gguf import TokenType
    from tokenizers import AddedToken
    tokens = keys["tokenizer.ggml.tokens"]
    of_kind = {TokenType.CONTROL: [], TokenType.USER_DEFINED: []}
    for token, kind in zip(tokens, keys["tokenizer.ggml.token_type"], strict=True):
        of_kind.get(kind, []).append(token)
    merges = [tuple(merge.split(" ")) for merge in keys["tokenizer.ggml.merges"]]
    tokenizer = byte_level({token: i for i, token in enumerate(tokens)}, merges,
                           of_kind[TokenType.CONTROL], pre)
    # tokens such as <think>, which are never split
    tokenizer.add_tokens([AddedToken(token, normalized=False)
                          for token in of_kind[TokenType.USER_DEFINED]])
    return tokenizer.to_str()


def tokenizer_keys(vocab, vocab_size, generation, template, first):
    """
    Return the keys of a GGUF that describe a tokenizer.

    vocab: the text of its tokenizer.json. vocab_size: number of the model's embeddings. generation:
    content of generation_config.json. template: the chat template, or several by name, or None.
    first: the id with which a text begins.
    """
    from gguf import TokenType
    # to_str() writes today's format, also for a file of an older version of tokenizers
    tokenizer = json.loads(text.tokenizer(vocab).to_str())
    tokens = [f"[PAD{i}]" for i in range(vocab_size)]  # stays for embeddings without a token
    kinds = [int(TokenType.UNUSED)] * vocab_size
    for token, i in tokenizer["model"]["vocab"].items():
        if i < vocab_size:  # a compact vocabulary has no embeddings for the others
            tokens[i], kinds[i] = token, int(TokenType.NORMAL)
    for token in tokenizer["added_tokens"]:
        i, kind = token["id"], TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED
        tokens[i], kinds[i] = token["content"], int(kind)
    keys = {"model": "gpt2", "pre": pre_tokenizer_name(tokenizer), "tokens": tokens,
            "token_type": kinds, "merges": [" ".join(m) for m in tokenizer["model"]["merges"]]}
    for name in ("bos_token_id", "eos_token_id"):
        ids = generation.get(name)
        if ids is not None:  # if there are several ends, llama.cpp knows the others by their names
            keys[name] = ids[0] if type(ids) is list else ids
    keys["add_bos_token"] = first == keys.get("bos_token_id")
    keys = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    if type(template) is list:  # several, each with a name
        template = {one["name"]: one["template"] for one in template}.get("default")
    return keys | ({"tokenizer.chat_template": template} if template else {})


# -----------------------------------------------------------------------------
# models


def model_keys(architecture, config, theta, context_length, temperature):
    """
    Return the keys of a GGUF that describe a model of this GPTConfig with RoPE's `theta`.

    temperature: `a` in the factor 1 + a log n on q, for `mistral3`.
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
    if architecture == "mistral3":
        keys |= {
            "attention.temperature_scale": temperature,
            # this is L; YaRN is not used, because there is no rope.scaling.type
            "rope.scaling.original_context_length": 1,
            # Ollama's own engine reads `a` from this key, with 0.1 as default
            "rope.scaling_beta": temperature}
    return {f"{architecture}.{key}": value for key, value in keys.items()}


def to_arrays(architecture, tensors, config):
    """Return {name in a GGUF: numpy array} for tensors under transformers' names."""
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
        arrays[names.get_name(name, [".weight"])] = tensor.contiguous().numpy()
    return arrays


def write(path, architecture, keys, arrays):
    """Write a GGUF and read it back. UserError if any key or tensor differs. `path` may be a
    temporary name, so the messages leave it out."""
    import gguf
    writer = gguf.GGUFWriter(path, architecture)
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32,
           str: writer.add_string, list: writer.add_array}
    for key, value in keys.items():
        add[type(value)](key, value)
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with explain("the .gguf cannot be read back after it was written; try again, or export to a "
                 "folder"):
        read_keys, tensors = read(path)
    expected = {key: float(np.float32(value)) if type(value) is float else value
                for key, value in keys.items()}
    wrong = [key for key, value in expected.items() if read_keys.get(key) != value]
    wrong += [name for name, array in arrays.items()
              if name not in tensors or not np.array_equal(tensors[name].data, array)]
    if wrong:
        raise UserError("the .gguf differs from what was written to it "
                        f"({', '.join(wrong)[:200]}); try again, or export to a folder")


def llama_cpp(path, n_ctx):
    """
    Return a function that computes the logits (1, T, V) of a GGUF for ids (1, T) in llama.cpp, with
    T up to n_ctx. None if the package llama_cpp is not installed.
    """
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError):  # the last two if its C library is missing
        return None
    with explain("the installed llama-cpp-python cannot load this file, so none was written; "
                 "update it, or uninstall it to export without this check", ValueError):
        f32 = llama_cpp.GGML_TYPE_F32
        llm = llama_cpp.Llama(str(path), n_ctx=n_ctx, logits_all=True, type_k=f32, type_v=f32,
                              n_gpu_layers=0, verbose=False)

    def logits(ids):
        ids = ids[0].tolist()
        prompt = 9 * len(ids) // 10
        llm.reset()
        llm.eval(ids[:prompt])
        for i in ids[prompt:]:  # one by one, as in generation
            llm.eval([i])
        return torch.tensor(np.array(llm.scores[:len(ids)]))[None]

    return logits
