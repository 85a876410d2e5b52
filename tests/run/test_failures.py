# SPDX-License-Identifier: Apache-2.0
"""A machine whose compiler or driver fails: one line in the log, torch's way, no exception of every
call. tests/runtime has what the library does; here a CPU is taken for the device."""

import logging

import pytest
import torch
from drawn import exact_weight, integers

import ladder
from ladder.cuda import image, kernels
from ladder.nn import linear as linear_module
from ladder.nn import linear_products

without_driver = pytest.mark.skipif(torch.cuda.is_available(), reason="a driver is here")

N, K = 64, 128
TYPE = "uint4,group=64,scale=float16"


@pytest.fixture
def device(monkeypatch):
    """The CPU as a device that may have kernels."""
    monkeypatch.setattr(kernels, "possible", lambda device: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    objection = kernels.objection
    objection.cache_clear()
    yield
    objection.cache_clear()


@pytest.fixture
def layer():
    return ladder.Linear.from_weight(exact_weight(TYPE, N, K))


def exact(layer, x):
    return (x.double() @ layer.packed_weight.dequantize(torch.float64).T).to(x.dtype)


@without_driver
def test_a_machine_without_a_driver_goes_through_torch(device, layer):
    """The library itself says why: nothing of it is replaced."""
    assert not layer.prepare()
    x = integers((3, K), torch.float32)
    assert torch.equal(layer(x), exact(layer, x))


@without_driver
@pytest.mark.skipif(torch.version.cuda is not None, reason="torch's own CUDA fails first")
def test_what_cannot_be_loaded_before_packing_leaves_the_codes(device, layer, monkeypatch):
    monkeypatch.setattr(kernels, "objection", lambda *_: "")
    asked = []
    monkeypatch.setattr(image, "pack", lambda *_: pytest.fail("packed what cannot be unpacked"))
    real = kernels.load_transforms
    monkeypatch.setattr(kernels, "load_transforms", lambda *a: asked.append(a) or real(*a))
    x = integers((3, K), torch.float32)
    for _ in range(3):
        assert not layer.prepare()
        assert torch.equal(layer(x), exact(layer, x))
    assert len(asked) == 1  # not by every call
    assert "CUDA" in real(*asked[0])


def in_image(layer, monkeypatch):
    """``layer`` as if its codes were in an image that can be unpacked but not multiplied."""
    codes = layer.qweight
    monkeypatch.setattr(image, "unpack", lambda *_: codes)
    layer._set_image(torch.zeros(8, dtype=torch.int32), 1)
    layer.register_buffer("qweight", None)

    def fail(*_):
        raise RuntimeError("cuModuleLoadData: CUDA_ERROR_FAKE: the device is gone")

    monkeypatch.setattr(linear_module, "_linear_no_grad", fail)
    monkeypatch.setattr(linear_module, "_linear_with_grad", fail)
    monkeypatch.setattr(linear_products, "linear_image", fail)
    return codes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("grad", [False, True])
def test_a_failure_after_packing_brings_the_codes_back(layer, monkeypatch, device, grad, dtype):
    codes = in_image(layer, monkeypatch)
    monkeypatch.setattr(kernels, "failure", lambda device: "CUDA_ERROR_FAKE")
    x = integers((3, K), dtype).requires_grad_(grad)
    for _ in range(2):
        with torch.set_grad_enabled(grad):
            y = layer(x)
        assert torch.equal(y, exact(layer, x))
    assert layer.image is None and layer.qweight is codes


def test_an_error_of_a_device_that_has_not_failed_is_the_caller_s(layer, monkeypatch, device):
    in_image(layer, monkeypatch)
    for x in (integers((3, K), torch.float32), integers((3, K), torch.float32).requires_grad_()):
        with pytest.raises(RuntimeError, match="CUDA_ERROR_FAKE"):
            layer(x)
    assert layer.image is not None


def test_the_library_logs_by_itself_and_once(caplog, tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    with caplog.at_level(logging.WARNING, logger="ladder"):
        torch.ops.ladder.use_store(str(folder), False)
        torch.ops.ladder.use_store(str(folder), False)
        torch.ops.ladder.log_notices()
        torch.ops.ladder.log_notices()
    lines = [record.getMessage() for record in caplog.records if str(folder) in record.getMessage()]
    assert len(lines) == 1 and "chmod go-w" in lines[0] and "new kernels go to" in lines[0]
