"""SSMax in Hugging Face models: each text alone in float64, by Eq. 2, is what they must give."""
import copy
import math
from types import SimpleNamespace

import pytest
import torch
from conftest import program
from reference import farthest
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

transformers = pytest.importorskip("transformers")

from transformers import AutoConfig, AutoModelForCausalLM, modeling_layers  # noqa: E402
from transformers.modeling_utils import AttentionInterface  # noqa: E402

from ssmax_hf import add_ssmax, keys_seen  # noqa: E402

V = 97
IDS = torch.arange(3, 40)[None]
SMALL = {
    "vocab_size": V, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "initializer_range": 0.25,
    "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WINDOW = {"sliding_window": 8,
          "layer_types": ["sliding_attention", "full_attention", "full_attention"]}
DENSE = ["dense"] * 3
FAMILIES = {  # one of each kind
    "llama": {},
    "qwen3": {},  # norms on queries and keys
    "gemma2": {**WINDOW, "query_pre_attn_scalar": 16},  # caps its logits
    "mistral": {"sliding_window": 8},  # windows in all layers
    "gpt_neox": {"rotary_pct": 0.5},  # other names
    "smollm3": {**WINDOW, "use_sliding_window": True, "no_rope_layers": [1, 0, 0]},
    "afmoe": {**WINDOW, "num_dense_layers": 3},  # gives the mask by its name
    "laguna": {**WINDOW, "num_attention_heads_per_layer": [2, 2, 4], "mlp_layer_types": DENSE},
    "llama4_text": {  # two of its classes say that they are the decoder
        "attention_chunk_size": 64, "no_rope_layers": [1, 0, 0], "intermediate_size_mlp": 96,
        "num_local_experts": 2, "attn_temperature_tuning": False},
    "deepseek_v3": {  # queries and values differ in size
        "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8, "v_head_dim": 24, "head_dim": 8, "first_k_dense_replace": 3}}
# transformers calls the argument `cache`, and before 5.24 `past_key_values`.
CACHE = "past_key_values"
if "cache" in transformers.LlamaForCausalLM.forward.__code__.co_varnames:
    CACHE = "cache"


def build(family="llama", **settings):
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SMALL, **FAMILIES.get(family, {}), **settings})
    # sdpa cannot cap logits, and Mamba has no attention
    implementation = "eager" if family in ("gemma2", "mamba") else "sdpa"
    return AutoModelForCausalLM.from_config(
        config, attn_implementation=implementation, dtype=torch.float32).eval()


def with_ssmax(family="llama", kind="ssmax_bias", **settings):
    """A model whose s and b differ by head and layer. Every layer of Mistral has a window, and so
    it has SSMax in windows."""
    model = build(family, **settings)
    return randomize(add_ssmax(model, kind, layers=[0, 1, 2] if family == "mistral" else None))


def factors(model):
    return {module.layer_idx: module.ssmax_norm for module in model.modules()
            if hasattr(module, "ssmax_norm")}


def randomize(model):
    generator = torch.Generator().manual_seed(1)
    for factor in factors(model).values():
        for p in factor.parameters():
            p.data = 0.1 + 0.5 * torch.rand(p.shape, generator=generator)
    return model


def texts():
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(3, V, (length,), generator=generator) for length in (31, 19)]


