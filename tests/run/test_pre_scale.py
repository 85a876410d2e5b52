# SPDX-License-Identifier: Apache-2.0
"""``Linear.pre_scale``: numbers for the columns of x."""

import copy
import io
import pickle

import pytest
import torch
from drawn import exact_weight, formula, generator

import ladder
from ladder.errors import InvalidArgument, Unsupported
from ladder.nn.parallel import Shard, cut

N, K = 48, 128
TYPE = "uint4,group=32,scale=float16,zero=integer"


def powers(seed=0):
    return torch.exp2(torch.randint(-2, 3, (K,), generator=generator(seed)).float())


def layer(seed=0, bias=True):
    made = ladder.Linear.from_weight(
        exact_weight(TYPE, N, K, seed=seed), torch.arange(N).float() if bias else None
    )
    made.pre_scale = powers(seed)
    return made


def inputs(m=3, dtype=torch.float32):
    return torch.randint(-2, 3, (m, K), generator=generator(9)).to(dtype)


def expected(made, x):
    y = (x.double() * made.pre_scale.double()) @ formula(made.packed_weight).T
    return y if made.bias is None else y + made.bias.double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_columns_are_multiplied_before_the_product(dtype):
    made, x = layer(), inputs(dtype=dtype)
    y = made(x)
    assert y.dtype == dtype and torch.equal(y.double(), expected(made, x).to(dtype).double())
    plain = layer()
    plain.pre_scale = None
    assert not torch.equal(y, plain(x))


def test_the_product_with_x_is_rounded_once():
    made, x = layer(), torch.rand(4, K, generator=generator(1)).half()
    made.pre_scale = torch.rand(K, generator=generator(2)) + 0.5
    by_hand = (x.float() * made.pre_scale).half()
    plain = layer()
    plain.pre_scale = None
    assert torch.equal(made(x), plain(by_hand))


def test_it_comes_before_rounding_to_int8():
    made, plain, x = layer(bias=False), layer(bias=False), inputs().float() + 0.3
    for each in (made, plain):
        each.activation_type = "int8"
    plain.pre_scale = None
    assert torch.equal(made(x), plain(x * made.pre_scale))


def test_kernels_are_given_the_product(monkeypatch):
    """What a GPU does, whose kernels are not here: the shortest way to them is not taken."""
    from ladder.nn import linear, linear_products

    made, x = layer(bias=False), inputs()
    made._set_image(torch.zeros(4, dtype=torch.int32), 7)
    monkeypatch.setattr(linear, "_linear_no_grad", lambda *given: None)
    monkeypatch.setattr(linear_products, "linear_image", lambda x, image, bias, number, n: x)
    assert torch.equal(made(x), x * made.pre_scale)


def test_state_dicts_copies_and_pickles_keep_it():
    made, x = layer(), inputs()
    file = io.BytesIO()
    torch.save(made.state_dict(), file)
    file.seek(0)
    loaded = ladder.Linear.from_weight(exact_weight(TYPE, N, K, seed=5), torch.zeros(N))
    loaded.load_state_dict(torch.load(file))
    for other in (loaded, copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert torch.equal(other.pre_scale, made.pre_scale)
        assert torch.equal(other(x), made(x))
    half = copy.deepcopy(made).half()
    assert half.pre_scale.dtype == torch.float32
    assert "pre_scale" in repr(made)


def test_the_dense_form_has_it_in_its_columns():
    made, x = layer(), inputs()
    assert torch.equal(made.dequantize()(x).double(), expected(made, x))


def test_compiled_and_exported_calls_are_the_same():
    made, x = layer(), inputs()
    compiled = torch.compile(made, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), made(x))
    program = torch.export.export(made, (x,))
    assert torch.equal(program.module()(x), made(x))


def test_gradients_go_through_it():
    made, x = layer(bias=False), inputs().requires_grad_()
    made(x).sum().backward()
    wanted = formula(made.packed_weight).sum(0) * made.pre_scale.double()
    assert torch.equal(x.grad.double(), wanted.expand(3, K))


def test_what_is_no_scale_of_the_columns_is_refused():
    made = layer()
    with pytest.raises(InvalidArgument, match=r"pre_scale is \[7\] .*, not \[128\] floats"):
        made.pre_scale = torch.ones(7)
    with pytest.raises(InvalidArgument, match="not finite"):
        made.pre_scale = torch.full((K,), float("inf"))
    state = made.state_dict() | {"pre_scale": torch.ones(K, dtype=torch.int32)}
    with pytest.raises(InvalidArgument, match="int32, not"):
        made.load_state_dict(state)
    with pytest.raises(Unsupported, match="codes already"):
        made.forward_codes(torch.zeros(2, K, dtype=torch.int8))


def test_a_layer_that_is_cut_over_processes_is_refused():
    shard = Shard(0, 2, along="columns", x_split=True, y_split=False)
    with pytest.raises(Unsupported, match="pre_scale.*without tensor parallelism"):
        cut(layer(), shard, None)


class Pair(torch.nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x):
        return torch.cat((self.first(x), self.second(x)), -1)


def test_layers_with_the_same_numbers_are_merged_and_others_are_not():
    x = inputs()
    alike = Pair(layer(), layer())
    alike.second.set_weight(exact_weight(TYPE, N, K, seed=3))
    before = alike(x)
    assert "merged" in str(ladder.optimize(alike, example=x))
    assert torch.equal(alike(x), before)
    assert type(alike.first).__mro__[1] is ladder.Linear  # one weight with the other
    alike.first.pre_scale = powers(1)  # takes them apart
    assert type(alike.first) is ladder.Linear
    assert torch.equal(alike.second.pre_scale, powers(0))
    unlike = Pair(layer(0), layer(1))
    before, said = unlike(x), str(ladder.optimize(unlike, example=x))
    assert "pre_scale" in said and torch.equal(unlike(x), before)
