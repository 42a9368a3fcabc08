"""Progress, and an estimate of the time left."""

import sys
import time


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


class Progress:
    """Steps that are done and to come. A step's time is guessed at first and known afterwards."""

    def __init__(self):
        self.begin = time.monotonic()
        self.expected = 0.0
        self.done = 0.0
        self.last = None

    def expect(self, seconds):
        """Announces work of so many seconds."""
        self.expected += seconds

    def step(self, seconds, text):
        """Begins a step that was announced as `seconds`."""
        self.finish()
        self.last = seconds
        say(f"{self.left()} left: {text}")

    def finish(self):
        if self.last is not None:
            self.done += self.last
            self.last = None

    def left(self):
        passed = time.monotonic() - self.begin
        pace = passed / self.done if self.done > 5 else 1.0
        left = max(0, int((self.expected - self.done) * pace))
        return f"about {left // 60}:{left % 60:02d}"
