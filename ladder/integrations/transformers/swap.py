# SPDX-License-Identifier: Apache-2.0
"""Room for what the files of a ladder folder hold packed."""

from __future__ import annotations

import functools
from typing import Any

from ladder.checkpoints.folder import StoredConfig
from ladder.checkpoints.layer import Stored
from ladder.integrations.folders.convolutions import swap_convolutions, swap_convolutions_by_config
from ladder.integrations.folders.embeddings import swap_embeddings, swap_embeddings_by_config
from ladder.integrations.folders.linears import codes_part, swap_linears, swap_linears_by_config
from ladder.integrations.transformers.experts import swap_experts, swap_experts_by_config
from ladder.integrations.transformers.single_experts import SingleExperts, open_experts
from ladder.integrations.transformers.tensor_parallel import Plan, prepare
from ladder.weight import PARTS


def swap_stored(
    model: Any, headers: dict[str, Stored] | None, config: StoredConfig, plan: Plan | None
) -> tuple[dict[str, str], dict[str, SingleExperts]]:
    """Make room for what the files hold packed.

    Args:
        headers: of all tensors; None where the files are none of safetensors.
    Returns:
        The names in the files of linear modules, by those in the model; and the experts whose
        projections are packed one by one, by the names of their modules.
    """
    cut = plan is not None
    part = None if plan is None else functools.partial(prepare, plan=plan)
    if headers is None:  # a state_dict, or pickled files: the config is all there is to go by
        swap_experts_by_config(model, config, cut=cut)
        swap_convolutions_by_config(model, config, cut=cut)
        swap_embeddings_by_config(model, config, cut=cut)
        swap_linears_by_config(model, config, part)
        return {}, {}
    headers = swap_experts(model, headers, config, cut=cut)
    headers = swap_convolutions(model, headers, config, cut=cut)
    headers = swap_embeddings(model, headers, config, cut=cut)
    singles = open_experts(model, headers, PARTS, codes_part, cut=cut)
    names = swap_linears(model, headers, config, part)
    for single in singles.values():
        single.check_whole(headers)
    return names, singles
