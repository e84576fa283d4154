"""
Read and write GGUF, the single file that llama.cpp and Ollama run: keys, tensors and tokenizer.

llama.cpp's architecture `mistral3` multiplies the query by 1 + a log(1 + floor(position / L)). With
L = 1 this is 1 + a log n, so that it can compute SSMax without a change (llama.cpp:
src/models/mistral3.cpp, src/llama-graph.cpp). hf.py decides which architecture a checkpoint gets.
"""
import json

from lib import text
from lib.errors import UserError


def read(path):
    """Return ({key: value}, {name: tensor of the package gguf}) of the GGUF at `path`. ValueError
    if it is cut off."""
    from gguf import GGUFReader

    class Reader(GGUFReader):
        def _get(self, offset, dtype, count=1, **options):
            values = super()._get(offset, dtype, count, **options)
            # without this check, an array whose length is a lie is read far beyond the end
            if len(values) < count:
                raise ValueError(f"it ends before byte {offset}, where {count} numbers should be")
            return values

    reader = Reader(path)
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
    if not model.get("merges"):
        raise UserError("the tokenizer of this checkpoint has no merges, and llama.cpp does not "
                        "load such a model: export to a folder instead")
    # llama.cpp does not normalize (NFC), which few texts need
    if model["type"] == "BPE" and not model["byte_fallback"] and normalizer["type"] == "NFC":
        for name, pre in pre_tokenizers().items():
            if steps(json.loads(pre.__getstate__())) == steps(tokenizer["pre_tokenizer"] or {}):
                return name
    raise UserError("the tokenizer of this checkpoint has no name in llama.cpp that hf.py knows; "
                    f"it knows {', '.join(pre_tokenizers())}: export to a folder instead")


def tokenizer_config(keys):
    """Return what a tokenizer_config.json would contain, from the keys of a GGUF."""
    tokens = keys["tokenizer.ggml.tokens"]
    settings = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        if (i := keys.get(f"tokenizer.ggml.{key}_token_id")) is not None:
            settings[f"{name}_token"] = tokens[i]
    if template := keys.get("tokenizer.chat_template"):
        settings["chat_template"] = template
    return settings


def tokenizer_json(keys):
    """
    Return the text of a tokenizer.json for the tokenizer in a GGUF. UserError for an unknown one.
    """
    # We do not use transformers' own conversion, because it does not split SmolLM's digits: it
    # makes two tokens of "  7" instead of three.
    model, pre = keys.get("tokenizer.ggml.model"), keys.get("tokenizer.ggml.pre")
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


def tokenizer_keys(vocab, vocab_size, settings, generation):
    """
    Return the keys of a GGUF that describe a tokenizer.

    vocab: the text of its tokenizer.json. vocab_size: number of the model's embeddings. settings,
    generation: contents of tokenizer_config.json and generation_config.json.
    """
    from gguf import TokenType
    loaded = text.tokenizer(vocab)
    # to_str() writes today's format, also for a file of an older version of tokenizers
    tokenizer = json.loads(loaded.to_str())
    tokens = [f"[PAD{i}]" for i in range(vocab_size)]  # stays for embeddings without a token
    kinds = [int(TokenType.UNUSED)] * vocab_size
    for token, i in tokenizer["model"]["vocab"].items():
        if i < vocab_size:  # a compact vocabulary has no embeddings for the others
            tokens[i], kinds[i] = token, int(TokenType.NORMAL)
    for token in tokenizer["added_tokens"]:
        kind = TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED
        tokens[token["id"]], kinds[token["id"]] = token["content"], int(kind)
    keys = {"model": "gpt2", "pre": pre_tokenizer_name(tokenizer), "tokens": tokens,
            "token_type": kinds, "merges": [" ".join(m) for m in tokenizer["model"]["merges"]]}
    for name in ("bos_token_id", "eos_token_id"):
        i = generation.get(name)
        if type(i) is list:  # several ends: llama.cpp knows the others by their names
            i = i[0]
        if i is not None:
            keys[name] = i
    keys["add_bos_token"] = loaded.encode("a").ids[0] == keys.get("bos_token_id")
    keys = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    template = settings.get("chat_template")
    if type(template) is list:  # several, each with a name
        template = {one["name"]: one["template"] for one in template}.get("default")
    if template:
        keys["tokenizer.chat_template"] = template
    return keys


# -----------------------------------------------------------------------------
# models


def model_keys(architecture, config):
    """Return the keys of a GGUF that describe a model with this config of transformers."""
    keys = {
        "context_length": config.max_position_embeddings, "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers, "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim, "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.dimension_count": config.head_dim,
        "rope.freq_base": config.rope_parameters["rope_theta"]}
    if architecture == "mistral3":  # a and L of the factor 1 + a log(1 + floor(position / L))
        rope = config.rope_parameters
        keys |= {
            "attention.temperature_scale": rope["llama_4_scaling_beta"],
            # YaRN is not used, because there is no rope.scaling.type
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            # Ollama's own engine reads a from this key, with 0.1 as default
            "rope.scaling_beta": rope["llama_4_scaling_beta"]}
    return {f"{architecture}.{key}": value for key, value in keys.items()}


def tensor_names(architecture, hf_model):
    """Return {name in transformers: name in a GGUF} of a model's tensors."""
    import gguf
    arch = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(arch, hf_model.config.num_hidden_layers)
    return {name: names.get_name(name, [".weight"]) for name in hf_model.state_dict()}


def unknown_parts(keys, tensors, hf_model):
    """
    Return the names of what a GGUF says about its model and a model of transformers made from it
    lacks, because transformers skips it silently. Llama 3.1 has its scaled RoPE in a tensor.
    """
    architecture, config = keys["general.architecture"], hf_model.config
    known = {*model_keys(architecture, config), f"{architecture}.vocab_size",
             f"{architecture}.tensor_data_layout"}  # how another program had stored the weights
    rotated = f"{architecture}.rope.dimension_count"
    if keys.get(rotated, config.head_dim) != config.head_dim:  # only a part of each head
        known.remove(rotated)
    of_model = {key for key in keys if key.startswith(f"{architecture}.")}
    names = tensor_names(architecture, hf_model).values()
    return sorted((of_model - known) | (tensors.keys() - names))


def write(path, architecture, keys, hf_model):
    """Write a GGUF with these keys and the weights of a model of transformers, in fp32."""
    import gguf
    writer = gguf.GGUFWriter(path, architecture)
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32,
           str: writer.add_string, list: writer.add_array}
    for key, value in keys.items():
        add[type(value)](key, value)
    names = tensor_names(architecture, hf_model)
    for name, tensor in hf_model.state_dict().items():
        if architecture != "qwen3" and name.endswith(("q_proj.weight", "k_proj.weight")):
            # RoPE rotates the pairs (i, i + D/2) here, and (2i, 2i + 1) in llama.cpp's llama and
            # mistral3; its qwen3 rotates as we do.
            heads = tensor.unflatten(0, (-1, 2, hf_model.config.head_dim // 2))
            tensor = heads.transpose(1, 2).reshape(tensor.shape)
        writer.add_tensor(names[name], tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
