# SPDX-License-Identifier: Apache-2.0
"""Ops that refuse an argument raise ValueError under a torch that makes a RuntimeError of it."""

import threading
from types import SimpleNamespace

import pytest
import torch

import ladder  # noqa: F401  (registers the ops)
from ladder import _torch

ops = torch.ops.ladder
#: As torch has it.
type_info = getattr(ops.type_info._op, "__wrapped__", ops.type_info._op)


def refuse():
    with pytest.raises((ValueError, RuntimeError), match="uint4x"):
        type_info("uint4x")


def as_runtime_error(text):
    """An op under torch 2.15."""
    try:
        return type_info(text)
    except (ValueError, RuntimeError) as error:
        message = str(error)
    raise RuntimeError(message)


def told(op, refused=ops.take_refusal):
    return _torch._telling(op, refused)


def test_a_refusal_is_a_value_error_with_the_text():
    for op in (ops.type_info, ops.type_info.default):
        with pytest.raises(ValueError, match='unknown type "uint4x"'):
            op("uint4x")
    assert told(as_runtime_error)("uint4") == ops.type_info("uint4")
    with pytest.raises(ValueError, match='unknown type "uint4x"'):
        told(as_runtime_error)("uint4x")
    assert ops.take_refusal() == ""


def test_other_errors_stay_what_they_are():
    for error in (RuntimeError("the device is gone"), NotImplementedError("not here")):

        def fail(error=error):
            raise error

        refuse()  # and nobody takes it
        with pytest.raises(type(error), match=str(error)):
            told(fail)()
        ops.take_refusal()


def test_a_refusal_is_of_its_thread():
    refuse()
    seen = []
    thread = threading.Thread(target=lambda: seen.append(ops.take_refusal()))
    thread.start()
    thread.join()
    assert seen == [""] and "uint4x" in ops.take_refusal()


def test_every_op_of_the_library_is_told():
    """Packets and overloads, which are called by themselves too."""
    ours = {
        name for name in dir(ops) if isinstance(getattr(ops, name), torch._ops.OpOverloadPacket)
    }
    packets = {}

    def packet(name):
        if name not in packets:
            overload = SimpleNamespace(_op=as_runtime_error)
            packets[name] = SimpleNamespace(
                _op=as_runtime_error, default=overload, overloads=lambda: ["default"]
            )
        return packets[name]

    class Namespace:
        def __getattr__(self, name):
            return packet(name)

    _torch.keep_value_errors(Namespace(), "ladder", ops.take_refusal)
    assert "linear" in ours and ours <= packets.keys()
    for each in packets.values():
        for op in (each, each.default):
            with pytest.raises(ValueError, match="uint4x"):
                op._op("uint4x")
