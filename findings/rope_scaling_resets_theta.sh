#!/usr/bin/env bash
# YaRN written into config.json as the model's page says resets theta to 10,000
# Versions: transformers 5.24.0, torch 2.13.0 (random small Qwen2, theta 1,000,000).
# Guess: "rope_scaling" in config.json adds YaRN and keeps the theta of the file, as it does in the files of
#   version 4.
# True: version 5 saves theta inside "rope_parameters". Where a file has both keys, rope_scaling replaces the
#   other one whole, and the missing theta becomes the default of 10,000. A "rope_theta" that is added to such a
#   file is ignored. Nothing is reported in either case.
# Hurt: whoever follows the pages of Qwen on a model that version 5 has saved (after a fine-tuning, for instance).
# Output seen:
#   as saved: theta 1,000,000, slowest frequency 5.6e-06
#   version 4's file with rope_scaling: theta 1,000,000, slowest frequency 1.4e-06
#   version 5's file with rope_scaling: theta 10,000, slowest frequency 7.9e-05
#   version 5's file with rope_theta 5e6: theta 1,000,000, slowest frequency 5.6e-06
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0

"$python" - "$work" <<'PY'
import json, sys
from pathlib import Path
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM
yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
Qwen2ForCausalLM(Qwen2Config(vocab_size=100, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
    num_attention_heads=4, max_position_embeddings=2048, rope_theta=1e6)).save_pretrained(sys.argv[1])
file = Path(sys.argv[1], "config.json")
saved = json.loads(file.read_text())
version_4 = {key: value for key, value in saved.items() if key != "rope_parameters"} | {"rope_theta": 1e6}
def load(config):
    file.write_text(json.dumps(config))
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
    return model.config.rope_parameters["rope_theta"], model.model.rotary_emb.inv_freq[-1].item()
cases = {"as saved": load(saved), "version 4's file with rope_scaling": load(version_4 | {"rope_scaling": yarn}),
    "version 5's file with rope_scaling": load(saved | {"rope_scaling": yarn}),
    "version 5's file with rope_theta 5e6": load(saved | {"rope_theta": 5e6})}
for name, (theta, slowest) in cases.items():
    print(f"{name}: theta {theta:,.0f}, slowest frequency {slowest:.2g}")
theta = [theta for theta, _ in cases.values()]
assert theta == [1e6, 1e6, 1e4, 1e6]
PY
