# SPDX-License-Identifier: Apache-2.0
"""How kernels are timed, with a clock of the test. No GPU."""

from types import SimpleNamespace

import pytest

from ladder.cuda import timing


class Event:
    """Replays take 900, then 1, 2, 4 and 50 milliseconds."""

    def __init__(self, clock):
        self.clock = clock

    def record(self):
        self.at = self.clock.now

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return end.at - self.at


class Clock:
    """What seconds() asks of torch.cuda."""

    def __init__(self):
        self.now, self.takes, self.captured = 0.0, iter((900, 1, 2, 4, 50)), 0

    def synchronize(self):
        pass

    def CUDAGraph(self):
        def replay():
            self.now += next(self.takes)

        return SimpleNamespace(replay=replay)

    def graph(self, graph, capture_error_mode):
        clock = self

        class Capture:
            def __enter__(self):
                clock.captured += 1

            def __exit__(self, *error):
                pass

        return Capture()

    def Event(self, enable_timing):
        assert enable_timing
        return Event(self)


def test_a_time_is_the_median_of_the_replays_after_the_first(monkeypatch):
    clock, called = Clock(), []
    monkeypatch.setattr(timing.torch, "cuda", clock)
    calls = [lambda i=i: called.append(i) for i in range(3)]
    assert timing.seconds(calls) == pytest.approx(3e-3 / 3)  # the median of 1, 2, 4, 50
    assert clock.captured == 1 and called == [0, 0, 1, 2]
