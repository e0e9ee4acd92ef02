"""Set-up shared by all tests: how hard hypothesis tries, and what is too dear to be started twice.

A Spark, and a broker whose catalog it uses, are started when the first test asks for them. Tests that ask for one stand
in a folder or file with `engines` in its name, and those all run in the same process, so there is one of each.

`make test` uses the default profile and `make chaos` the long one; HYPOTHESIS_PROFILE chooses by hand. Deadlines are
off in all of them, because a shared machine's pauses say nothing about our code: pytest-timeout is the bound.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from xdist.scheduler import LoadScopeScheduling

from icestream.observability import log
from tests.support import table_verification
from tests.support.lakehouse import Lakehouse
from tests.support.spark import Spark

# Servers that tests of several folders share.
pytest_plugins = ["tests.support.catalog_servers", "tests.support.native_wires"]

# Rules of stateful tests sync simulated disks, which hypothesis takes for slow data generation.
QUIET = (HealthCheck.too_slow, HealthCheck.data_too_large)

settings.register_profile("default", deadline=None, max_examples=100, print_blob=True, suppress_health_check=QUIET)
settings.register_profile("quick", settings.get_profile("default"), max_examples=10)
settings.register_profile("chaos", settings.get_profile("default"), max_examples=5_000, stateful_step_count=100)
# Whether a change lands is not left to chance: the same examples in every run. The other profiles try new ones.
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
if settings.default.derandomize:
    # Hypothesis mixes in the constants of every module that is loaded at that moment. Without this a test that failed
    # among all others got other examples when it ran alone. tests/tidy/test_examples.py notices if this has no effect.
    providers._get_local_constants = providers.Constants

# `nohup make test` hands down an ignored hangup, to the brokers that tests start as well, and `make test &` of a script
# an ignored interrupt.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

DEAR = {"spark", "lakehouse"}


@pytest.fixture(scope="session", autouse=True)
def _no_contexts_of_this_account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Commands of tests and their processes ask the broker that the test names, and change no file of the account."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        patch.delenv("ICESTREAM_BROKER", raising=False)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if DEAR.intersection(getattr(item, "fixturenames", ())) and not needs_engines(item.nodeid):
            raise pytest.UsageError(f"{item.nodeid} starts a Spark of its own: put it into a file called `…engines…`")


def needs_engines(test: str) -> bool:
    return "engines" in test.partition("::")[0]


class OneProcessForEngines(LoadScopeScheduling):
    """Each test goes where there is time for it, but those that need engines go together, and first."""

    def _split_scope(self, nodeid: str) -> str:
        return "engines" if needs_engines(nodeid) else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return OneProcessForEngines(config, log)


@pytest.fixture(autouse=True)
def _logging_of_the_test_process() -> Iterator[None]:
    """A command that is called in this process sets up logging as for its own: later tests would find no records."""
    yield
    if log._forward is not None:
        logging.getLogger().removeHandler(log._forward)
        logging.getLogger().setLevel(logging.WARNING)
        log._forward = None
        log._leave_it_to_python()


@pytest.fixture(autouse=True)
def tables_are_whole(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever tables of topics a test leaves in this process, `verify` finds nothing wrong with them (hazard 38)."""
    table_verification.forget_all()
    yield
    if table_verification.has_some() and request.node.get_closest_marker("wrong_tables") is None:
        wrong = [
            (report.topic, report.findings)
            for report in asyncio.run(table_verification.reports())
            if not report.is_good
        ]
        assert not wrong, wrong


@pytest.fixture(scope="session")
def old_warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Spark keeps tables that are not Iceberg's; the catalog may take them over."""
    return tmp_path_factory.mktemp("old-warehouse")


@pytest.fixture(scope="session")
def spark_process(tmp_path_factory: pytest.TempPathFactory, old_warehouse: Path) -> Iterator[Spark]:
    """It takes seconds to start; meanwhile the lakehouse does."""
    with Spark(tmp_path_factory.mktemp("spark"), old_warehouse) as spark:
        yield spark


@pytest.fixture(scope="session")
def lakehouse(tmp_path_factory: pytest.TempPathFactory, old_warehouse: Path) -> Iterator[Lakehouse]:
    with Lakehouse(tmp_path_factory.mktemp("lakehouse"), old_warehouse) as server:
        yield server


@pytest.fixture(scope="session")
def spark(spark_process: Spark, lakehouse: Lakehouse) -> Spark:
    """With the catalog of the lakehouse as `ice`."""
    spark_process.attach("ice", lakehouse.uri)
    return spark_process
