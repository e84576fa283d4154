#!/usr/bin/env bash
# transformers: with whole_word_mask a text is one word for many tokenizers: it is masked as a whole, or not at all
# Versions: transformers 5.24.0, tokenizers 0.23.3, torch 2.13.0 (CPU; tokenizers made on the spot).
# Guess: about 15 % of the words of each text are masked, whatever the tokenizer.
# True: a word starts where there is a gap between the offsets of two tokens. Tokenizers that count the space as part
#   of the token have no gaps: DebertaV2Tokenizer, and byte-level BPE whose post-processor does not trim the offsets,
#   such as a template for [CLS] and [SEP]. Over many texts the mean share of masked tokens is right, so nothing looks
#   odd; but most texts have no mask, and the others have nothing else. BERT, RoBERTa and XLM-R are right.
# Hurt: DeBERTa v2 and v3 that are adapted with whole_word_mask; encoders with a byte-level tokenizer of their own.
# Output seen:
#   WordPiece of BERT: 15.0 % of the tokens masked; no mask in 0.0 % of the texts, masks alone in 0.0 %
#   byte-level BPE, RobertaProcessing: 15.0 % of the tokens masked; no mask in 0.0 % of the texts, masks alone in 0.0 %
#   byte-level BPE, template: 14.0 % of the tokens masked; no mask in 86.0 % of the texts, masks alone in 14.0 %
#   DebertaV2Tokenizer: 14.0 % of the tokens masked; no mask in 86.0 % of the texts, masks alone in 14.0 %
. "$(dirname "$0")/common.sh"
venv transformers==5.24.0 tokenizers==0.23.3 torch==2.13.0 numpy==2.4.6

"$python" - 2> /dev/null <<'PY' | grep :
import random
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import DataCollatorForLanguageModeling, DebertaV2Tokenizer, PreTrainedTokenizerFast

random.seed(0)
words = "the model reads a long text and finds needles in it while attention fades with distance between tokens".split()
texts = [" ".join(random.choices(words, k=40)) for _ in range(400)]
special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
template = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
roberta = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2), trim_offsets=True, add_prefix_space=False)

def trained(model, pieces, trainer, post_processor):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pieces
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = post_processor
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
                                   sep_token="[SEP]", mask_token="[MASK]")

def byte_level(post_processor):
    trainer = trainers.BpeTrainer(special_tokens=special, vocab_size=400,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    return trained(models.BPE(), pre_tokenizers.ByteLevel(add_prefix_space=False), trainer, post_processor)

unigrams = [("[PAD]", 0.0), ("[CLS]", 0.0), ("[SEP]", 0.0), ("[UNK]", 0.0)]
unigrams += [("\u2581" + word, -3.0) for word in sorted(set(words))] + [("[MASK]", 0.0)]
tokenizers = {
    "WordPiece of BERT": trained(models.WordPiece(unk_token="[UNK]"), pre_tokenizers.BertPreTokenizer(),
                                 trainers.WordPieceTrainer(special_tokens=special, vocab_size=200), template),
    "byte-level BPE, RobertaProcessing": byte_level(roberta),
    "byte-level BPE, template": byte_level(template),
    "DebertaV2Tokenizer": DebertaV2Tokenizer(vocab=unigrams),
}
for name, fast in tokenizers.items():
    encoded = fast(texts, padding=True, return_offsets_mapping=True, return_special_tokens_mask=True)
    rows = [{key: encoded[key][i] for key in encoded} for i in range(len(texts))]
    torch.manual_seed(0)
    collator = DataCollatorForLanguageModeling(fast, mlm_probability=0.15, whole_word_mask=True, mask_replace_prob=1.0,
                                               random_replace_prob=0.0)
    batch = collator(rows)
    share = (batch["labels"] != -100).sum(dim=1) / (batch["attention_mask"].sum(dim=1) - 2)
    mean, none, alone = (x.float().mean().item() for x in (share, share == 0, share == 1))
    print(f"{name}: {100 * mean:.1f} % of the tokens masked; "
          f"no mask in {100 * none:.1f} % of the texts, masks alone in {100 * alone:.1f} %")
    assert none + alone > 0.99 if name in ("byte-level BPE, template", "DebertaV2Tokenizer") else none + alone < 0.01
PY
