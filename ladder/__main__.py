# SPDX-License-Identifier: Apache-2.0
"""``python -m ladder`` is the ``ladder`` command."""

import sys

from ladder.cli import main

sys.exit(main())
