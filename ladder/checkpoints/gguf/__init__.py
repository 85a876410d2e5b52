# SPDX-License-Identifier: Apache-2.0
"""GGUF files, of llama.cpp."""
