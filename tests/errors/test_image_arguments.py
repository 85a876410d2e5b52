# SPDX-License-Identifier: Apache-2.0
"""What the CUDA ops refuse of an image, reached without a GPU: they look at it before a device."""

import pytest
import torch
from torch import Tensor

import ladder  # noqa: F401  (registers torch.ops.ladder)

TYPE = "uint4,group=64,scale=float16"
N, K = 128, 256
CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)


def weight() -> tuple[int, int]:
    """Its number, and the words of its image."""
    number = torch.ops.ladder.open_weight(TYPE, N, K, False, False)
    return number, int(torch.ops.ladder.image_parts(number).split()[1])


def linear(number: int, image: Tensor) -> Tensor:
    op = torch.ops.ladder.linear_image.default
    return op.redispatch(CUDA, torch.zeros(1, K).half(), image, None, number, N)


def dequantize(number: int, image: Tensor) -> Tensor:
    op = torch.ops.ladder.dequantize_image.default
    return op.redispatch(CUDA, image, number, N, K, torch.float16)


@pytest.mark.parametrize("call", (linear, dequantize))
def test_an_image_that_cannot_be_the_weights_is_refused_with_both_values(call):
    number, words = weight()
    image = torch.zeros(words, dtype=torch.int32)
    for wrong, message in (
        (image.half(), "image has dtype float16, not int32"),
        (image[:-1], rf"image has {words - 1} words; a weight of .* \[128, 256\] has {words}"),
        (image.reshape(2, -1).t(), rf"image of shape \[{words // 2}, 2\] is not contiguous"),
        (image, "image is on the cpu, not on cuda"),
    ):
        # From torch 2.15 on RuntimeError, of redispatch, which nothing but this file calls.
        with pytest.raises((ValueError, RuntimeError), match=message):
            call(number, wrong)


def test_what_a_device_cannot_do_is_a_runtime_error_of_the_ops():
    """And no NotImplementedError, which torch's ops have no words for (csrc/base/error.h)."""
    if torch.backends.cuda.is_built():
        pytest.skip("this torch has CUDA")
    with pytest.raises(RuntimeError, match="this torch was built without CUDA") as caught:
        torch.ops.ladder.warm_up(weight()[0], 0, torch.float16, 1)
    assert type(caught.value) is RuntimeError
