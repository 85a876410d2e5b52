# SPDX-License-Identifier: Apache-2.0
"""Models of transformers on a GPU: loaded, warmed up, generating, saved, with adapters."""

import pytest
import torch
from hf_models import TINY, load
from safetensors.torch import load_file

import ladder
from ladder.integrations.transformers import LadderConfig
from ladder.testing import bound

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
DEVICE = "cuda"
PROMPT = torch.arange(50, 74)[None]
STEPS = 10
LENGTH = PROMPT.shape[1] + STEPS
CONFIG = TINY | {
    "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 256, "initializer_range": 0.1, "attention_bias": True,
}  # fmt: skip


@pytest.fixture(scope="module", params=["uint4", "uint3", "nf4", "mxfp4"])
def folder(request, tmp_path_factory):
    """A ladder folder whose logits are peaked: with this seed, those of the greedy tokens are at
    least five roundings clear of all others."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(4)
    root = tmp_path_factory.mktemp(request.param)
    model = LlamaForCausalLM(LlamaConfig(**CONFIG, tie_word_embeddings=False))
    torch.nn.init.normal_(model.model.embed_tokens.weight)
    torch.nn.init.normal_(model.lm_head.weight)
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    model.to(torch.float16).save_pretrained(root / "dense")
    config = LadderConfig(request.param, None if request.param == "mxfp4" else 64)
    model = load(root / "dense", dtype=torch.float16, quantization_config=config)
    model.save_pretrained(root / "packed")
    return root / "packed"


def on_device(folder):
    return load(folder, device_map=DEVICE, dtype=torch.float16)


def packed_layers(model):
    return {n: m for n, m in model.named_modules() if isinstance(m, ladder.Linear)}


@pytest.fixture
def model(folder):
    """Loaded and warmed up."""
    model = on_device(folder)
    ladder.warmup(model, m=(1, PROMPT.shape[1]), tune="off")
    return model


@pytest.fixture(scope="module")
def greedy(folder):
    """The greedy tokens of the dense model with the same values, and its logits before each."""
    dense = on_device(folder).dequantize()
    made = generated(dense)
    with torch.no_grad():
        logits = dense(made[:, :-1]).logits[0, PROMPT.shape[1] - 1 :].float()
    assert torch.equal(logits.argmax(-1), made[0, PROMPT.shape[1] :])
    return made, logits


def generated(model, **options):
    options = {"max_new_tokens": STEPS, "min_new_tokens": STEPS, "do_sample": False} | options
    return model.generate(PROMPT.to(DEVICE), **options)


def test_a_folder_is_loaded_onto_the_gpu_and_warmed_up_for_every_layer(folder):
    model = on_device(folder)
    layers = packed_layers(model)
    assert len(layers) == 14
    assert {t.device.type for t in (*model.parameters(), *model.buffers())} == {DEVICE}
    done = ladder.warmup(model, m=(1, 8), tune="off")
    assert done.keys() == layers.keys()
    assert all(schedule for found in done.values() for schedule in found.values())
    assert all(layer.image is not None and layer.qweight is None for layer in layers.values())


def test_greedy_tokens_are_those_of_the_dense_model_with_the_same_values(model, greedy):
    made, logits = greedy
    with torch.no_grad():
        found = model(made[:, :-1]).logits[0, PROMPT.shape[1] - 1 :].float()
    first, second = logits.topk(2).values.T
    assert (first - second).min() > 2 * (found - logits).abs().max()  # else tokens may differ
    assert torch.equal(generated(model), made)


@pytest.mark.parametrize("options", [{"disable_compile": True}, {}], ids=["eager", "compiled"])
def test_a_static_cache_changes_no_token(model, greedy, options):
    """Without disable_compile, generate compiles the decoding step into a CUDA graph."""
    assert torch.equal(generated(model, cache_implementation="static", **options), greedy[0])


class Decoder:
    """One decoding step whose tensors stay where they are, as a CUDA graph needs."""

    def __init__(self, model):
        from transformers import StaticCache

        self.model = model
        self.cache = StaticCache(config=model.config, max_cache_len=LENGTH)
        self.token = torch.zeros(1, 1, dtype=torch.long, device=DEVICE)
        self.position = torch.zeros(1, 1, dtype=torch.long, device=DEVICE)
        self.mask = torch.zeros(1, 1, 1, LENGTH, dtype=torch.bool, device=DEVICE)

    @torch.no_grad()
    def prefill(self, prompt):
        self.cache.reset()
        logits = self.model(prompt, past_key_values=self.cache).logits
        self.token.copy_(logits[:, -1:].argmax(-1))
        self.position.fill_(prompt.shape[1])
        self.mask.zero_()[..., : prompt.shape[1] + 1] = True

    @torch.no_grad()
    def step(self):
        logits = self.model(
            self.token, position_ids=self.position, attention_mask=self.mask,
            past_key_values=self.cache,
        ).logits  # fmt: skip
        self.token.copy_(logits.argmax(-1))
        self.position.add_(1)
        self.mask.index_fill_(3, self.position.view(1).clamp(max=LENGTH - 1), True)


def captured(step):
    """``step`` as a CUDA graph: what replays it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def test_a_decoding_step_captured_in_a_cuda_graph_makes_the_same_tokens(model, greedy):
    decoder = Decoder(model)
    decoder.prefill(PROMPT.to(DEVICE))
    replay = captured(decoder.step)
    for _ in range(2):  # from the same memory again
        decoder.prefill(PROMPT.to(DEVICE))
        tokens = [decoder.token.item()]
        for _ in range(STEPS - 1):
            replay()
            tokens.append(decoder.token.item())
        assert tokens == greedy[0][0, PROMPT.shape[1] :].tolist()


