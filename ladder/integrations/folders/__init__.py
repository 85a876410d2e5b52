# SPDX-License-Identifier: Apache-2.0
"""What loaders of model folders have in common, whichever library calls them: room for what files
hold packed, which weights of a dense folder are to be packed, and what config.json says."""
