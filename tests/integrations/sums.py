# SPDX-License-Identifier: Apache-2.0
"""Sums over the inputs of layers, in another order than that of the model's calls."""

from ladder.nn.calibration.blocks import in_turn


def check_sums(found, before, x):
    """``found`` [K, K] is ``before.T @ x``: each of two float32 sums errs by a rounding for each of
    its terms at most."""
    bound = 2 * len(x) * 2**-24 * (before.abs().T @ x.abs())
    assert ((found - before.T @ x).abs() <= bound).all()


def sums_of(model, layer, *args):
    """Of both stacks of experts, or of the one weight, in one call of ``model``."""
    found = {}
    for turn in in_turn(model, [layer], [lambda m: m(*args)]):
        for part, hessians in zip(turn.parts, turn.hessians, strict=True):
            found[part.stack] = hessians
    return found


def squares_bound(weight, hessian, count, bias=None):
    """How far ``weight @ hessian @ weight.T`` and the squares of ``count`` outputs may be apart:
    (n + K) roundings of each, whose terms Cauchy and Schwarz bound by the diagonal."""
    size = weight.abs() @ hessian.diagonal().sqrt()
    size = size if bias is None else size + count**0.5 * bias.abs()
    return 4 * (count + weight.shape[1]) * 2**-24 * size.square()
