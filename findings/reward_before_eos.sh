#!/usr/bin/env bash
# A reward is read one token before the end, if the padding token is the end token
# Versions: transformers 5.24.0, torch 2.13.0 (random small LlamaForSequenceClassification).
# Guess: the score of a text is that of the last token that attention_mask shows.
# True: attention_mask is not asked. The score is that of the last token whose id is not pad_token_id. With pad =
#   eos, the usual choice where a model has no padding token, the end token is skipped although the mask shows it.
# Hurt: reward models and classifiers whose end token has a meaning, and masks that hide the end of a text.
# Output seen:
#   pad = eos: score -0.8757; at each token [0.4441, -0.8029, -0.8757, -0.0158]
#   pad of its own: score -0.2242; at each token [0.4441, -0.8029, -0.8757, -0.2242]
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0

"$python" - <<'PY'
import torch
from transformers import LlamaConfig, LlamaForSequenceClassification
def scores(pad):
    torch.manual_seed(0)
    model = LlamaForSequenceClassification(LlamaConfig(vocab_size=100, hidden_size=32, intermediate_size=32,
        num_hidden_layers=2, num_attention_heads=4, initializer_range=0.2, pad_token_id=pad, eos_token_id=2, num_labels=1))
    ids = torch.tensor([[11, 12, 13, 2]])  # three tokens and the end
    with torch.no_grad():
        score = model.eval()(ids, attention_mask=torch.ones_like(ids)).logits.item()
        places = model.score(model.model(ids).last_hidden_state)[0, :, 0].tolist()
    return score, places
for name, pad, place in (("pad = eos", 2, 2), ("pad of its own", 0, 3)):
    score, places = scores(pad)
    print(f"{name}: score {score:.4f}; at each token {[round(value, 4) for value in places]}")
    assert abs(score - places[place]) < 1e-5 and abs(score - places[5 - place]) > 1e-3
PY
