"""Metrics backends that are wrong in one way each."""

from __future__ import annotations

import threading
import time

from agl_core.metrics import Metrics


class Base(Metrics):
    """A correct backend: keeps everything in a dict."""

    CAUGHT_BY = ""

    def __init__(self):
        super().__init__()
        self.held = {}
        self._lock = threading.Lock()

    def instrument(self, metric):
        return lambda value, labels: self.keep(metric, value, (metric.name, labels))

    def keep(self, metric, value, key):
        with self._lock:
            if metric.kind == "gauge":
                self.held[key] = value
            elif metric.kind == "counter":
                self.held[key] = self.held.get(key, 0) + value
            else:
                count, total, buckets = self.held.get(key, (0, 0, dict.fromkeys(metric.buckets, 0)))
                counted = {bound: n + self.in_bucket(value, bound) for bound, n in buckets.items()}
                self.held[key] = (count + 1, total + value, counted)

    def in_bucket(self, value, bound):
        return value <= bound

    def after_fork(self):
        self.__init__()

    def __getstate__(self):
        return {}

    def __setstate__(self, state):
        self.__init__()


class TakesNoGauges(Base):
    CAUGHT_BY = "test_every_kind_of_metric_is_taken"

    def instrument(self, metric):
        if metric.kind == "gauge":
            raise ValueError("no gauges")
        return super().instrument(metric)


class TakesAnyLabels(Base):
    CAUGHT_BY = "test_a_wrong_number_of_labels_is_refused"

    def record(self, metric, value, labels=()):
        self.instrument(metric)(value, labels)


class ShrinksCounters(Base):
    CAUGHT_BY = "test_a_counter_does_not_shrink"

    def record(self, metric, value, labels=()):
        super().record(metric, abs(value), labels)


class MixesMetrics(Base):
    CAUGHT_BY = "test_two_metrics_of_one_name_are_refused"

    def record(self, metric, value, labels=()):
        self._opened.clear()
        super().record(metric, value, labels)


class WritesAscii(Base):
    CAUGHT_BY = "test_odd_label_values_are_taken"

    def keep(self, metric, value, key):
        for label in key[1]:
            label.encode("ascii")
        super().keep(metric, value, key)


class ClosesOnce(Base):
    CAUGHT_BY = "test_a_second_close_does_nothing"
    closed = False

    def close(self):
        if self.closed:
            raise RuntimeError("closed")
        self.closed = True


class TravelsWithItsLock(Base):
    CAUGHT_BY = "test_a_copy_from_a_pickle_records"

    def __getstate__(self):
        return self.__dict__


class TravelsWithItsValues(Base):
    CAUGHT_BY = "test_a_copy_from_a_pickle_counts_its_own"

    def __getstate__(self):
        return {"held": dict(self.held)}

    def __setstate__(self, state):
        self.__init__()
        self.held = state["held"]


class KeepsItsParentsValues(Base):
    CAUGHT_BY = "test_a_forked_child_counts_its_own"

    def after_fork(self):
        super(Base, self).after_fork()


class KeepsTheLastIncrement(Base):
    CAUGHT_BY = "test_a_counter_is_the_sum_of_its_increments"

    def keep(self, metric, value, key):
        self.held[key] = value


class MergesLabels(Base):
    CAUGHT_BY = "test_a_counter_is_the_sum_of_its_increments"

    def keep(self, metric, value, key):
        super().keep(metric, value, (key[0], key[1][:1]))


class SumsGauges(Base):
    CAUGHT_BY = "test_a_gauge_is_its_last_value"

    def keep(self, metric, value, key):
        self.held[key] = self.held.get(key, 0) + value


class DropsLargeValues(Base):
    CAUGHT_BY = "test_a_histogram_has_count_and_sum"

    def keep(self, metric, value, key):
        if metric.kind != "histogram" or value <= metric.buckets[-1]:
            super().keep(metric, value, key)


class LeavesBoundsOut(Base):
    CAUGHT_BY = "test_a_value_is_in_the_buckets_whose_bound_it_does_not_exceed"

    def in_bucket(self, value, bound):
        return value < bound


class LosesIncrements(Base):
    CAUGHT_BY = "test_threads_lose_nothing"

    def keep(self, metric, value, key):
        if metric.kind != "counter":
            super().keep(metric, value, key)
            return
        before = self.held.get(key, 0)
        time.sleep(0)
        self.held[key] = before + value
