# SPDX-License-Identifier: Apache-2.0
"""Layers: Linear, what its packed weight needs, and whole models converted or warmed up."""
