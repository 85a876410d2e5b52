# SPDX-License-Identifier: Apache-2.0
"""Loading: a tensor that does not come is named, and weights that come a second time (as in
reinforcement learning) are written to the memory that CUDA graphs read."""

from __future__ import annotations

import pytest
import torch
from drawn import TWO_LEVELS
from layers import (
    Stored,
    activations,
    load,
    make,
    parts_of,
    prefix,
    product,
    quantization,
    run,
    serve,
    write,
)

pytestmark = pytest.mark.usefixtures("vllm")

ZEROS = "uint4,group=32,scale=float16,zero=integer"
MIXED = (ZEROS, "nvfp4", "uint2,group=64,scale=bfloat16")


@pytest.mark.parametrize(
    "type, part",
    [
        (ZEROS, "qweight"),
        (ZEROS, "scales"),
        (ZEROS, "zeros"),
        (ZEROS, "g_idx"),
        ("nvfp4", "scale2"),
        (TWO_LEVELS, "scale2"),
        ("uint4,group=32,scale=float16,zero=original", "zeros"),
    ],
)
@pytest.mark.parametrize("name", ("qkv_proj", "o_proj", "lm_head", "embed_tokens"))
def test_a_tensor_that_does_not_come_is_named(name, type, part, tmp_path):
    stored = Stored.drawn(dict.fromkeys(parts_of(name), type), act_order=part == "g_idx")
    tensors = stored.tensors()
    write(tmp_path, tensors, stored.config())
    lost = f"{prefix(parts_of(name)[-1])}.{part}"
    del tensors[lost]
    with pytest.raises(Exception, match=lost.replace(".", r"\.")):
        serve(name, tmp_path, tensors)


@pytest.mark.parametrize("part", ("scales", "zeros", "scale2"))
def test_a_tensor_that_the_files_lack_is_named(part, tmp_path):
    type = "nvfp4" if part == "scale2" else ZEROS
    stored = Stored.drawn(dict.fromkeys(parts_of("qkv_proj"), type))
    tensors = stored.tensors()
    lost = f"{prefix('k_proj')}.{part}"
    del tensors[lost]
    write(tmp_path, tensors, stored.config())
    with pytest.raises(Exception, match=lost.replace(".", r"\.")):
        serve("qkv_proj", tmp_path, tensors)


def test_a_module_that_the_files_lack_is_named(tmp_path):
    stored = Stored.drawn(dict.fromkeys(parts_of("qkv_proj"), ZEROS))
    tensors = {n: t for n, t in stored.tensors().items() if ".k_proj." not in n}
    write(tmp_path, tensors, stored.config())
    with pytest.raises(Exception, match=r"self_attn\.k_proj"):
        serve("qkv_proj", tmp_path, tensors)


@pytest.mark.parametrize("part", ("qweight", "scales"))
def test_a_tensor_of_another_shape_is_named_with_both_shapes(part, tmp_path):
    stored = Stored.drawn(dict.fromkeys(parts_of("qkv_proj"), ZEROS))
    tensors = stored.tensors()
    name = f"{prefix('v_proj')}.{part}"
    shape, cut = list(tensors[name].shape), tensors[name][:-1].contiguous()
    with pytest.raises(Exception, match=name.replace(".", r"\.")) as raised:
        write(tmp_path, tensors | {name: cut}, stored.config())
        serve("qkv_proj", tmp_path, tensors | {name: cut})
    assert str(shape) in str(raised.value)
    assert str(list(cut.shape)) in str(raised.value)


def test_a_scale_that_is_not_finite_is_named(tmp_path):
    stored = Stored.drawn(dict.fromkeys(parts_of("qkv_proj"), ZEROS))
    stored.weights["v_proj"].scales[3, 1] = float("nan")
    write(tmp_path, stored.tensors(), stored.config())
    with pytest.raises(Exception, match=r"v_proj.*scales\[3, 1\] is nan"):
        serve("qkv_proj", tmp_path, stored.tensors())


@pytest.mark.parametrize(
    "types, act_order",
    [((ZEROS, ZEROS, ZEROS), False), (("nvfp4",) * 3, False), (MIXED, False),
     ((TWO_LEVELS,) * 3, False), ((ZEROS, ZEROS, ZEROS), True), (("dense", ZEROS, ZEROS), False)],
    ids=("uint4", "nvfp4", "mixed", "two levels", "act-order", "with dense"),
)  # fmt: skip
@pytest.mark.parametrize("bias", (False, True), ids=("plain", "bias"))
def test_weights_that_come_again_take_the_place_of_the_first(types, act_order, bias, tmp_path):
    from vllm.model_executor.model_loader import reload

    named = dict(zip(parts_of("qkv_proj"), types, strict=True))
    first, second = (
        Stored.drawn(named, bias=bias, act_order=act_order, seed=seed) for seed in (0, 20)
    )
    write(tmp_path, first.tensors(), first.config())
    config = quantization(tmp_path)
    layer = make("qkv_proj", config, bias=bias, dtype=torch.float32)
    reload.record_metadata_for_reloading(layer)
    load(layer, "qkv_proj", first.tensors(), config)
    layer.quant_method.process_weights_after_loading(layer)
    x = activations("qkv_proj")
    assert torch.equal(run(layer, x), torch.cat(product(first, "qkv_proj", x), -1))

    memory = {name: tensor.data_ptr() for name, tensor in layer.state_dict().items()}
    reload.initialize_layerwise_reload(layer)
    load(layer, "qkv_proj", second.tensors(), config)
    reload.finalize_layerwise_reload(layer, None)
    assert torch.equal(run(layer, x), torch.cat(product(second, "qkv_proj", x), -1))
    assert {name: t.data_ptr() for name, t in layer.state_dict().items()} == memory


def test_a_tensor_that_does_not_come_again_is_named(tmp_path):
    from vllm.model_executor.model_loader import reload

    stored = Stored.drawn(dict.fromkeys(parts_of("qkv_proj"), ZEROS))
    tensors = stored.tensors()
    write(tmp_path, tensors, stored.config())
    config = quantization(tmp_path)
    layer = make("qkv_proj", config, dtype=torch.float32)
    reload.record_metadata_for_reloading(layer)
    load(layer, "qkv_proj", tensors, config)
    layer.quant_method.process_weights_after_loading(layer)

    reload.initialize_layerwise_reload(layer)
    again = {n: t for n, t in tensors.items() if not n.endswith("k_proj.scales")}
    load(layer, "qkv_proj", again, config)
    with pytest.raises(Exception, match=r"k_proj\.scales"):
        reload.finalize_layerwise_reload(layer, None)


@pytest.mark.parametrize("name", ("qkv_proj", "o_proj"))
def test_a_layer_keeps_one_copy_of_its_weights(name, tmp_path):
    """Bytes of a served layer are those of the weight: what loading needed is let go."""
    stored = Stored.drawn(dict.fromkeys(parts_of(name), ZEROS))
    layer = serve(name, write(tmp_path, stored.tensors(), stored.config()), stored.tensors())
    kept = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
            for t in (*layer.parameters(), *layer.buffers())}  # fmt: skip
    assert sum(kept.values()) == sum(stored.weights[m].nbytes for m in parts_of(name))
