"""SSMax in models of transformers: each text alone in float64, by Eq. 2, is what they must give."""
import copy
import math
import os
import subprocess
import sys

import pytest
import torch
from conftest import ROOT, tiny_model

transformers = pytest.importorskip("transformers")

from transformers import (  # noqa: E402
    AutoConfig,
    AutoModelForCausalLM,
    DynamicCache,
    StaticCache,
    Trainer,
    TrainingArguments,
)
from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask  # noqa: E402
from transformers.modeling_utils import AttentionInterface  # noqa: E402
from transformers.models.llama.modeling_llama import LlamaAttention  # noqa: E402

from model import ATTENTION  # noqa: E402
from ssmax_hf import KINDS, SSMax, add_ssmax, start_of_s  # noqa: E402

V = 97
SMALL = {
    "vocab_size": V, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "initializer_range": 0.25,
    "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WINDOW = {"sliding_window": 8,
          "layer_types": ["sliding_attention", "full_attention", "full_attention"]}
FAMILIES = {
    "llama": {}, "qwen2": {}, "qwen3": {}, "gemma2": {**WINDOW, "query_pre_attn_scalar": 16},
    "gemma3_text": {**WINDOW, "query_pre_attn_scalar": 16}, "mistral": {"sliding_window": 8},
    "olmo2": {}, "olmo3": WINDOW, "gpt_neox": {"rotary_pct": 0.5},
    "smollm3": {**WINDOW, "use_sliding_window": True, "no_rope_layers": [1, 0, 0]},
    "phi3": {"sliding_window": None}}
# The newest transformers calls the argument `cache`, the pinned one `past_key_values`.
CACHE = "past_key_values"
if "cache" in transformers.LlamaForCausalLM.forward.__code__.co_varnames:
    CACHE = "cache"


def build(family="llama", **settings):
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SMALL, **FAMILIES[family], **settings})
    # Gemma 2 caps its logits, which sdpa cannot do
    implementation = "eager" if family == "gemma2" else "sdpa"
    return AutoModelForCausalLM.from_config(
        config, attn_implementation=implementation, dtype=torch.float32).eval()


def with_ssmax(family="llama", kind="ssmax_bias", **settings):
    """A model whose s and b differ by head and layer. Every layer of Mistral has a window, and so
    it has SSMax in windows."""
    model = build(family, **settings)
    add_ssmax(model, kind, layers=[0, 1, 2] if family == "mistral" else None)
    randomize(model)
    return model


def factors(model):
    return {module.layer_idx: module.ssmax_norm for module in model.modules()
            if hasattr(module, "ssmax_norm")}


def randomize(model):
    generator = torch.Generator().manual_seed(1)
    for factor in factors(model).values():
        for p in factor.parameters():
            p.data = 0.1 + 0.5 * torch.rand(p.shape, generator=generator)


def texts():
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(3, V, (length,), generator=generator) for length in (31, 19)]


def eq_2(module, q, k, v, mask, scaling, softcap=None, sliding_window=None, **_):
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


def difference(a, b):
    return (a.double() - b).abs().max().item()


def in_pieces(model, ids, cache):
    """The logits of a text that comes in pieces."""
    logits = [model(piece[None], use_cache=True, **{CACHE: cache}).logits[0]
              for piece in ids.split([13, 5, 1, 1, 1, len(ids) - 21])]
    return torch.cat(logits)


def padded(a, b, side):
    pad = torch.zeros(len(a) - len(b), dtype=torch.long)
    ones = torch.ones_like(b)
    rows, masks = ((b, pad), (ones, pad)) if side == "right" else ((pad, b), (pad, ones))
    return (torch.stack((a, torch.cat(rows))),
            torch.stack((torch.ones_like(a), torch.cat(masks))))


def packed(a, b):
    positions = torch.cat((torch.arange(len(a)), torch.arange(len(b))))
    return torch.cat((a, b))[None], positions[None]


def both(logits, mask, want_a, want_b):
    return max(difference(logits[0], want_a), difference(logits[1][mask[1].bool()], want_b))


