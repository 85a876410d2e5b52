# SPDX-License-Identifier: Apache-2.0
"""How fast and how accurate: timing of layers, perplexity of models."""
