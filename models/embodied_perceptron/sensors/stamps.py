"""Stamps judged against their stream: an odd one is told from a clock that goes on elsewhere.

A single stamp proves nothing: a driver sends one wrong stamp, a message is late. Several in a row that follow each
other and leave the stream's own time behind are a clock that was set, a recording that loops or a simulation that
started anew.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import Literal

JUMP_NS = 1_000_000_000  # off by more: not the lateness of one message
EVIDENCE = 3  # stamps in a row before a stream is believed to have moved

Verdict = Literal["fits", "odd", "moved"]


class StampJudge:
    """The time of one stream of stamped messages.

    A stamp is *odd* when it lies before the newest one by more than ``jump_ns``, or after it by more than ``jump_ns``
    beyond the time that has passed since on the receiver's clock (a recording played fast is recognised by the steps
    between its stamps). One before the newest fits all the same where it goes on from one of the last two that fitted:
    after stamps that were each a little ahead, the newest may be so by more. When :data:`EVIDENCE` odd stamps in a row
    ascend, the stream has *moved* there. A stamp that fits in between proves the earlier odd ones wrong.

    Attributes:
        newest_ns: the newest stamp that fits; None before the first.
        suspects: odd stamps in a row that wait for more evidence, the last one included.
        shift_ns: how far the stream moved when it moved last, as far as arrival tells.
        heard_ns: receiver's clock at the last stamp of any kind.
    """

    def __init__(self, jump_ns: int = JUMP_NS) -> None:
        self._jump_ns = jump_ns
        self.restart()

    def restart(self) -> None:
        """The next stamp counts, whatever it is."""
        self.newest_ns: int | None = None
        self.heard_ns: int | None = None
        self.shift_ns = 0
        self.suspects: list[int] = []
        self._newest_at_ns: int | None = None
        self._steps: deque[int] = deque(maxlen=3)
        self._fitted: deque[tuple[int, int]] = deque(maxlen=2)  # the last two: stamp, receiver's clock
        self._suspected_shift_ns = 0

    def judge(self, stamp_ns: int, now_ns: int | None = None) -> Verdict:
        """Judge the next stamp; ``now_ns``: receiver's clock, None = not known: no stamp is too far ahead then."""
        self.heard_ns = now_ns
        shift_ns = self._odd_by(stamp_ns, now_ns)
        if shift_ns == 0:
            self._accept(stamp_ns, now_ns)
            return "fits"
        if not self.suspects or stamp_ns <= self.suspects[-1]:
            self.suspects, self._suspected_shift_ns = [], shift_ns
        self.suspects.append(stamp_ns)
        if len(self.suspects) < EVIDENCE:
            return "odd"
        self.shift_ns = self._suspected_shift_ns
        self._steps.clear()
        self._steps.extend(after - before for before, after in pairwise(self.suspects))
        self._fitted.clear()
        self.newest_ns = None
        self._accept(stamp_ns, now_ns)
        return "moved"

    def near(self, first_ns: int, last_ns: int) -> bool:
        """Whether the newest stamp lies within the jump of the stretch from ``first_ns`` to ``last_ns``."""
        return self.newest_ns is not None and first_ns - self._jump_ns <= self.newest_ns <= last_ns + self._jump_ns

    def _odd_by(self, stamp_ns: int, now_ns: int | None) -> int:
        """How far the stamp lies from where the stream should be; 0 = it fits."""
        if self.newest_ns is None:
            return 0
        step_ns = stamp_ns - self.newest_ns
        passed_ns = 0 if now_ns is None or self._newest_at_ns is None else max(now_ns - self._newest_at_ns, 0)
        if step_ns < -self._jump_ns:
            return 0 if self._goes_on(stamp_ns, now_ns) else step_ns - passed_ns
        usual_ns = min(self._steps) if len(self._steps) >= EVIDENCE - 1 else 0
        if now_ns is not None and step_ns - passed_ns > max(self._jump_ns, 2 * usual_ns):
            return step_ns - passed_ns
        return 0

    def _goes_on(self, stamp_ns: int, now_ns: int | None) -> bool:
        """Whether as much time passed on both clocks since one of the last two stamps that fitted."""
        return now_ns is not None and any(
            abs((stamp_ns - before_ns) - (now_ns - at_ns)) <= self._jump_ns for before_ns, at_ns in self._fitted
        )

    def _accept(self, stamp_ns: int, now_ns: int | None) -> None:
        self.suspects = []
        if now_ns is not None:
            self._fitted.append((stamp_ns, now_ns))
        if self.newest_ns is None or stamp_ns > self.newest_ns:
            if self.newest_ns is not None:
                self._steps.append(stamp_ns - self.newest_ns)
            self.newest_ns, self._newest_at_ns = stamp_ns, now_ns
