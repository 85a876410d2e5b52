# SPDX-License-Identifier: Apache-2.0
"""``dependent_launch``: what the option keeps everywhere; test_cuda_dependent_launch.py has what it
does on a GPU."""

import copy
import io
import pickle

import pytest
import torch
from drawn import exact_weight, integers
from gpu import UINT4
from torch import nn

import ladder
from ladder.cuda import image


def layer(type: str = UINT4, n: int = 64, k: int = 256, **kinds) -> ladder.Linear:
    return ladder.Linear.from_weight(exact_weight(type, n, k, **kinds))


def test_a_layer_has_it_only_when_asked_for():
    model = nn.Sequential(layer(), nn.ReLU(), layer())
    assert ladder.warmup(model) == {} and not model[0].dependent_launch
    assert "dependent_launch" not in repr(model)
    ladder.warmup(model, dependent_launch=True)
    assert model[0].dependent_launch and model[2].dependent_launch
    ladder.warmup(model)  # which says nothing of it
    assert model[0].dependent_launch and "dependent_launch=True" in repr(model[0])
    ladder.warmup(model[0], dependent_launch=False)
    assert not model[0].dependent_launch and model[2].dependent_launch


def test_copies_and_pickles_keep_it_and_checkpoints_have_not_heard_of_it():
    module = layer()
    plain = set(module.state_dict())
    module.dependent_launch = True
    assert set(module.state_dict()) == plain
    assert copy.deepcopy(module).dependent_launch
    assert pickle.loads(pickle.dumps(module)).dependent_launch
    other = layer()
    other.load_state_dict(module.state_dict())
    assert not other.dependent_launch
    module.load_state_dict(other.state_dict())
    assert module.to(torch.bfloat16).dependent_launch
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    assert torch.load(file, weights_only=False).dependent_launch


def test_a_module_that_was_pickled_before_there_was_such_an_option_has_it_off():
    module = layer()
    state = module.__getstate__()
    state.pop("_dependent_launch", None)
    older = ladder.Linear.__new__(ladder.Linear)
    older.__setstate__(state)
    assert not older.dependent_launch


def test_results_elsewhere_are_the_same():
    module, x = layer(), integers((3, 256), torch.float32)
    wanted = module(x)
    module.dependent_launch = True
    assert torch.equal(module(x), wanted)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), wanted)


@pytest.mark.parametrize("gather", (False, True))
def test_numbers_stand_apart_and_images_are_the_same(gather):
    without = image.open_weight(UINT4, 64, 256, gather)
    number = image.open_weight(UINT4, 64, 256, gather, dependent_launch=True)
    assert number != without
    assert number == image.open_weight(UINT4, 64, 256, gather, dependent_launch=True)
    assert image.parts(number) == image.parts(without)


@pytest.mark.parametrize("gather", (False, True))
def test_an_image_that_is_there_already_changes_its_number_and_nothing_else(gather):
    module = layer()
    number = image.open_weight(UINT4, 64, 256, gather)
    words = torch.zeros(image.parts(number).words, dtype=torch.int32)
    module._set_image(words, number)
    module.dependent_launch = True
    assert module.image is words
    assert module._weight_number == image.open_weight(UINT4, 64, 256, gather, dependent_launch=True)
    module.dependent_launch = False
    assert module._weight_number == number
    # DataParallel copies the image to a replica just before it is called.
    module.dependent_launch = True
    replica = module._replicate_for_data_parallel()
    assert not replica.dependent_launch and replica._weight_number == number
    assert module.dependent_launch


@pytest.mark.parametrize("dependent_launch", (False, True))
def test_fakes_know_both_numbers(dependent_launch):
    number = image.open_weight(UINT4, 64, 256, dependent_launch=dependent_launch)
    x = torch.empty((2, 3, 256), dtype=torch.float16, device="meta")
    words = torch.empty(image.parts(number).words, dtype=torch.int32, device="meta")
    y = torch.ops.ladder.linear_image(x, words, None, number, 64)
    assert y.shape == (2, 3, 64) and y.dtype == torch.float16
