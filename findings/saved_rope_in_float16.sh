#!/usr/bin/env bash
# openvino: save_model rounds RoPE's frequencies to float16, and the model then runs with them in float32
# Versions: openvino 2026.4.1, transformers 5.24.0, torch 2.13.0 (CPU, inference in float32; Llama of 2 layers, random).
# Guess: save_model writes the weights in float16, as its default says, which costs the third digit of a logit. RoPE is
#   computed in float32 with the frequencies of the model.
# True: inv_freq is a constant like any other and is rounded, too: by up to 1/2,048 of itself, and by more below 6e-5,
#   where float16 has fewer bits. The angle is the position times the frequency, so the error grows with the length:
#   with theta 10,000 it is up to 1 radian at a distance of 4,096, and 32 radians (five turns) at 131,072. Of the score
#   of a query and a key, only the mean cosine of these errors is left. The other rounded weights cost the same at each
#   position. compress_to_fp16=False keeps the model exact.
# Hurt: long texts in models that are converted to OpenVINO; the first hundreds of tokens are right.
# Output seen:
#   theta 10,000, left of a score at a distance of 256, 1,024, 4,096, 16,384, 131,072: 1.00 1.00 0.98 0.85 0.64
#   theta 500,000, left of a score at a distance of 256, 1,024, 4,096, 16,384, 131,072: 1.00 1.00 0.99 0.93 0.73
#   theta 10,000,000, left of a score at a distance of 256, 1,024, 4,096, 16,384, 131,072: 1.00 1.00 0.99 0.94 0.73
#   rounded weights, PyTorch: error of the logits at tokens 1-64, 449-512, 4,033-4,096: 0.0030 0.0030 0.0027
#   save_model: error of the logits at tokens 1-64, 449-512, 4,033-4,096: 0.0040 0.0250 0.0950
#   save_model, compress_to_fp16=False: error of the logits at tokens 1-64, 449-512, 4,033-4,096: 0.0000 0.0000 0.0000
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0 openvino==2026.4.1

"$python" - "$work" <<'PY' 2> "$work/log" || { cat "$work/log"; exit 1; }
import sys
import openvino
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

def save_and_load(module, inputs, **options):
    path = f"{sys.argv[1]}/{len(options)}.xml"
    openvino.save_model(openvino.convert_model(module, example_input=inputs), path, **options)
    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda *inputs: torch.tensor(compiled([tensor.numpy() for tensor in inputs])[0])

class Angles(torch.nn.Module):                                 # cosine and sine of each angle, from the model's code
    def __init__(self, theta):
        super().__init__()
        config = LlamaConfig(head_dim=128, rope_parameters={"rope_type": "default", "rope_theta": theta})
        self.rope = LlamaRotaryEmbedding(config)
    def forward(self, x, positions):
        cosine, sine = self.rope(x, positions)
        return torch.cat((cosine[..., :64], sine[..., :64]), -1)

distances = torch.tensor([[256, 1024, 4096, 16384, 131072]])
left = {}
for theta in (1e4, 5e5, 1e7):
    module, x = Angles(theta), torch.zeros(1, 5, 128)
    exact = module(x, distances).view(5, 2, 64)
    for options in ({}, {"compress_to_fp16": False}):
        rotation = save_and_load(module, (x, distances), **options)(x, distances).view(5, 2, 64)
        left[theta, len(options)] = (exact * rotation).sum(1).mean(-1)     # mean cosine of the angle's errors
    print(f"theta {theta:,.0f}, left of a score at a distance of 256, 1,024, 4,096, 16,384, 131,072: "
          + " ".join(f"{share:.2f}" for share in left[theta, 0]))

class Logits(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
    def forward(self, ids, mask):
        return self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits

torch.manual_seed(0)
config = LlamaConfig(vocab_size=64, hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
                     max_position_embeddings=4096, initializer_range=0.1)
model, rounded = LlamaForCausalLM(config).eval(), LlamaForCausalLM(config).eval()
rounded.load_state_dict({name: weight.half().float() for name, weight in model.state_dict().items()})
ids = torch.randint(64, (1, 4096))
short, inputs = (ids[:, :16], torch.ones_like(ids[:, :16])), (ids, torch.ones_like(ids))
errors = {}
with torch.no_grad():
    exact = Logits(model)(*inputs)
    for name, run in (("rounded weights, PyTorch", Logits(rounded)),
                      ("save_model", save_and_load(Logits(model), short)),
                      ("save_model, compress_to_fp16=False",
                       save_and_load(Logits(model), short, compress_to_fp16=False))):
        error = (run(*inputs) - exact).abs().amax(-1)[0]
        errors[name] = [error[:64].mean().item(), error[448:512].mean().item(), error[-64:].mean().item()]
        print(f"{name}: error of the logits at tokens 1-64, 449-512, 4,033-4,096: "
              + " ".join(f"{value:.4f}" for value in errors[name]))
assert all((left[theta, 1] > 0.999).all() for theta in (1e4, 5e5, 1e7))
assert all(left[theta, 0][-1] < 0.8 for theta in (1e4, 5e5, 1e7))
weights, saved, kept = errors.values()
assert saved[0] < 2 * weights[0] and saved[2] > 8 * weights[2] and max(kept) < 1e-4
PY