def test_a_model_that_has_run_on_the_gpu_saves_what_it_was_loaded_from(model, folder, tmp_path):
    generated(model)
    model.save_pretrained(tmp_path)
    before, after = (load_file(f / "model.safetensors") for f in (folder, tmp_path))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert tensor.dtype == after[name].dtype and torch.equal(tensor, after[name]), name


# --- adapters -------------------------------------------------------------------------------------


@pytest.fixture
def adapted(model):
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    return peft.get_peft_model(model, config)


def test_an_adapter_learns_on_packed_weights_that_stay_as_they_are(adapted):
    layers = packed_layers(adapted)
    before = {name: layer.packed_weight.qweight for name, layer in layers.items()}
    trained = [p for p in adapted.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    x, losses = PROMPT.to(DEVICE), []
    for _ in range(4):
        loss = adapted(x, labels=x).loss
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in trained)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]
    assert all(layer.image is not None for layer in layers.values())
    for name, layer in layers.items():
        assert torch.equal(layer.packed_weight.qweight, before[name]), name


def test_gradients_of_an_adapted_layer_are_those_of_the_dense_one(adapted):
    """Of the adapter's matrices, and of x through the packed weight, against float64."""
    adapter = adapted.base_model.model.model.layers[1].self_attn.q_proj
    base = adapter.base_layer
    values = base.packed_weight.dequantize(torch.float64)
    a, b = adapter.lora_A["default"], adapter.lora_B["default"]
    torch.nn.init.normal_(b.weight, std=0.1)
    for parameter in (a.weight, b.weight):
        assert parameter.dtype == torch.float32
    x = torch.randn(5, base.in_features, device=DEVICE, dtype=torch.float16).requires_grad_()
    grad = torch.randn(5, base.out_features, device=DEVICE, dtype=torch.float16)

    with adapted.disable_adapter():
        adapter(x).backward(grad)
    # Values of the weight may be rounded to float16 first, which adds 2**-11 of the product.
    limit = bound(grad, values.T, torch.float16)
    limit += 2.0**-11 * (grad.double().abs() @ values.abs())
    assert ((x.grad.double() - grad.double() @ values).abs() <= limit).all()

    low = x.detach().float() @ a.weight.detach().T
    scaled = grad.float() * adapter.scaling["default"]
    adapter(x.detach()).backward(grad)
    for found, left, right, terms in (
        (b.weight.grad, scaled.T, low, base.in_features),
        (a.weight.grad, (scaled @ b.weight.detach()).T, x.detach().float(), base.out_features),
    ):
        exact = left.double() @ right.double()
        limit = bound(left, right.T, torch.float32)
        # The factor that is itself a float32 product of this many terms was computed twice, here
        # and in the layer: the rounding of each is a random walk, and 6 deviations hold.
        rounding = 2 * 6 * terms**0.5 * 2.0**-24
        limit = limit + rounding * (left.double().abs() @ right.double().abs())
        assert ((found.double() - exact).abs() <= limit).all()
