"""What holds for every test of this repository."""

from hypothesis import HealthCheck, settings

# How long an example takes says something about the machine, which is shared and noisy.
settings.register_profile("agl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("agl")
