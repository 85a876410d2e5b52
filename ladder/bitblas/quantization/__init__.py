# SPDX-License-Identifier: Apache-2.0
"""Packing of codes outside an operator, by BitBLAS' names."""

from ladder.bitblas.quantization.utils import gen_quant4, general_compress, interleave_weight

__all__ = ["gen_quant4", "general_compress", "interleave_weight"]
