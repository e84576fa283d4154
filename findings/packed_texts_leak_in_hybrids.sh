#!/usr/bin/env bash
# Packed texts are kept apart in Llama; in Jamba, MiniMax and RecurrentGemma each one reads the texts before it
# Versions: transformers 5.24.0, torch 2.13.0 (random small models, CPU, two texts of 20 tokens).
# Guess: DataCollatorWithFlattening packs the texts of a batch and marks their borders with position_ids, seq_idx and
#   cu_seq_lens; a model that accepts these keeps the texts apart, as Llama does without flash attention too, or
#   refuses, as Bamba does without its kernels.
# True: only attention is cut. The recurrent layers of Jamba, MiniMax, RecurrentGemma and Mamba 2 go on through the
#   border, with all markings, without a word. Bamba and LFM2 refuse seq_idx, but with the collator's defaults (only
#   position_ids) they go on as well.
# Hurt: fine-tuning of hybrids with packing: a text's loss depends on what it is packed with, and short texts are
#   trained in a state that they never have alone.
# Output seen:
#   llama: another first text changes the second one's logits by 0 (loss alone 5.52, packed 5.52) with position_ids, 0 (loss alone 5.52, packed 5.52) with all markings
#   jamba: another first text changes the second one's logits by 7.4 (loss alone 5.71, packed 5.96) with position_ids, 7.4 (loss alone 5.71, packed 5.96) with all markings
#   minimax: another first text changes the second one's logits by 8.4 (loss alone 6.01, packed 5.86) with position_ids, 8.4 (loss alone 6.01, packed 5.86) with all markings
#   recurrent_gemma: another first text changes the second one's logits by 4.6 (loss alone 7.01, packed 6.79) with position_ids, 4.6 (loss alone 7.01, packed 6.79) with all markings
#   mamba2: another first text changes the second one's logits by 5.5 (loss alone 5.50, packed 5.77) with position_ids, 5.5 (loss alone 5.50, packed 5.77) with all markings
#   bamba: another first text changes the second one's logits by 7.3 (loss alone 6.11, packed 6.06) with position_ids, refused with all markings
#   lfm2: another first text changes the second one's logits by 6.1 (loss alone 5.98, packed 5.69) with position_ids, refused with all markings
. "$(dirname "$0")/common.sh"
venv torch==2.13.0 numpy==2.4.6 transformers==5.24.0

"$python" - <<'PY'
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DataCollatorWithFlattening
mamba = dict(mamba_n_heads=8, mamba_d_head=16, mamba_n_groups=1, mamba_d_state=8, mamba_chunk_size=16)
kinds = {"llama": {},
    "jamba": dict(mamba_d_state=8, attn_layer_period=2, attn_layer_offset=1, num_experts=2, num_experts_per_tok=1),
    "minimax": dict(layer_types=["linear_attention", "full_attention"], block_size=16, num_local_experts=2, head_dim=16),
    "recurrent_gemma": dict(lru_width=64, block_types=["recurrent", "attention"], head_dim=16),
    "mamba2": dict(state_size=8, num_heads=8, head_dim=16, n_groups=1, chunk_size=16),
    "bamba": dict(attn_layer_indices=[1], **mamba), "lfm2": dict(layer_types=["conv", "full_attention"])}
torch.manual_seed(0)
first, other_first, second = torch.randint(3, 100, (3, 20)).tolist()
marked = dict(return_seq_idx=True, return_flash_attn_kwargs=True)
for kind, options in kinds.items():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, vocab_size=100, hidden_size=64,
        intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, **options)).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    results = {}
    for name, flags in (("position_ids", {}), ("all markings", marked)):
        def logits(*texts):
            batch = DataCollatorWithFlattening(return_tensors="pt", **flags)([{"input_ids": text} for text in texts])
            batch.pop("labels")
            with torch.no_grad():
                return model(**batch, use_cache=False).logits[0, -20:]
        try:
            alone, packed, packed_otherwise = logits(second), logits(first, second), logits(other_first, second)
        except ValueError:
            results[name] = "refused"
            continue
        loss = [torch.nn.functional.cross_entropy(x[:-1], torch.tensor(second[1:])).item() for x in (alone, packed)]
        results[name] = f"{(packed - packed_otherwise).abs().max():.2g} (loss alone {loss[0]:.2f}, packed {loss[1]:.2f})"
        apart = (packed - alone).abs().max() < 1e-4
        assert apart == (kind == "llama") and (packed - packed_otherwise).abs().max().gt(1) == (not apart)
    print(f"{kind}: another first text changes the second one's logits by", ", ".join(
        f"{result} with {name}" for name, result in results.items()))
    assert (results["all markings"] == "refused") == (kind in ("bamba", "lfm2")) and results["position_ids"] != "refused"
PY
