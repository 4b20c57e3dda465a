"""Workers of one kind, lent out first come first served, and only while they are alive."""

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from tinyinfer.errors import BadInput
from tinyinfer.serving.failures import DeadlineExceeded

PATIENCE_SECONDS = 0.1  # how long a wait lasts before its deadline is looked at again


class Deadline:
    """A moment by which something must be done. It can be brought forward to now: that is how requests are stopped."""

    def __init__(self, seconds: float):
        if not seconds > 0:
            raise BadInput(f"deadline_seconds is {seconds!r}; it must be above 0")
        self.seconds = seconds
        self._moment = time.perf_counter() + seconds

    def bring_forward(self) -> None:
        """Let it be over now."""
        self._moment = float("-inf")

    @property
    def passed(self) -> bool:
        """Whether it is over."""
        return time.perf_counter() >= self._moment

    @property
    def patience(self) -> float:
        """Seconds to wait before looking again: never beyond the deadline, never long."""
        return max(0.0, min(PATIENCE_SECONDS, self._moment - time.perf_counter()))


@dataclass
class _Member:
    worker: Any
    free: int
    free_places: int
    alive: bool = True
    leases: int = 0


@dataclass
class Lease:
    """A worker, so many of its slots taken, until `end`: once, however often it is called."""

    pool: "Pool"
    worker: Any
    slots: int
    _ended: bool = field(default=False, init=False)

    def end(self) -> None:
        """Give the slots back."""
        if not self._ended:
            self._ended = True
            self.pool._give_back(self.worker, self.slots)

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, *_) -> None:
        self.end()


class Pool:
    """Lends the living worker with the most free slots to whoever arrived first.

    A request that does not fit anywhere yet holds up those behind it: nobody is overtaken, so nobody starves. At most
    `places` requests use one worker at once.
    """

    def __init__(self, kind: str, workers: list[Any], slots: int, places: int):
        self.kind, self.slots = kind, slots
        self._members = [_Member(worker, slots, places) for worker in workers]
        self._waiting: set[tuple[int, int]] = set()
        self._tickets = 0
        self._changed = threading.Condition()

    def take(self, slots: int, arrival: int, deadline: Deadline) -> Lease:
        """Wait for a turn, in the order of `arrival`, and for room. Raises `DeadlineExceeded` when there is none."""
        with self._changed:
            self._tickets += 1
            turn = (arrival, self._tickets)
            self._waiting.add(turn)
            try:
                while True:
                    if min(self._waiting) == turn and (member := self._roomiest(slots)) is not None:
                        member.free -= slots
                        member.free_places -= 1
                        return Lease(self, member.worker, slots)
                    if deadline.passed:
                        raise DeadlineExceeded(f"no {self.kind} worker with {slots} free slots: {self._describe()}")
                    self._changed.wait(deadline.patience)
            finally:
                self._waiting.discard(turn)
                self._changed.notify_all()

    def lose(self, worker: Any) -> bool:
        """Lend this worker to nobody until it is welcomed back; False if it was lost already."""
        with self._changed:
            member = self._member(worker)
            was_alive, member.alive = member.alive, False
            return was_alive

    def welcome(self, worker: Any) -> None:
        """It answers again."""
        with self._changed:
            self._member(worker).alive = True
            self._changed.notify_all()

    @property
    def workers(self) -> list[Any]:
        """All of them, living or lost."""
        return [member.worker for member in self._members]

    @property
    def free_slots(self) -> dict[str, int]:
        """Free slots of each worker by its name, as the router counts them."""
        with self._changed:
            return {member.worker.name: member.free for member in self._members}

    @property
    def living(self) -> int:
        """How many workers can be lent."""
        with self._changed:
            return sum(member.alive for member in self._members)

    def _roomiest(self, slots: int) -> _Member | None:
        fitting = [m for m in self._members if m.alive and m.free >= slots and m.free_places]
        return max(fitting, key=lambda member: member.free, default=None)

    def _give_back(self, worker: Any, slots: int) -> None:
        with self._changed:
            member = self._member(worker)
            member.free += slots
            member.free_places += 1
            self._changed.notify_all()

    def _member(self, worker: Any) -> _Member:
        return next(member for member in self._members if member.worker is worker)

    def _describe(self) -> str:
        free = [member.free for member in self._members if member.alive]
        return f"{len(free)} of {len(self._members)} are alive, with {free} of {self.slots} slots free"
