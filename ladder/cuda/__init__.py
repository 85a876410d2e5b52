# SPDX-License-Identifier: Apache-2.0
"""CUDA devices: weight images, kernels, tuning."""
