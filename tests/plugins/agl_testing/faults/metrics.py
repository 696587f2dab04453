"""Faults of metrics backends."""

from __future__ import annotations

from wrong.metrics import Base


class Backend(Base):
    SUITE, FIXTURE, FLAGS = "MetricsSuite", "metrics", ("readable", "buckets")
    MORE = """
    @pytest.fixture
    def read(self):
        return lambda metrics: metrics.held
"""
    CAUGHT_BY = ""


GOOD = (Backend,)


class StopsAtAThousandSeries(Backend):
    """Further label values are dropped."""

    CAUGHT_BY = "test_thousands_of_label_values_are_kept_apart"

    def keep(self, metric, value, key):
        if len(self.held) < 1000 or key in self.held:
            super().keep(metric, value, key)


class RoundsValues(Backend):
    """Values are whole numbers."""

    CAUGHT_BY = "test_a_counter_is_the_sum_of_its_increments"

    def keep(self, metric, value, key):
        super().keep(metric, round(value), key)


class SortsLabels(Backend):
    """Label values are sorted, so that a method and a status change places."""

    CAUGHT_BY = "test_a_counter_is_the_sum_of_its_increments"

    def keep(self, metric, value, key):
        super().keep(metric, value, (key[0], tuple(sorted(key[1]))))


class DropsZeroes(Backend):
    """A gauge that is 0 keeps its last value."""

    CAUGHT_BY = "test_a_gauge_may_return_to_zero"

    def keep(self, metric, value, key):
        if value:
            super().keep(metric, value, key)


class CutsLabels(Backend):
    """Label values are cut after 63 characters."""

    CAUGHT_BY = "test_thousands_of_label_values_are_kept_apart"

    def keep(self, metric, value, key):
        super().keep(metric, value, (key[0], tuple(label[:63] for label in key[1])))


class HidesErrors(Backend):
    """A wrong number of labels is ignored."""

    CAUGHT_BY = "test_a_wrong_number_of_labels_is_refused"

    def record(self, metric, value, labels=()):
        try:
            super().record(metric, value, labels)
        except ValueError:
            return


class TurnsErrorsIntoAnother(Backend):
    """A wrong number of labels is a KeyError."""

    CAUGHT_BY = "test_a_wrong_number_of_labels_is_refused"

    def record(self, metric, value, labels=()):
        try:
            super().record(metric, value, labels)
        except ValueError:
            raise KeyError(metric.name) from None
