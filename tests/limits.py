"""Times that are promised: printed always, held only where the machine has nothing else to do.

A test shares its machine with others, so how long something took says little there, and no test
fails for it. With STRATA_TEST_LIMITS=1, on an idle machine, the promises are held.
"""

import os


def within(what: str, took_s: float, limit_s: float) -> None:
    """Print how long something took.

    Raises:
        AssertionError: longer than promised, and limits are held.
    """
    print(f"{what}: {took_s:.2f} s of {limit_s:g} s")
    if os.environ.get("STRATA_TEST_LIMITS"):
        assert took_s <= limit_s, f"{what} took {took_s:.2f} s, more than {limit_s:g} s"
