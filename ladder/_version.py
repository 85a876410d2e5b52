# SPDX-License-Identifier: Apache-2.0
"""What this is called where it is installed from. ``ladder`` there is another project."""

__version__ = "0.1.0"
#: The name in pyproject.toml, which tests compare with this.
DISTRIBUTION = "ladder-torch"


def install_command(extra: str = "") -> str:
    """What a user types to install ladder, with the dependencies of ``extra`` if given."""
    return f"pip install '{DISTRIBUTION}[{extra}]'" if extra else f"pip install {DISTRIBUTION}"
