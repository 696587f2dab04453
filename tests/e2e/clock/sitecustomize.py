"""Moves the wall clock of a process: ``TEST_CLOCK_AHEAD`` seconds ahead of the machine's.

Python imports this module at its start if its folder is in ``PYTHONPATH``. A time namespace would
move only the clocks that are monotonic.
"""

import datetime
import os
import time

AHEAD = float(os.environ.get("TEST_CLOCK_AHEAD", "0"))

_datetime = datetime.datetime
_time = time.time
_time_ns = time.time_ns


class _Kind(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _datetime)


class _MovedDatetime(_datetime, metaclass=_Kind):
    def __new__(cls, *args, **kwargs):
        return _datetime(*args, **kwargs)

    @classmethod
    def now(cls, tz=None):
        return _datetime.fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls):
        return cls.now(datetime.UTC).replace(tzinfo=None)


time.time = lambda: _time() + AHEAD
time.time_ns = lambda: _time_ns() + int(AHEAD * 1e9)
datetime.datetime = _MovedDatetime
