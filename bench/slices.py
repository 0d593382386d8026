"""Compares servers on a shared machine, whose speed moves by a fifth within minutes: more than the difference looked for. All sides run
at once, but in turn: each half second one is stopped (SIGSTOP) and the next goes on, and a side's clock counts its own slices only."""
import contextlib
import os
import pathlib
import signal
import threading
import time

SLICE = 0.5  # seconds; far below the limits after which meshnet takes a silent worker for dead


def descendants(pids):
    found = list(pids)
    for parent in found:
        for children in pathlib.Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # a thread that has ended meanwhile
                found += [int(child) for child in children.read_text().split()]
    return found


class Side:
    """One side of the comparison: the processes `pids` and all they started. `work(clock)` runs in a thread; `clock()` are the seconds
    that the side has had so far."""

    def __init__(self, pids, work):
        self.roots, self.pids, self.error = pids, descendants(pids), None
        self.had = (0.0, None)  # seconds of ended slices, begin of the one it has now; replaced as one, because work() reads it too
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(work,))

    def _run(self, work):
        try:
            work(self.clock)
        except Exception as error:  # raised by alternate(): a side that failed must not pass as a fast one
            self.error = error
        finally:
            self.ended.set()

    def clock(self):
        seconds, begin = self.had
        return seconds + (time.monotonic() - begin if begin else 0.0)

    def send(self, number):
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def go_on(self):
        self.send(signal.SIGCONT)
        self.had = (self.clock(), time.monotonic())
        self.ended.wait(SLICE)
        self.had = (self.clock(), None)
        self.send(signal.SIGSTOP)  # an ended one too: what it does afterwards is not the others' business


def alternate(sides):
    """Runs the work of all sides to its end."""
    try:
        for side in sides:
            side.send(signal.SIGSTOP)
            side.thread.start()
        while any(not side.ended.is_set() for side in sides):
            for side in sides:
                if not side.ended.is_set():
                    side.go_on()
    finally:
        for side in sides:
            side.send(signal.SIGCONT)
    for side in sides:
        side.thread.join()
        if side.error:
            raise side.error
        if sorted(descendants(side.roots)) != sorted(side.pids):
            raise RuntimeError("a process was started again: it ran in another side's time")
