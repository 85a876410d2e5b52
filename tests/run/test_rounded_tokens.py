# SPDX-License-Identifier: Apache-2.0
"""Activations of 8 bits as GPUs have them, as far as no GPU is needed: the reference of the
rounding, numbers and intervals of weights, and what is refused by name."""

import pytest
import torch
from drawn import generator
from torch._subclasses.fake_tensor import FakeTensorMode

import ladder
from ladder import _C, InvalidArgument, Unsupported
from ladder.cuda import image, kernels
from ladder.ops import activations, fallback
from ladder.types import parse

UINT4 = "uint4,group=64,scale=float16,zero=midpoint"
INT8 = "int8,channel,scale=float16"


def tokens(m: int, k: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(m, k, generator=generator(seed)) * torch.arange(1, m + 1)[:, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("activation_type,top", [("int8", 127), ("float8_e4m3", 448)])
def test_the_reference_is_at_most_half_a_step_away(activation_type, top, dtype):
    x = tokens(7, 300).to(dtype)
    rounded = activations.round_tokens(x, activation_type)
    assert rounded.dtype == torch.float32
    wide, scale = x.double(), x.double().abs().amax(-1, keepdim=True) / top
    step = scale / 2 if top == 127 else torch.maximum(wide.abs() * 2**-4, scale * 2**-10)
    assert ((rounded.double() - wide).abs() <= step * (1 + 2**-20)).all()
    # The largest of a token stays, and all are codes times one scale.
    stays = rounded.double().abs().amax(-1) / wide.abs().amax(-1)
    assert ((stays - 1).abs() < 2**-22).all()
    codes = rounded.double() / scale
    if top == 127:
        assert ((codes - codes.round()).abs() < 1e-4).all() and (codes.abs() < 127.001).all()
    else:
        nearest = codes.float().to(torch.float8_e4m3fn).double()
        assert ((codes - nearest).abs() <= 1e-5 * codes.abs()).all()


@pytest.mark.parametrize("activation_type", activations.ACTIVATION_TYPES)
def test_zeros_and_what_is_not_finite(activation_type):
    x = torch.ones(5, 32)
    x[0], x[1], x[2, 3], x[3, 4] = 0, 2.0**-101, float("inf"), float("nan")
    rounded = activations.round_tokens(x, activation_type)
    assert (rounded[:2] == 0).all() and rounded[2:4].isnan().all() and (rounded[4] == 1).all()


@pytest.mark.parametrize("activation_type", activations.ACTIVATION_TYPES)
def test_gradients_of_the_reference_go_straight_through(activation_type):
    x = tokens(3, 16).requires_grad_()
    grad = tokens(3, 16, seed=1)
    activations.round_tokens(x, activation_type).backward(grad)
    assert torch.equal(x.grad, grad)


def test_numbers_of_weights_say_what_activations_are_rounded_to():
    plain = image.open_weight(UINT4, 64, 256)
    rounded = image.open_weight(UINT4, 64, 256, activation_type="int8")
    assert rounded != plain and image.open_weight(UINT4, 64, 256, activation_type="") == plain
    assert [image.activation_type_of(number) for number in (plain, rounded)] == ["", "int8"]
    assert image.parts(plain) == image.parts(rounded)
    with pytest.raises(ValueError, match="x of s8 beside codes that are float4_e2m1"):
        image.open_weight("mxfp4", 64, 256, activation_type="int8")
    with pytest.raises(ValueError, match='activation_type is "int4"'):
        image.open_weight(UINT4, 64, 256, activation_type="int4")


@pytest.mark.parametrize(
    "m,plain,rounded", [(1, 1, 1), (17, 32, 32), (64, 64, 64), (65, 96, 96), (256, 256, 256),
                        (300, 320, 384), (2000, 2048, 2048), (2049, 3072, 3072),
                        (8192, 8192, 8192), (10000, 8192, 8192)]
)  # fmt: skip
def test_intervals_of_rounded_activations_go_on_and_few_tokens_are_not_rounded(m, plain, rounded):
    assert (kernels.interval(m), kernels.interval(m, "int8")) == (plain, rounded)


def test_requests_and_numbers_of_a_layer_follow_its_activation_type(monkeypatch):
    layer = ladder.Linear(256, 64, weight_type=UINT4)
    assert layer.kernel_request(torch.float16, [1]).activation_type == ""
    layer.activation_type = "int8"
    request = layer.kernel_request(torch.float16, [1])
    assert (request.activation_type, request.m) == ("int8", (1,))
    assert layer._number(False) == image.open_weight(UINT4, 64, 256, activation_type="int8")
    # With an image: another number, the same image.
    form = torch.zeros(image.parts(layer._number(False)).words, dtype=torch.int32)
    layer._set_image(form, layer._number(False))
    layer.activation_type = None
    assert layer.image is form
    assert layer._weight_number == image.open_weight(UINT4, 64, 256)


@pytest.mark.parametrize(
    "activation_type,type,k,why",
    [
        ("int8", UINT4, 256, ""),
        ("int8", "ternary,channel,scale=float16", 256, ""),
        ("int8", "uint4,group=64,scale=float16,zero=original", 256, "no whole numbers"),
        ("int8", "nf4,group=64,scale=float16", 256, "nf4"),
        ("int8", "mxfp4", 256, "x of s8 beside codes that are float4_e2m1"),
        ("int8", "uint4,channel,scale=float16", 264, "264 columns, no multiple of 16"),
        ("int8", "bfloat16", 256, "more than 8 bits"),
        ("float8_e4m3", "mxfp4", 256, ""),
        ("float8_e4m3", "nvfp4", 256, "groups of 16"),
        ("float8_e4m3", "float8_e4m3,channel,scale=float32", 256, ""),
        ("float8_e4m3", "float6_e3m2,channel,scale=float16", 256, ""),
        ("float8_e4m3", UINT4, 256, ""),
        ("float8_e4m3", "int4,group=32,scale=bfloat16", 256, ""),
        ("float8_e4m3", "uint4,group=128,scale=float16,zero=integer", 256, ""),
        ("float8_e4m3", "ternary,channel,scale=float16", 256, ""),
        ("float8_e4m3", "int5,channel,scale=float16", 256, ""),
        ("float8_e4m3", "uint5,channel,scale=float16,zero=none", 256, "up to 31 from their zero"),
        ("float8_e4m3", INT8, 256, "8 bits are up to 128 from their zero point"),
        ("float8_e4m3", "int4,group=16,scale=float16", 256, "groups of 16"),
        ("float8_e4m3", "uint4,group=64,scale=float16,zero=rescale", 256, "no whole numbers"),
        ("float8_e4m3", "uint4,channel,scale=float16", 264, "264 columns, no multiple of 16"),
        ("float8_e4m3", "float8_e5m2,channel,scale=float16", 256, "5 and 2 bits"),
    ],
)  # fmt: skip
def test_what_gpus_take_is_what_the_compiler_says(activation_type, type, k, why):
    found = activations.objection(activation_type, parse(type), k, "cuda")
    assert (found == "") == (why == "") and why in found and "\n" not in found
    if why:
        assert f"activation_type {activation_type} does not take" in found


@pytest.mark.parametrize("bits", range(1, 9))
def test_zero_points_above_the_codes_are_refused_with_both_values(bits):
    ttype, most = parse(f"uint{bits},group=64,scale=float16,zero=integer"), min(2**bits, 255)
    zeros = torch.full((8, 2), most, dtype=torch.uint8)
    assert activations.zeros_objection("int8", ttype, zeros) == ""
    if bits == 8:
        return  # a product of its own subtracts them
    zeros[5, 1] = most + 1
    assert activations.zeros_objection("", ttype, zeros) == ""
    for wanted in activations.ACTIVATION_TYPES:
        why = activations.zeros_objection(wanted, ttype, zeros)
        assert f"activation_type {wanted} does not take {ttype} with a zero point of" in why
        assert f"{most + 1} on GPUs" in why and f"at most {most}" in why


def test_zero_points_that_bytes_do_not_hold_are_refused_before_anything_is_computed(monkeypatch):
    """A layer on the CPU that takes itself to be on a GPU which has kernels for it."""
    weight = ladder.quantize(tokens(64, 256), "uint4,group=64,scale=float16,zero=integer")
    weight.zeros[3, 1] = 17
    layer = ladder.Linear.from_weight(weight)
    for module, name, value in (
        (kernels, "possible", True),
        (kernels, "objection", ""),
        (kernels, "load_transforms", "not reached"),
        (activations, "gpu_objection", ""),
        (torch.cuda, "is_available", True),
        (torch.cuda, "is_current_stream_capturing", False),
    ):
        monkeypatch.setattr(module, name, lambda *_, value=value: value)
    why = "activation_type int8 does not take uint4.* with a zero point of 17 .* at most 16 there"
    with pytest.raises(Unsupported, match=why):
        layer.activation_type = "int8"
    assert layer.activation_type is None
    layer = ladder.Linear.from_weight(weight, activation_type="int8")  # asked before it is there
    with pytest.raises(Unsupported, match=why):
        layer.prepare()
    with pytest.raises(Unsupported, match=f"^1: {why}"):
        ladder.warmup(torch.nn.Sequential(torch.nn.ReLU(), layer), m=32)


def test_e4m3_is_for_gpus_and_may_be_set_before_a_layer_is_there():
    layer = ladder.Linear(256, 64, weight_type="mxfp4", activation_type="float8_e4m3")
    why = "activation_type float8_e4m3 has kernels for devices of type cuda, and none for cpu"
    with pytest.raises(Unsupported, match=why):
        layer(torch.randn(2, 256))
    assert "activation_type=float8_e4m3" in repr(layer)
    with pytest.raises(Unsupported, match="float8_e4m3 does not take int8"):
        ladder.Linear(256, 64, weight_type=INT8, activation_type="float8_e4m3")
    with pytest.raises(Unsupported, match="float8_e4m3 does not take a weight with g_idx"):
        ladder.Linear(256, 64, weight_type="mxfp4", act_order=True, activation_type="float8_e4m3")
    assert ladder.warmup(layer) == {}


def test_experts_take_what_linear_layers_do():
    experts = ladder.Experts(2, 256, 128, weight_type="mxfp4", activation_type="float8_e4m3")
    index, weights = torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1)
    why = "activation_type float8_e4m3 has kernels for devices of type cuda, and none for cpu"
    with pytest.raises(Unsupported, match=why):
        experts(torch.randn(2, 256), index, weights)
    assert "activation_type=float8_e4m3" in repr(experts) and ladder.warmup(experts) == {}
    assert experts.offer_activation_type("float8_e4m3") == why
    assert experts.activation_type is None
    assert experts(torch.randn(2, 256), index, weights).shape == (2, 256)
    assert experts.to("meta").activation_type == "float8_e4m3"  # stands for any device
    with pytest.raises(Unsupported, match=r"^gate_up: .* float8_e4m3 does not take int8"):
        ladder.Experts(2, 256, 128, weight_type=INT8, activation_type="float8_e4m3")
    with pytest.raises(Unsupported, match=r"^down: .* 24 columns, no multiple of 16"):
        ladder.Experts(
            2, 256, 24, weight_type="int4,channel,scale=float16", activation_type="float8_e4m3"
        )


def test_other_devices_are_refused_by_name():
    for activation_type, type in (("int8", UINT4), ("float8_e4m3", "mxfp4")):
        with FakeTensorMode():
            layer = ladder.Linear(256, 64, weight_type=type, device="xpu")
            layer._activation_type = activation_type
            with pytest.raises(NotImplementedError, match="and none for xpu"):
                layer(torch.empty(2, 256, device="xpu"))

        class Elsewhere:
            device = torch.device("mps")

        with pytest.raises(NotImplementedError, match="and none for mps"):
            getattr(fallback, f"linear_{activation_type}")(Elsewhere())


@pytest.mark.parametrize("m", [3, 48, 49, 80])
@pytest.mark.parametrize("activation_type,type", [("int8", UINT4), ("float8_e4m3", "mxfp4")])
def test_the_fallback_of_gpus_rounds_more_than_48_tokens(activation_type, type, m, monkeypatch):
    """On tensors of the CPU, whose arithmetic is the same."""
    monkeypatch.setattr(fallback, "device_objection", lambda *_: "")
    linear = torch.nn.Linear(256, 24, bias=True)
    layer = ladder.Linear.from_linear(linear, type, method="nearest")
    x, w = tokens(m, 256), layer.packed_weight
    parts = (w.qweight, w.scales, w.zeros, w.scale2, None, linear.bias.detach(), str(w.type))
    y = getattr(fallback, f"linear_{activation_type}")(x, *parts)
    rounded = activations.round_tokens(x, activation_type) if m > 48 else x
    values = w.dequantize()
    assert torch.equal(y, torch.nn.functional.linear(rounded, values, linear.bias.detach()))


def test_products_of_the_library_s_own_fallback_see_the_reference():
    x = tokens(20, 64).half()
    for activation_type in activations.ACTIVATION_TYPES:
        rounded = torch.ops.ladder.round_tokens(x, activation_type)
        assert torch.equal(rounded, activations.round_tokens(x, activation_type).half())
    with pytest.raises(
        InvalidArgument, match='"int8", "float8_e4m3", "float8_e4m3,fast_accum" or None'
    ):
        activations.objection("int16", parse(UINT4), 64, "cuda")


def test_engines_take_the_activation_type_of_a_folder(caplog):
    from ladder.integrations.serving.layer import finish_weight, say_as_it_comes
    from ladder.integrations.serving.stored import Folder

    config = {"quant_method": "ladder", "format_version": 1, "weight_type": UINT4}
    assert Folder(config).module("up", 24, 256).activation_type is None
    config |= {"activation_type": "int8", "activation_types": {"down": None}}
    folder = Folder(config).renamed(lambda name: f"model.{name}")
    assert folder.module("model.up", 24, 256).activation_type == "int8"
    assert folder.module("model.down", 24, 256).activation_type is None
    layer = ladder.Linear.from_linear(torch.nn.Linear(256, 24, bias=False), UINT4)
    run, tensors = finish_weight(layer.packed_weight, torch.float16, activation_type="int8")
    room, x = torch.nn.Module(), tokens(20, 256)
    for name, tensor in tensors.items():
        room.register_buffer(name, tensor)
    layer.activation_type = "int8"
    assert run.activation_type == "int8" and torch.equal(run(room, x, None), layer(x))
    say_as_it_comes.cache_clear()
    for _ in range(2):
        layer = ladder.Linear.from_linear(torch.nn.Linear(256, 24, bias=False), INT8)
        run, tensors = finish_weight(
            layer.packed_weight, torch.float16, activation_type="float8_e4m3"
        )
        room = torch.nn.Module()
        for name, tensor in tensors.items():
            room.register_buffer(name, tensor)
        assert run.activation_type == "" and torch.equal(run(room, x, None), layer(x))
    (said,) = (record.getMessage() for record in caplog.records)
    assert "as they come" in said and "float8_e4m3 does not take int8" in said


def test_engines_have_fast_sums_where_folders_say_nothing_of_them():
    """As their own kernels have them; of ladder's folders as these say."""
    from ladder.integrations.serving.stored import Folder

    fp8 = Folder({"quant_method": "fp8", "activation_scheme": "dynamic"})
    assert fp8.module("up", 24, 256).activation_type == activations.FAST_ACCUM
    fp8.fast_accum = False
    renamed = fp8.renamed(lambda name: name)
    assert renamed.module("up", 24, 256).activation_type == "float8_e4m3"
    for said in ("int8", "float8_e4m3", activations.FAST_ACCUM):
        config = {"quant_method": "ladder", "format_version": 1, "weight_type": UINT4}
        folder = Folder(config | {"activation_type": said})
        assert folder.module("up", 24, 256).activation_type == said
        for fast, of_e4m3 in ((True, activations.FAST_ACCUM), (False, "float8_e4m3")):
            folder.fast_accum = fast
            wanted = said if said == "int8" else of_e4m3
            assert folder.module("up", 24, 256).activation_type == wanted


def test_a_layer_of_one_k_tile_is_refused_by_its_columns_where_tiles_have_two():
    """So NVIDIA's; waves of AMD's have one, and of no machine in particular nothing is refused."""
    text = "uint4,group=32,scale=float16,zero=midpoint"

    def explained(device: str) -> dict[str, str]:
        given = (64, 64, 64, text, "float16", device, 8, True, False, "float8_e4m3")
        return dict(_C.explain(*given))

    tiles, waves = explained("h200"), explained("mi300x")
    why = "the layer's 64 columns are no more than one k-tile of"
    assert why in tiles["candidates"] and "schedule" not in tiles
    assert why not in waves["candidates"] and "schedule" in waves
    for k in (64, 256):
        assert activations.objection("float8_e4m3", parse(text), k, "cuda") == ""
