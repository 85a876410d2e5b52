# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from hf_models import GPTQ, load

from ladder.errors import InvalidArgument
from ladder.evaluate.perplexity import load_tokens, perplexity
from ladder.integrations.transformers import dense


class Uniform(torch.nn.Module):
    def forward(self, ids):
        return torch.zeros(1, ids.shape[1], 32)


class Copier(torch.nn.Module):
    """Sure that the next token is this one plus one."""

    def forward(self, ids):
        return (torch.nn.functional.one_hot((ids + 1) % 32, 32).float() * 100,)


def test_a_model_that_knows_nothing_has_the_perplexity_of_its_vocabulary():
    assert perplexity(Uniform(), torch.arange(20) % 32) == pytest.approx(32, rel=1e-6)


def test_windows_do_not_see_each_other():
    """Within a row each token follows the one before; from row to row it does not."""
    rows = torch.stack([torch.arange(4), torch.arange(10, 14)])
    assert perplexity(Copier(), rows) == pytest.approx(1)
    assert perplexity(Copier(), rows.flatten(), chunk=4) == pytest.approx(1)
    assert perplexity(Copier(), rows.flatten(), chunk=8) > 1e3


def test_a_rest_of_two_tokens_counts_and_one_of_one_does_not():
    seen = []
    perplexity(Uniform(), torch.arange(10) % 32, chunk=4, progress=lambda *a: seen.append(a))
    assert seen == [("", 1, 3), ("", 2, 3), ("", 3, 3)]
    seen.clear()
    perplexity(Uniform(), torch.arange(9) % 32, chunk=4, progress=lambda *a: seen.append(a))
    assert [total for _, _, total in seen] == [2, 2]


@pytest.mark.parametrize(
    ("tokens", "chunk", "message"),
    [
        (torch.zeros(8), 4, "dtype torch.float32, not an integer"),
        (np.zeros((2, 2), dtype=np.float32), 4, "dtype float32, not an integer"),
        (torch.zeros(1, dtype=torch.int64), 4, r"shape \[1\], no window"),
        (torch.zeros(8, dtype=torch.int64), 1, "chunk is 1"),
        (torch.zeros(1, 2, 3, dtype=torch.int64), 4, "3 dimensions"),
    ],
)
def test_tokens_that_are_none_are_refused(tokens, chunk, message):
    with pytest.raises(InvalidArgument, match=message):
        perplexity(Uniform(), tokens, chunk)


def test_token_files_are_cut_into_windows(tmp_path):
    path = tmp_path / "tokens.npy"
    np.save(path, np.arange(22, dtype=np.uint16).reshape(2, 11))
    windows = load_tokens(path, chunk=5)
    assert windows[:, 0].tolist() == [0, 5, 11, 16]
    assert load_tokens(path, chunk=5, limit=3).shape == (3, 5)
    assert load_tokens(path).shape == (2, 11)
    np.save(path, np.zeros(3))
    with pytest.raises(InvalidArgument, match="dtype float64"):
        load_tokens(path)
    path.write_text("not an array")
    with pytest.raises(InvalidArgument, match="is no .npy file"):
        load_tokens(path)


#: Of the first two windows, in float64, by weights that NumPy alone unpacked from the GPTQ file:
#: codes (word >> 4 i) & 15 along K, (code - 8) * scale. The whole set has 24.7868.
REFERENCE = 28.491750967860785
#: Sums of float32 make 3.4e-8 of difference; one code that is off by one, below, makes 3.4e-6.
TOLERANCE = 1e-6


def test_packed_weights_predict_what_the_checkpoint_says(ladder_folder):
    """The whole set is measured by benchmarks/perplexity.py."""
    tokens = load_tokens(GPTQ / "val_tokens.npy", limit=2)
    model = load(ladder_folder)
    assert perplexity(model, tokens) == pytest.approx(REFERENCE, rel=TOLERANCE)
    assert perplexity(dense(model), tokens) == pytest.approx(REFERENCE, rel=TOLERANCE)


def test_one_code_of_six_million_that_is_off_by_one_shows(ladder_folder):
    tokens = load_tokens(GPTQ / "val_tokens.npy", limit=2)
    model = load(ladder_folder)
    model.model.layers[3].mlp.down_proj.qweight[0, 0] ^= 1
    assert perplexity(model, tokens) != pytest.approx(REFERENCE, rel=TOLERANCE)