# -----------------------------------------------------------------------------
# the numbers


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_every_way_to_call_a_model_gives_eq_2(family):
    model = with_ssmax(family)
    a, b = texts()
    want_a, want_b = reference(model, a), reference(model, b)
    assert difference(build(family)(a[None]).logits[0], want_a) > 0.5, "softmax gives the same"
    found = {"whole": difference(model(a[None]).logits[0], want_a)}
    found["dynamic cache"] = difference(
        in_pieces(model, a, DynamicCache(config=model.config)), want_a)
    found["static cache"] = difference(
        in_pieces(model, a, StaticCache(config=model.config, max_cache_len=64)), want_a)
    for side in ("left", "right"):
        ids, mask = padded(a, b, side)
        found[f"padded {side}"] = both(model(ids, attention_mask=mask).logits, mask, want_a, want_b)
    ids, mask = padded(a, b, "left")
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    logits = model(ids, attention_mask=mask, position_ids=positions).logits
    found["padded left with position_ids"] = both(logits, mask, want_a, want_b)
    row, positions = packed(a, b)
    logits = model(row, position_ids=positions, use_cache=False).logits[0].split((len(a), len(b)))
    found["packed"] = max(difference(logits[0], want_a), difference(logits[1], want_b))
    ids, mask = padded(a[:20], b[:9], "left")
    out = model.generate(ids, attention_mask=mask, max_new_tokens=8, min_new_tokens=8,
                         do_sample=False, output_logits=True, return_dict_in_generate=True)
    for i, start in enumerate((0, 11)):
        want = reference(model, out.sequences[i][start:-1])[-8:]
        found[f"generate, row {i}"] = difference(torch.stack(out.logits, 1)[i], want)
    model.set_attn_implementation("eager")
    found["eager"] = difference(model(a[None]).logits[0], want_a)
    wrong = {name: value for name, value in found.items() if not value < 1e-4}
    assert not wrong


@torch.no_grad()
def test_bf16_and_a_move_keep_s_in_fp32():
    model = with_ssmax()
    ids, _ = texts()
    want, s = reference(model, ids), factors(model)[1].s.clone()
    model.to(torch.bfloat16)
    assert torch.equal(factors(model)[1].s, s) and model.lm_head.weight.dtype == torch.bfloat16
    far = (model(ids[None]).logits[0].double() - want).abs().mean()
    assert far < 0.1 * want.std()
    model.float()
    with torch.autocast("cpu", torch.bfloat16):
        far = (model(ids[None]).logits[0].double() - want).abs().mean()
    assert far < 0.1 * want.std()


@torch.no_grad()
def test_the_factor_is_multiplied_in_fp32_and_the_product_rounded_once():
    factor = factors(with_ssmax())[1]
    query = torch.randn(1, 4, 9, 16).bfloat16()
    n = torch.arange(20_000, 20_009)[None, None]
    scale = factor.s.double()[:, None] * n.double().log() + factor.b.double()[:, None]
    ratio = factor(query, n).double() / (query.double() * scale[..., None])
    assert (ratio - 1).abs().max() < 1.01 * 2**-8, "half of the last of 8 bits"


@torch.no_grad()
def test_flex_attention_gives_eq_2():
    model = with_ssmax("qwen3")
    a, b = texts()
    want_a, want_b = reference(model, a), reference(model, b)
    model.set_attn_implementation("flex_attention")
    with torch.compiler.set_stance("force_eager"):  # compiling takes two minutes on a CPU
        assert difference(model(a[None]).logits[0], want_a) < 1e-4
        ids, mask = padded(a, b, "left")
        assert both(model(ids, attention_mask=mask).logits, mask, want_a, want_b) < 1e-4
        row, positions = packed(a, b)
        logits = model(row, position_ids=positions, use_cache=False).logits[0]
        assert difference(logits, torch.cat((want_a, want_b))) < 1e-4


