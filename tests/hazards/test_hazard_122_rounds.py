"""Hazard 122, rounds of the pipeline: tasks elsewhere, and the Spark that runs them.

The token of a round: test_hazard_29_log_ranges.py. An authenticated cluster, and what its processes show:
engines/test_cluster.py.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from icestream import errors
from icestream.model.task_messages import TaskError, TaskErrorKind
from icestream.pipeline.log_bytes.log_sources import LogOwner
from icestream.pipeline.round_plan import LogSource
from icestream.pipeline.spark.spark_options import spark_conf
from icestream.processes.node.bind_check import check_beside_accounts
from icestream.processes.pipeline_options import spark_options
from icestream.settings import Settings, load
from tests.support.certificates import Certificates
from tests.unit.internal_api.test_admin_calls import operated
from tests.unit.internal_api.test_pipeline_calls import backlog_of

SECRET = "canary-of-the-cluster-0123456789"
REMOTE = "spark://10.0.0.5:7077"


@pytest.mark.asyncio
async def test_hazard_122_tasks_read_the_log_by_tls_from_the_broker_of_their_plan_alone(tmp_path: Path) -> None:
    """No authority is known to the tasks: the plan names the certificate."""
    pem = Certificates(tmp_path / "pem")
    async with operated(tmp_path / "data", tls={"http": {**pem.settings(), "enable": True}}) as ask:
        await ask("create_topic", topic="/default/orders")
        await ask.publish(5)
        backlog = await backlog_of(ask)
        assert backlog.address.startswith("https://")
        (file,) = backlog.files
        leased = await ask("pipeline_lease", lease="r1", epoch=1, files=[file.number], ttl_ms=60_000)
        source = LogSource(backlog.log_id, "", backlog.address, backlog.certificate, leased["token"], "r1")
        position, _ = file.marks[0]

        async def read(source: LogSource) -> bytes | TaskError:
            owner = LogOwner(source)
            try:
                return await asyncio.to_thread(owner.read, file.number, position, file.end)
            finally:
                owner.close()

        data = await read(source)
        assert not isinstance(data, TaskError), data
        assert len(data) == file.end - position
        other = await read(msgspec.structs.replace(source, certificate="0" * 64))
        assert isinstance(other, TaskError)
        assert other.trouble is TaskErrorKind.UNREACHABLE
        assert "another certificate" in other.message


def conf(*entries: str, master: str = REMOTE, **node: bool) -> Settings:
    flags = [f"pipeline.spark.master={master}", f"pipeline.spark.conf=[{', '.join(entries)}]"]
    return load(flags=[*flags, *(f"node.{name}={value}" for name, value in node.items())]).settings


def test_hazard_122_the_secrets_of_spark_are_on_no_command_line() -> None:
    options = spark_options(conf(f"spark.authenticate.secret={SECRET}", "spark.executor.memory=2g"))
    assert options.secrets == {"spark.authenticate.secret": SECRET}
    on_the_command_line = spark_conf(options, "")
    assert on_the_command_line["spark.executor.memory"] == "2g"
    assert SECRET not in str(on_the_command_line) + repr(options)


def test_hazard_122_spark_on_this_machine_authenticates_its_processes() -> None:
    assert spark_conf(spark_options(conf(master="local[2]")), "")["spark.authenticate"] == "true"


@pytest.mark.parametrize(
    "entries", [(), ("spark.authenticate=true",), ("spark.network.crypto.enabled=true", "spark.ssl.rpc.enabled=true")]
)
def test_hazard_122_an_open_spark_cluster_is_refused_beside_accounts(entries: tuple[str, ...]) -> None:
    with pytest.raises(errors.ConfigurationError, match="does not authenticate and encrypt") as refused:
        check_beside_accounts(conf(*entries))
    assert "spark.network.crypto.enabled=true" in refused.value.hint
    check_beside_accounts(conf(*entries, allow_insecure_bind=True))
    check_beside_accounts(conf(*entries, master="local[*]"))
    for encryption in ("network.crypto", "ssl.rpc"):
        check_beside_accounts(conf("spark.authenticate=true", f"spark.{encryption}.enabled=true"))


def test_hazard_122_a_settings_file_with_a_secret_of_spark_is_for_its_owner_only(tmp_path: Path) -> None:
    config = tmp_path / "broker.yml"
    config.write_text(f"pipeline: {{spark: {{conf: [spark.authenticate.secret={SECRET}]}}}}\n")
    config.chmod(0o644)
    with pytest.raises(errors.ConfigurationError, match=r"pipeline\.spark\.conf.*mode 0644") as refused:
        load(config)
    assert SECRET not in f"{refused.value}{refused.value.hint}"
    config.chmod(0o600)
    assert load(config).settings.pipeline.spark.conf == (f"spark.authenticate.secret={SECRET}",)


def test_hazard_122_a_secret_of_spark_in_a_flag_is_refused() -> None:
    from icestream.cli.options import load_settings

    with pytest.raises(errors.ConfigurationError, match=r"pipeline\.spark\.conf is a secret") as refused:
        load_settings(None, [f'pipeline.spark.conf=["spark.ui.enabled=false", "spark.authenticate.secret={SECRET}"]'])
    assert "ICESTREAM_PIPELINE__SPARK__CONF" in refused.value.hint
    assert SECRET not in f"{refused.value}{refused.value.hint}"
    load_settings(None, ['pipeline.spark.conf=["spark.ui.enabled=false"]'])