def eq_2(module, q, k, v, attention_mask, scaling, softcap=None, sliding_window=None, **_):
    """Eq. 2 (and Eq. 4: n^(s z) e^(b z)) for one text without cache, query by query."""
    s, b = module.numbers or (torch.zeros(q.size(1)), torch.ones(q.size(1)))
    k, v = (z.repeat_interleave(q.size(1) // z.size(1), dim=1) for z in (k, v))
    rows = []
    for i in range(q.size(2)):
        first = max(0, i + 1 - (sliding_window or i + 1))
        z = torch.einsum("bhd,bhjd->bhj", q[:, :, i], k[:, :, first:i + 1]) * scaling
        z = z * (s.double() * math.log(i + 1 - first) + b.double())[:, None]
        if softcap:
            z = softcap * torch.tanh(z / softcap)
        weights = z.exp() / z.exp().sum(-1, keepdim=True)
        rows.append(torch.einsum("bhj,bhjd->bhd", weights, v[:, :, first:i + 1]))
    return torch.stack(rows, dim=1), None


AttentionInterface.register("eq_2", eq_2)


def reference(model, ids):
    """The logits (T, V) of one text alone, in float64, without anything of ssmax_hf.py."""
    plain = copy.deepcopy(model).double()
    for module in plain.modules():
        if hasattr(module, "layer_idx") and hasattr(module, "is_causal"):
            factor = getattr(module, "ssmax_norm", None)
            module.numbers = factor and (factor.s, factor.b)
            if factor:
                del module.ssmax_norm
    plain.set_attn_implementation("eq_2")
    return plain(ids[None], use_cache=False).logits[0]


def in_pieces(model, ids, cache):
    """The logits of a text that comes in pieces."""
    return torch.cat([model(piece[None], use_cache=True, **{CACHE: cache}).logits[0]
                      for piece in ids.split([13, 5, 1, 1, 1, len(ids) - 21])])


def padded(a, b, side):
    pad = torch.zeros(len(a) - len(b), dtype=torch.long)
    b = torch.cat((b, pad) if side == "right" else (pad, b))
    ids = torch.stack((a, b))
    return ids, (ids > 0).long()


def packed(a, b):
    positions = torch.cat((torch.arange(len(a)), torch.arange(len(b))))
    return torch.cat((a, b))[None], positions[None]


def both(logits, mask, want_a, want_b):
    return max(farthest(logits[0], want_a), farthest(logits[1][mask[1].bool()], want_b))


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_every_way_to_call_a_model_gives_eq_2(family):
    model = with_ssmax(family)
    a, b = texts()
    want_a, want_b = reference(model, a), reference(model, b)
    assert farthest(build(family)(a[None]).logits[0], want_a) > 0.5, "softmax gives the same"
    found = {"whole": farthest(model(a[None]).logits[0], want_a)}
    caches = [transformers.DynamicCache(config=model.config),
              transformers.StaticCache(model.config, max_cache_len=64)]
    for cache in caches:
        found[type(cache).__name__] = farthest(in_pieces(model, a, cache), want_a)
    for side in ("left", "right"):
        ids, mask = padded(a, b, side)
        found[f"padded {side}"] = both(model(ids, attention_mask=mask).logits, mask, want_a, want_b)
    row, positions = packed(a, b)
    logits = model(row, position_ids=positions, use_cache=False).logits[0].split((len(a), len(b)))
    found["packed"] = max(farthest(logits[0], want_a), farthest(logits[1], want_b))
    ids, mask = padded(a[:20], b[:9], "left")
    out = model.generate(ids, attention_mask=mask, max_new_tokens=8, min_new_tokens=8,
                         do_sample=False, output_logits=True, return_dict_in_generate=True)
    for i, start in enumerate((0, 11)):
        want = reference(model, out.sequences[i][start:-1])[-8:]
        found[f"generate, row {i}"] = farthest(torch.stack(out.logits, 1)[i], want)
    model.set_attn_implementation("eager")
    found["eager"] = farthest(model(a[None]).logits[0], want_a)
    if family == "afmoe":
        del found["packed"]  # it does so without a factor, too: its texts see each other
    assert not {name: value for name, value in found.items() if not value < 1e-4}


@torch.no_grad()
def test_flex_attention_gives_eq_2():
    model = with_ssmax("qwen3")
    a, b = texts()
    want_a, want_b = reference(model, a), reference(model, b)
    model.set_attn_implementation("flex_attention")
    with torch.compiler.set_stance("force_eager"):  # compiling takes two minutes on a CPU
        ids, mask = padded(a, b, "left")
        assert both(model(ids, attention_mask=mask).logits, mask, want_a, want_b) < 1e-4
        row, positions = packed(a, b)
        logits = model(row, position_ids=positions, use_cache=False).logits[0]
        assert farthest(logits, torch.cat((want_a, want_b))) < 1e-4


@pytest.mark.parametrize("T, S, mask, options, n", [
    (5, 5, None, {}, [1, 2, 3, 4, 5]),
    (5, 5, None, {"sliding_window": 3}, [1, 2, 3, 3, 3]),
    (2, 5, None, {"position_ids": [[3, 4]]}, [4, 5]),                # a cache of 3 tokens
    (3, 4, [[0, 1, 1, 1]], {}, [1, 2, 3]),                           # and padding
    (5, 5, None, {"position_ids": [[0, 1, 2, 0, 1]]}, [1, 2, 3, 1, 2]),
    (5, 5, None, {"cu_seq_lens_q": [0, 3, 5], "cu_seq_lens_k": [0, 3, 5]}, [1, 2, 3, 1, 2]),
    (5, 5, None, {"cu_seq_lens_q": [0, 3, 5, 5], "cu_seq_lens_k": [0, 7, 9, 9]}, [5, 6, 7, 1, 2]),
])
def test_the_keys_of_flash_attention(T, S, mask, options, n):
    """No CPU has flash attention, so its arguments are given here. The last is a paged cache."""
    options = {name: torch.tensor(value) if isinstance(value, list) else value
               for name, value in options.items()}
    found = keys_seen("flash_attention_2", SimpleNamespace(is_causal=True), torch.empty(1, 4, T, 8),
                      torch.empty(1, 2, S, 8), None if mask is None else torch.tensor(mask),
                      **options)
    assert found.flatten().tolist() == n


@pytest.mark.slow
@torch.no_grad()
def test_compiled_code_gives_eq_2():
    model = with_ssmax("qwen3", num_hidden_layers=1)  # a second layer costs as much again
    a, b = texts()
    ids, mask = padded(a, b, "left")
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    logits = compiled(ids, attention_mask=mask, use_cache=False).logits
    assert both(logits, mask, reference(model, a), reference(model, b)) < 1e-4
    torch._dynamo.reset()


@torch.no_grad()
def test_bf16_and_a_move_keep_s_in_fp32():
    model = with_ssmax()
    ids, _ = texts()
    want, factor = reference(model, ids), factors(model)[1]
    s = factor.s.clone()
    model.to(torch.bfloat16)
    assert torch.equal(factor.s, s) and model.lm_head.weight.dtype == torch.bfloat16
    far = (model(ids[None]).logits[0].double() - want).abs().mean()
    assert far < 0.1 * want.std()
    query, n = torch.randn(1, 4, 9, 16).bfloat16(), torch.arange(20_000, 20_009)
    scale = s.double()[:, None] * n.double().log() + factor.b.double()[:, None]
    ratio = factor(query, n).double() / (query.double() * scale[..., None])
    assert (ratio - 1).abs().max() < 1.01 * 2**-8, "rounded once: half of the last of 8 bits"


@pytest.mark.parametrize("hidden", [True, -math.inf, -1e4])
@torch.no_grad()
def test_a_hidden_key_does_not_count_whatever_number_hides_it(hidden):
    model = with_ssmax()
    a, _ = texts()
    mask = torch.ones(1, 1, len(a), len(a), dtype=torch.bool).tril()
    if hidden is not True:
        mask = torch.zeros(mask.shape).masked_fill(~mask, hidden)
    assert farthest(model(a[None], attention_mask=mask).logits[0], reference(model, a)) < 1e-4


@pytest.mark.parametrize("how", ["argument", "config"])
@torch.no_grad()
def test_without_causality_a_query_sees_all_keys(how):
    model = with_ssmax("qwen3")
    a, b = texts()
    options = {"is_causal": False} if how == "argument" else {}
    model.config.is_causal = how == "argument"
    alone = model(a[None], **options).logits[0], model(b[None], **options).logits[0]
    ids, mask = padded(a, b, "right")
    assert both(model(ids, attention_mask=mask, **options).logits, mask, *alone) < 1e-4


def test_what_it_cannot_do_is_refused_by_name():
    for model, options, message in [
            (build("gpt2", reorder_and_upcast_attn=True), {}, "put into .*GPT2Attention"),
            (build("bert"), {}, "put into .*BertSelfAttention"),
            (build("mamba", state_size=16), {}, r"MambaForCausalLM that .*: \[\]"),
            (build(), {"kind": "ssmx"}, "unknown kind ssmx; choose one of ssmax,"),
            (build(), {"layers": [7]}, r"layers=\[7\] must name"),
            (build("mistral"), {}, "no layer of MistralForCausalLM sees all keys"),
            (build(), {"length": 1}, "length=1: give `length` in tokens"),
            (build(), {"s": 0.4, "scale": 2.0}, "scale=2.0 has no effect beside s=0.4"),
            (add_ssmax(build(), layers=[0]), {"layers": [1]}, "this model has a factor already")]:
        with pytest.raises(ValueError, match=message):
            add_ssmax(model, **options)
    model.config._attn_implementation = "eq_2"
    with pytest.raises(NotImplementedError, match="attn_implementation=eq_2"):
        model(IDS)


@pytest.mark.skipif(not hasattr(modeling_layers, "MtpModel"), reason="new in transformers 5.24")
def test_layers_that_predict_several_tokens_are_built_without_a_factor():
    config = AutoConfig.for_model("glm4_moe", **SMALL, n_routed_experts=4, num_experts_per_tok=2,
                                  moe_intermediate_size=16, num_mtp_layers=1)
    model = add_ssmax(AutoModelForCausalLM.from_config(config))
    layers = modeling_layers.MtpModel(model, 1).layers
    assert type(layers[0].enorm) is type(model.model.norm)
    assert not [module for module in layers.modules() if hasattr(module, "ssmax_norm")]


@torch.no_grad()
def test_a_layer_may_be_offloaded_to_a_disk(tmp_path):
    build().save_pretrained(tmp_path / "model")
    devices = dict.fromkeys(["lm_head", "model.norm", "model.rotary_emb", "model.layers.1"], "cpu")
    devices |= dict.fromkeys(["model.embed_tokens", "model.layers.0", "model.layers.2"], "disk")
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", device_map=devices, offload_folder=tmp_path / "disk")
    assert torch.equal(add_ssmax(model)(IDS).logits, build()(IDS).logits)


def test_fsdp_shards_a_bf16_model_with_its_factors():
    model = add_ssmax(build("qwen3")).bfloat16()
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        for module in reversed(list(model.modules())):  # accelerate shards these by default
            if type(module).__name__ in model._no_split_modules or module is model:
                fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
        model(IDS, labels=IDS).loss.backward()
        assert all(factor.s.grad.full_tensor().any() for factor in factors(model).values())
    finally:
        torch.distributed.destroy_process_group()


def train(model, folder, **settings):
    """Train for four updates, with rows in which a half is repeated. Return the Trainer."""
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(3, V, (16,), generator=generator).repeat(2) for _ in range(32)]
    arguments = transformers.TrainingArguments(
        str(folder), max_steps=4, per_device_train_batch_size=8, learning_rate=1e-2, report_to=[],
        save_strategy="no", use_cpu=True, weight_decay=0.1, disable_tqdm=True, **settings)
    data = [{"input_ids": row, "labels": row} for row in rows]
    trainer = transformers.Trainer(model, arguments, train_dataset=data)
    trainer.train()
    return trainer


def test_trainer_trains_s_in_fp32_without_weight_decay(tmp_path):
    model = add_ssmax(build("qwen3"))
    trainer = train(model, tmp_path, bf16=True, gradient_checkpointing=True)
    assert not [name for name in trainer.get_decay_parameter_names(model) if "ssmax" in name]
    s = factors(model)[1].s
    assert s.dtype == torch.float32 and s.all()


# A fresh process, for (folder, name of its class). It imports ssmax_hf in the middle.
FRESH = """
import sys
import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM
folders = dict(zip(sys.argv[1::2], sys.argv[2::2]))
for folder, name in folders.items():
    cls = getattr(transformers, name)
    for load in (AutoConfig, AutoModelForCausalLM, cls):
        with pytest.raises(Exception, match="import ssmax_hf before you load this model"):
            load.from_pretrained(folder, attn_implementation="eager")
import ssmax_hf
for folder in folders:
    half = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16
    assert all(p.dtype == torch.float32 for name, p in half.named_parameters() if "ssmax" in name)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    layer_types = getattr(model.config.get_text_config(), "layer_types", "none")
    torch.save([model(torch.arange(3, 40)[None]).logits, layer_types], f"{folder}/fresh.pt")
"""


@pytest.mark.slow
def test_what_is_saved_is_loaded_with_the_factor_or_not_at_all(tmp_path):
    """In a fresh process. Without ssmax_hf.py a folder must not be read as plain softmax."""
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(add_ssmax(build("qwen3")), peft.LoraConfig(
        r=4, target_modules="all-linear", modules_to_save=["ssmax_norm"], task_type="CAUSAL_LM"))
    train(adapted, tmp_path)
    vision = dict.fromkeys(("hidden_size", "intermediate_size", "image_size"), 16)
    vision |= {"num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 8}
    config = AutoConfig.for_model(
        "gemma3", text_config=SMALL | FAMILIES["gemma2"], vision_config=vision)
    reads_images = transformers.Gemma3ForConditionalGeneration(config).eval()
    models = {"images": randomize(add_ssmax(reads_images)),
              "merged": adapted.merge_and_unload().eval()}
    assert all(factor.s.all() for factor in factors(models["merged"]).values()), "not trained"
    for family, kind in [("llama", "logn_clip"), ("smollm3", "ssmax"), ("laguna", "ssmax_bias"),
                         ("llama4_text", "ssmax"), ("diffllama", "ssmax")]:
        models[family] = with_ssmax(family, kind)
    arguments = []
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
        arguments += [str(tmp_path / name), type(model).__name__]
    program("-c", FRESH, *arguments)
    for name, model in models.items():
        logits, layer_types = torch.load(tmp_path / name / "fresh.pt")
        assert torch.equal(logits, model(IDS).logits), name
        assert layer_types == getattr(model.config.get_text_config(), "layer_types", "none"), name