def flash_stand_in(module, q, k, v, mask, scaling, position_ids=None, cu_seq_lens_q=None,
                   sliding_window=None, **_):
    """What flash attention computes, with its ways to say which keys are hidden."""
    k, v = (z.repeat_interleave(q.size(1) // z.size(1), dim=1) for z in (k, v))
    T, S = q.size(2), k.size(2)
    sees = torch.ones(T, S, dtype=torch.bool).tril(S - T).triu(S - T + 1 - (sliding_window or S))
    sees = sees[None]
    if mask is not None:
        sees = sees & mask.bool()[:, None]
    elif cu_seq_lens_q is not None:
        text = torch.bucketize(torch.arange(S), cu_seq_lens_q[1:], right=True)
        sees = sees & (text[:, None] == text)
    elif position_ids is not None and (position_ids.diff() != 1).any():
        text = (position_ids[0] == 0).cumsum(0)
        sees = sees & (text[:, None] == text)
    z = (q @ k.mT * scaling).masked_fill(~sees[:, None], -1e30)
    return (z.softmax(-1) @ v).transpose(1, 2), None


@pytest.mark.parametrize("family", ["qwen3", "mistral"])  # Mistral has windows
@torch.no_grad()
def test_flash_attention_gets_eq_2(family):
    """No CPU has flash attention, so a stand-in with its arguments is called."""
    AttentionInterface.register("flash_stand_in", flash_stand_in)
    AttentionMaskInterface.register("flash_stand_in", flash_attention_mask)
    model = with_ssmax(family)
    a, b = texts()
    want_a, want_b = reference(model, a), reference(model, b)
    model.config._attn_implementation = "flash_stand_in"
    assert difference(model(a[None]).logits[0], want_a) < 1e-4
    assert difference(in_pieces(model, a, DynamicCache(config=model.config)), want_a) < 1e-4
    ids, mask = padded(a, b, "left")
    assert both(model(ids, attention_mask=mask).logits, mask, want_a, want_b) < 1e-4
    row, positions = packed(a, b)
    lengths = torch.tensor([0, len(a), len(a) + len(b)], dtype=torch.int32)
    for options in ({}, {"cu_seq_lens_q": lengths, "cu_seq_lens_k": lengths}):
        logits = model(row, position_ids=positions, use_cache=False, **options).logits[0]
        assert difference(logits, torch.cat((want_a, want_b))) < 1e-4


@pytest.mark.slow
@torch.no_grad()
def test_compiled_code_gives_eq_2():
    model = with_ssmax("qwen3", num_hidden_layers=1)  # a second layer costs as much again
    a, b = texts()
    want_a, want_b = reference(model, a), reference(model, b)
    ids, mask = padded(a, b, "left")
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert difference(compiled(a[None], use_cache=False).logits[0], want_a) < 1e-4
    logits = compiled(ids, attention_mask=mask, use_cache=False).logits
    assert both(logits, mask, want_a, want_b) < 1e-4
    torch._dynamo.reset()


def test_gradients_are_those_of_eq_2_also_with_checkpointing():
    model = with_ssmax("qwen3").train()
    ids, _ = texts()

    def gradients(logits):
        loss = torch.nn.functional.cross_entropy(logits[:-1], ids[1:])
        wanted = [p for factor in factors(model).values() for p in factor.parameters()]
        return torch.cat(torch.autograd.grad(loss, wanted))

    plain = gradients(model(ids[None], use_cache=False).logits[0])
    model.gradient_checkpointing_enable()
    again = gradients(model(ids[None], use_cache=False).logits[0])
    assert torch.allclose(plain, again, atol=1e-6)

    def loss_of(value):  # of the reference, with another s of one head
        with torch.no_grad():
            factors(model)[1].s[2] = value
            logits = reference(model.eval(), ids)
        return torch.nn.functional.cross_entropy(logits[:-1], ids[1:])

    s = factors(model)[1].s[2].item()
    slope = (loss_of(s + 1e-3) - loss_of(s - 1e-3)) / 2e-3
    index = [f"{layer}.{name}.{head}" for layer, factor in factors(model).items()
             for name, _ in factor.named_parameters() for head in range(4)].index("1.s.2")
    assert plain[index].item() == pytest.approx(slope.item(), rel=0.01)


@pytest.mark.parametrize("kind", sorted(KINDS.keys() & ATTENTION.keys()))
def test_a_kind_is_that_of_model_py(kind):
    """The factor put into a softmax model, with any mean, is that of GPT.swap_attention."""
    for scale in (1.0, 1.7):
        model = tiny_model("softmax")
        before = model.blocks[1].attn.qkv.weight[0, 0].item()
        with torch.no_grad():
            model.swap_attention(kind, scale)
        attn = model.blocks[1].attn
        n = torch.arange(1, 200)
        ours = attn.factor(ATTENTION[kind].f(n, model)) * attn.qkv.weight[0, 0] / before
        N = model.config.block_size
        factor = SSMax(2, kind, start_of_s(kind, scale, N), N)
        theirs = factor(torch.ones(1, 2, 199, 4), n[None, None])
        assert torch.allclose(theirs[0, :, :, 0], ours, atol=1e-5)
    assert KINDS[kind][1] == "".join(name for name, _ in factor.named_parameters())


@torch.no_grad()
def test_the_default_leaves_a_model_as_it_is():
    ids, _ = texts()
    want = build()(ids[None]).logits
    assert torch.equal(add_ssmax(build())(ids[None]).logits, want)
    assert torch.equal(add_ssmax(build(), "logn_clip")(ids[None]).logits, want), "up to N tokens"
    assert not torch.allclose(add_ssmax(build(), "logn_clip", length=8)(ids[None]).logits, want)
    constant = add_ssmax(build(), "head_scale", scale=1.5)
    model = build()
    for layer in model.model.layers:
        layer.self_attn.q_proj.weight *= 1.5
    assert torch.allclose(constant(ids[None]).logits, model(ids[None]).logits, atol=1e-4)


# -----------------------------------------------------------------------------
# what is refused


def test_what_it_cannot_do_is_refused_by_name():
    class OwnAttention(LlamaAttention):
        def forward(self, hidden_states, **kwargs):
            return hidden_states, None

    model = build()
    model.model.layers[1].self_attn = OwnAttention(model.config, 1)
    with pytest.raises(ValueError, match="OwnAttention. computes attention by itself"):
        add_ssmax(model)
    mamba = AutoConfig.for_model("mamba", vocab_size=V, hidden_size=64, num_hidden_layers=1)
    with pytest.raises(ValueError, match=r"an attention in MambaForCausalLM: \[\]"):
        add_ssmax(AutoModelForCausalLM.from_config(mamba))
    with pytest.raises(ValueError, match="unknown kind ssmx; choose one of ssmax,"):
        add_ssmax(build(), "ssmx")
    with pytest.raises(ValueError, match=r"layers=\[7\] must name"):
        add_ssmax(build(), layers=[7])
    with pytest.raises(ValueError, match=r"layers=\[\] must name"):  # Mistral has windows only
        add_ssmax(build("mistral"))
    with pytest.raises(ValueError, match="layer 0 of this model has a factor already"):
        add_ssmax(add_ssmax(build()))
    model = add_ssmax(build())
    AttentionInterface.register("mine", eq_2)
    model.config._attn_implementation = "mine"
    with pytest.raises(NotImplementedError, match="attn_implementation=mine"):
        model(torch.tensor([[3, 4]]))


# -----------------------------------------------------------------------------
# saving, loading and training


def fresh(code, *arguments):
    """Run `code` in a process of its own, which imports from the project's folder."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], text=True,
                          capture_output=True, env=os.environ | {"PYTHONPATH": path})
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]


def data():
    """32 rows in which a half is repeated."""
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(3, V, (16,), generator=generator).repeat(2) for _ in range(32)]
    return [{"input_ids": row, "labels": row} for row in rows]


def trainer(model, folder, **settings):
    arguments = TrainingArguments(
        str(folder), max_steps=4, per_device_train_batch_size=8, learning_rate=1e-2, report_to=[],
        save_steps=2, use_cpu=True, weight_decay=0.1, disable_tqdm=True, logging_steps=1,
        **settings)
    return Trainer(model, arguments, train_dataset=data())


def only_scales(model):
    for name, p in model.named_parameters():
        p.requires_grad = "ssmax_norm" in name
    return model


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(a model whose s and b alone Trainer has trained, its Trainer, the folder of its run)"""
    folder = tmp_path_factory.mktemp("trainer")
    training = trainer(only_scales(add_ssmax(build("qwen3"))), folder)
    training.train()
    return training.model.eval(), training, folder


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """(a model that PEFT has trained with LoRA, s and b, the folder of its adapter)"""
    peft = pytest.importorskip("peft")
    folder = tmp_path_factory.mktemp("peft")
    model = peft.get_peft_model(add_ssmax(build("qwen3")), peft.LoraConfig(
        r=4, target_modules="all-linear", modules_to_save=["ssmax_norm"], task_type="CAUSAL_LM"))
    trainer(model, folder / "run").train()
    model.eval().save_pretrained(folder / "adapter")
    return model, folder / "adapter"


IDS = torch.arange(3, 40)[None]
# A fresh process, for (folder, name of its class). It imports ssmax_hf in the middle.
FRESH = """
import sys
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM
folders = dict(zip(sys.argv[1::2], sys.argv[2::2]))
for folder, name in folders.items():
    cls = getattr(transformers, name)
    for load, options in [(AutoConfig, {}), (AutoModelForCausalLM, {}), (cls, {}),
                          (cls, {"attn_implementation": "eager", "dtype": "float32"})]:
        try:
            load.from_pretrained(folder, **options)
        except Exception as e:
            assert "import ssmax_hf before you load this model" in str(e), e
        else:
            raise SystemExit(f"{load} {options} loads {folder}")
import ssmax_hf
for folder in folders:
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    half = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16
    for name, p in half.named_parameters():
        assert p.dtype == torch.float32 or "ssmax_norm" not in name
    logits = model(torch.arange(3, 40)[None]).logits
    text_config = model.config.get_text_config()
    torch.save([logits, getattr(text_config, "layer_types", None)], f"{folder}/fresh.pt")
"""


def with_images():
    """A Gemma 3 that also reads images: its text_config has the settings of SSMax."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "gemma3", text_config=SMALL | FAMILIES["gemma3_text"], vision_config={
            "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
            "num_attention_heads": 2, "image_size": 16, "patch_size": 8})
    model = add_ssmax(transformers.Gemma3ForConditionalGeneration(config).eval(), "ssmax_bias")
    randomize(model)
    return model


@pytest.mark.slow
def test_what_is_saved_is_loaded_with_the_factor_or_not_at_all(tmp_path, trained, adapted):
    """In a fresh process. Without ssmax_hf.py a folder must not be read as plain softmax."""
    models = {trained[2] / "checkpoint-4": trained[0]}
    for family, kind in [("llama", "ssmax_bias"), ("qwen2", "logn_clip"), ("smollm3", "ssmax"),
                         ("gpt_neox", "ssmax_bias_s0")]:
        model = models[tmp_path / family] = with_ssmax(family, kind)
        model.save_pretrained(tmp_path / family)
    models[tmp_path / "images"] = with_images()
    models[tmp_path / "images"].save_pretrained(tmp_path / "images")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "smollm3").eval()
    again.save_pretrained(tmp_path / "again")
    models[tmp_path / "again"] = again
    merged = copy.deepcopy(adapted[0]).merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    models[tmp_path / "merged"] = merged
    fresh(FRESH, *(word for folder, model in models.items()
                   for word in (folder, type(model).__name__)))
    for folder, model in models.items():
        logits, layer_types = torch.load(folder / "fresh.pt")
        assert torch.equal(logits, model(IDS).logits), folder
        wanted = getattr(model.config.get_text_config(), "layer_types", None)
        assert layer_types == wanted, folder


def test_trainer_trains_s_without_decay_and_resumes(trained):
    model, training, folder = trained
    assert not [name for name in training.get_decay_parameter_names(model) if "ssmax" in name]
    start = dict(build("qwen3").named_parameters())
    for name, p in model.named_parameters():
        if "ssmax_norm" not in name:
            assert torch.equal(p, start[name]), name
    again = only_scales(add_ssmax(build("qwen3")))
    trainer(again, folder / "again").train(resume_from_checkpoint=str(folder / "checkpoint-2"))
    for layer, factor in factors(again).items():
        ours = factors(model)[layer]
        assert ours.s.all() and (ours.b != 1).all(), "it was not trained"
        assert torch.equal(factor.s, ours.s) and torch.equal(factor.b, ours.b)


def test_trainer_with_bf16_and_checkpointing_keeps_s_in_fp32(tmp_path):
    model = add_ssmax(build("qwen3"))
    trainer(model, tmp_path, bf16=True, gradient_checkpointing=True).train()
    s = factors(model)[1].s
    assert s.dtype == torch.float32 and s.all()


@torch.no_grad()
def test_peft_trains_s_beside_lora(adapted):
    from peft import PeftModel
    model, folder = adapted
    want = model(IDS).logits
    again = PeftModel.from_pretrained(add_ssmax(build("qwen3")), folder).eval()
    assert torch.equal(again(IDS).logits, want)
    saved = [module.modules_to_save["default"].s for name, module in again.named_modules()
             if name.endswith("ssmax_norm")]
    assert len(saved) == 3 and all(s.all() for s in saved), "s is not trained"
    assert torch.allclose(again.merge_and_unload()(IDS).logits, want, atol=1e-4)
