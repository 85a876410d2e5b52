# SPDX-License-Identifier: Apache-2.0
"""Programs that are written: printed, interpreted, run."""

from __future__ import annotations

import torch
from torch import Tensor

from ladder import _library
from ladder._C.program import Program as Core
from ladder.errors import InvalidArgument

#: The number of tokens of the call, as an extent.
TOKENS = -1
#: What a parameter of a scalar may be in torch.
DTYPES = {
    "f32": (torch.float32,),
    "f16": (torch.float16,),
    "bf16": (torch.bfloat16,),
    "u32": (torch.int32, torch.uint32),
}


class Program:
    """A tile program. ``print`` it; call it with a tensor for each parameter, in their order."""

    def __init__(self, core: Core, given: tuple[bool, ...]) -> None:
        self._core, self._given = core, given

    def __str__(self) -> str:
        return str(self._core)

    @property
    def shared_bytes(self) -> int:
        return self._core.shared_bytes

    @property
    def barriers(self) -> int:
        """Barriers in its text."""
        return self._core.barriers

    @property
    def cuda_source(self) -> str:
        """The kernel's complete text in CUDA C++, which includes nothing."""
        return self._core.source("CUDA")

    def __call__(self, *arguments: Tensor, tokens: int = 1) -> None:
        """Run it: on CPU tensors through the interpreter, on CUDA tensors as a kernel on the
        current stream, compiled at the first call: make one before a CUDA graph is captured.

        Args:
            arguments: contiguous, all on one device, in the dtypes of the parameters (int32 or
                uint32 for "u32") and with at least as many elements. Outputs are written.
            tokens: what :data:`TOKENS` stands for.
        Raises:
            InvalidArgument: an argument that does not fit its parameter.
            RuntimeError: the interpreter found that the program breaks the rules; names the
                instruction.
        """
        parameters = self._core.parameters(tokens)
        if len(arguments) != len(parameters):
            raise InvalidArgument(f"{len(arguments)} arguments for {len(parameters)} parameters")
        for argument, (name, scalar, _, elements) in zip(arguments, parameters, strict=True):
            if argument.dtype not in DTYPES[scalar]:
                raise InvalidArgument(f"{name} is {argument.dtype}, not {DTYPES[scalar][0]}")
            if argument.numel() < elements:
                raise InvalidArgument(f"{name} has {argument.numel()} elements, not {elements}")
            if not argument.is_contiguous() or argument.device != arguments[0].device:
                raise InvalidArgument(f"{name} is not contiguous on {arguments[0].device}")
        if arguments[0].is_cuda:
            _library.find_compiler()
            core, (x, y) = self._core, self._core.grid
            torch.ops.ladder.run_program(
                core.source(_library.target()), core.name, x, y, core.threads, core.shared_bytes,
                list(arguments), tokens,
            )  # fmt: skip
            return
        memory = [
            (argument.data_ptr(), argument.numel() * argument.element_size(), given)
            for argument, given in zip(arguments, self._given, strict=True)
        ]
        self._core.interpret(memory, tokens)
