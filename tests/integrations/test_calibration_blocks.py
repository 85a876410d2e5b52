# SPDX-License-Identifier: Apache-2.0
"""What layers are given block by block is what the whole model gives them, whatever blocks do."""

import copy
from collections import UserDict

import pytest
import torch
from diffusion_models import fresh as diffusion_model
from hf_models import PLAIN
from sums import check_sums
from torch import nn

from ladder.nn.calibration.blocks import in_turn
from ladder.nn.calibration.calls import at_rest, calls_of
from ladder.nn.select import survey

WIDTH = 16


def inputs_of(model, names, calls):
    """[tokens, K] of each layer, of all calls one after the other."""
    found = {name: [] for name in names}
    handles = [
        model.get_submodule(name).register_forward_pre_hook(
            lambda _, args, name=name: found[name].append(args[0].detach().flatten(0, -2).clone())
        )
        for name in names
    ]
    for call in calls:
        call(model)
    for handle in handles:
        handle.remove()
    return {name: torch.cat(rows) if rows else torch.zeros(0, 1) for name, rows in found.items()}


def check(model, batches, *, unpaired=()):
    """Each turn has the sums of the model as it is then, and of the dense one; then its weights
    become others."""
    dense, calls = copy.deepcopy(model), calls_of(batches)
    names, order = [layer.name for layer in survey(model, ()).found], []
    generator = torch.Generator().manual_seed(5)
    with at_rest(model), at_rest(dense):
        before = inputs_of(dense, names, calls)
        for turn in in_turn(model, survey(model, ()).found, calls):
            now = inputs_of(model, names, calls)
            for part, sums in zip(turn.parts, turn.hessians, strict=True):
                name, (hessian, cross) = part.layer.name, sums.of()
                order.append(name)
                x, y = now[name], before[name]
                assert sums.inputs() == len(x)
                if not len(x):
                    assert hessian is None
                    continue
                check_sums(hessian, x, x)
                if name in unpaired:
                    assert cross is None
                elif cross is not None:
                    check_sums(cross, y, x)
            for part in turn.parts:
                weight = part.layer.module.weight
                weight += 0.1 * weight.std() * torch.randn(weight.shape, generator=generator)
    assert sorted(order) == sorted(names)
    return order


class Block(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + self.linear(x).tanh()


class Net(nn.Module):
    """Blocks, and how they are called."""

    def __init__(self, block=Block, count=3, width=WIDTH):
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(count))
        self.before, self.after = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        x = self.before(x)
        for block in self.blocks:
            x = block(x)
        return self.after(x)


class WritesBetween(Net):
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
            x += x.roll(1, 0)
        return x


class TwoStreams(Net):
    """Each block gives two tensors to the next one."""

    class Block(Block):
        def forward(self, x, y):
            y = y + self.linear(x).tanh()
            return x + y.sin(), y

    def __init__(self):
        super().__init__(self.Block)

    def forward(self, x):
        x, y = x, x.cos()
        for block in self.blocks:
            x, y = block(x, y)
        return x + y


class Accumulates(Net):
    """Blocks write to a second argument."""

    class Block(Block):
        def forward(self, x, sums):
            sums += self.linear(x + sums)
            return x.roll(1, 0) + 0

    def __init__(self):
        super().__init__(self.Block)

    def forward(self, x):
        sums = torch.zeros_like(x)
        for block in self.blocks:
            x = block(x, sums)
        return sums


class Skips(Net):
    """Blocks fill a list, and others take from it."""

    class Down(Block):
        def forward(self, x, skips):
            x = super().forward(x)
            skips.append(x)
            return x

    class Up(Block):
        def forward(self, x, skips):
            return super().forward(x + skips.pop())

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([self.Down(), self.Down(), self.Up(), self.Up()])

    def forward(self, x):
        skips = []
        for block in self.blocks:
            x = block(x, skips)
        return x


class Shares(Net):
    """The first block leaves something in a dictionary for the others; blocks give dictionaries."""

    class Block(Block):
        def forward(self, x, shared):
            shared.setdefault("first", self.linear(x))
            return {"x": x + self.linear(x + shared["first"]).tanh()}

    def __init__(self):
        super().__init__(self.Block)

    def forward(self, x):
        shared = {}
        for block in self.blocks:
            x = block(x, shared=shared)["x"]
        return x


class SharesInAnother(Shares):
    """What blocks share is in a mapping that is no dict, as Gemma 3n has it."""

    def forward(self, x):
        shared = UserDict()
        for block in self.blocks:
            x = block(x, shared=shared)["x"]
        return x


class SkipsTheFirst(Net):
    """Short inputs pass over a block."""

    SKIPPED = 0

    def forward(self, x):
        for number, block in enumerate(self.blocks):
            x = block(x) if number != self.SKIPPED or len(x) > 6 else x
        return x


