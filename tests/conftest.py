"""What all tests share: property tests have no time limits of their own.

A busy machine makes a good test slow; Hypothesis would call that a failure.
"""

from hypothesis import HealthCheck, settings

settings.register_profile("strata", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("strata")
