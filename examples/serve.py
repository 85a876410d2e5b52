# SPDX-License-Identifier: Apache-2.0
"""Serve a ladder folder with an OpenAI-compatible API: `transformers serve` after `import ladder`.

pip install "transformers[serving]"
python examples/serve.py FOLDER [--port 8000] [--device cuda]    # and the other options of it
"""

import sys

from transformers.cli.transformers import main

import ladder  # noqa: F401  (lets transformers load ladder folders)

sys.argv.insert(1, "serve")
main()
