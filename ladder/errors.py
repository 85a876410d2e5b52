# SPDX-License-Identifier: Apache-2.0
"""What ladder raises. Each class is also the built-in error that callers already catch."""


class LadderError(Exception):
    """Base of every error that ladder raises on purpose."""


class InvalidArgument(LadderError, ValueError):
    """The caller broke a documented precondition; the message has both values."""


class CheckpointError(LadderError, ValueError):
    """A file or folder is not what its format says; the message names the tensor or key."""


class Unsupported(LadderError, NotImplementedError):
    """The request is legal, but this device, target or format cannot serve it."""
