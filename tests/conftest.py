"""Set-up shared by all tests: how hard hypothesis tries.

`make test` uses the default profile and `make chaos` the long one; HYPOTHESIS_PROFILE chooses by hand. Deadlines are
off in all of them, because a shared machine's pauses say nothing about our code: pytest-timeout is the bound.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Servers that tests of several folders share.
pytest_plugins = ["tests.support.catalog_servers"]

# Rules of stateful tests sync simulated disks, which hypothesis takes for slow data generation.
QUIET = (HealthCheck.too_slow, HealthCheck.data_too_large)

settings.register_profile("default", deadline=None, max_examples=100, print_blob=True, suppress_health_check=QUIET)
settings.register_profile("quick", settings.get_profile("default"), max_examples=10)
settings.register_profile("chaos", settings.get_profile("default"), max_examples=5_000, stateful_step_count=100)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