class SkipsTheLast(SkipsTheFirst):
    SKIPPED = 2


class Exits(Net):
    """Some inputs leave early."""

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
            if x.mean() > 0:
                break
        return x


class OneLayerInTwoBlocks(Net):
    def __init__(self):
        super().__init__()
        self.blocks[2].linear = self.blocks[0].linear


class ByKeyword(Net):
    class Block(Block):
        def forward(self, *, hidden_states, scale=1.0):
            return (super().forward(hidden_states) * scale, None)

    def __init__(self):
        super().__init__(self.Block)

    def forward(self, x):
        for block in self.blocks:
            (x, _) = block(hidden_states=x, scale=0.9)
        return x


class Chunks(Net):
    """A layer runs once for each eight rows."""

    class Block(Block):
        def forward(self, x):
            return torch.cat([super(Chunks.Block, self).forward(part) for part in x.split(8)])

    def __init__(self):
        super().__init__(self.Block)


class WritesWithin(Net):
    """Two layers are given one tensor, which has been written to between them."""

    class Block(Block):
        def __init__(self):
            super().__init__()
            self.second = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            x = x + 0
            x += self.linear(x).tanh()
            x += self.second(x).tanh()
            return x

    def __init__(self):
        super().__init__(self.Block)


class OneByOne(nn.Sequential):
    """No list of blocks."""

    def __init__(self):
        super().__init__(*(Block() for _ in range(3)))


class Routed(Net):
    """Tokens go to modules of their own, most of those that the first inputs do not reach."""

    class Block(Block):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

        def forward(self, x):
            x = super().forward(x)
            out = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                chosen = (x[..., 0] > 0) == bool(number)
                if chosen.any():
                    out[chosen] = expert(x[chosen])
            return x + out

    def __init__(self):
        super().__init__(self.Block, count=2)


def inputs(*lengths):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(length, WIDTH, generator=generator) for length in lengths]


@pytest.mark.parametrize(
    "net",
    [
        Net, WritesBetween, TwoStreams, Accumulates, Skips, Shares, SharesInAnother, Exits,
        OneLayerInTwoBlocks, ByKeyword, Chunks, WritesWithin, OneByOne, Routed,
    ],
)  # fmt: skip
def test_sums_are_those_of_the_whole_model(net):
    torch.manual_seed(0)
    check(net(), inputs(5, 24, 40, 9))


@pytest.mark.parametrize("net", [SkipsTheFirst, SkipsTheLast])
def test_calls_that_pass_over_a_block(net):
    torch.manual_seed(0)
    check(net(), inputs(24, 5, 30, 6))


def test_layers_in_no_block_come_last():
    torch.manual_seed(0)
    order = check(Net(), inputs(30))
    assert order == ["blocks.0.linear", "blocks.1.linear", "blocks.2.linear", "before", "after"]


def test_a_layer_that_the_first_batches_do_not_reach_has_the_inputs_of_others():
    class Some(Net):
        def forward(self, x):
            for number, block in enumerate(self.blocks):
                x = block(x) if number != 1 or len(x) > 6 else x
            return x

    torch.manual_seed(0)
    check(Some(), inputs(5, 6, 20, 30))


def test_tokens_of_a_router_have_no_pairs():
    """Also where both models choose as many."""

    class Chosen(Net):
        class Block(Block):
            def __init__(self):
                super().__init__()
                self.expert = nn.Linear(WIDTH, WIDTH)

            def forward(self, x):
                x = super().forward(x)
                rows = x[:, 0].topk(4).indices
                return x.index_add(0, rows, self.expert(x[rows]))

        def __init__(self):
            super().__init__(self.Block, count=2)

    torch.manual_seed(0)
    check(Chosen(), inputs(30, 40), unpaired=("blocks.0.expert", "blocks.1.expert"))


@pytest.mark.parametrize("family", ["Bart", "Whisper", "T5", "GPT2", "Dinov2"])
def test_sums_of_models_of_transformers(family):
    import transformers

    plain = PLAIN[family]
    torch.manual_seed(0)
    config = getattr(transformers, f"{plain.of or family}Config")(**plain.config)
    model = getattr(transformers, plain.model)(config).eval()
    made = {
        "input_ids": torch.randint(0, 128, (1, 20)),
        "decoder_input_ids": torch.randint(0, 128, (1, 12)),
        "pixel_values": torch.randn(1, 3, 32, 32),
        "input_features": torch.randn(1, 80, 32),
    }
    check(model, [{name: made[name] for name in plain.inputs} for _ in range(2)])


def test_sums_of_flux_whose_blocks_have_two_streams():
    model, given = diffusion_model("flux")
    check(model, [given] if isinstance(given, dict) else [tuple(given)])
