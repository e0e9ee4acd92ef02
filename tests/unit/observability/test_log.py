"""Log messages: where they go in a process of Icestream, and where inside another application."""

from __future__ import annotations

import json
import subprocess
import sys

SAY = """
import sys
from icestream.observability.log import get_logger, set_up_logging
log = get_logger("part")
{set_up}
log.debug("too small")
log.info("it happened", topic="/default/a", count=2)
try:
    1 / 0
except ZeroDivisionError:
    log.exception("it failed")
"""


def output_of(set_up: str, **env: str) -> tuple[str, str]:
    code = SAY.format(set_up=set_up)
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True)
    return ran.stdout, ran.stderr


def test_our_processes_log_to_stderr() -> None:
    out, err = output_of("set_up_logging('info', 'console')")
    assert out == ""
    assert "it happened" in err
    assert "topic=/default/a" in err
    assert "ZeroDivisionError" in err
    assert ("too small" in err, "\x1b[" in err) == (False, False)


def test_lists_and_mappings_are_text_for_people_and_values_for_collectors() -> None:
    round_end = "log.info('round', ms={'tables': 0.3, 'write': 5.1}, voters=['a1', 'b2'])"
    _, err = output_of(f"set_up_logging('info', 'console'); {round_end}")
    assert "ms='tables 0.3, write 5.1'" in err
    assert "voters='a1, b2'" in err
    _, err = output_of(f"set_up_logging('info', 'json'); {round_end}")
    record = json.loads(err.splitlines()[0])
    assert (record["ms"], record["voters"]) == ({"tables": 0.3, "write": 5.1}, ["a1", "b2"])


def test_a_collector_gets_one_object_per_line() -> None:
    out, err = output_of("set_up_logging('info', 'json')")
    first, second = map(json.loads, err.splitlines())
    assert out == ""
    assert (first["event"], first["level"], first["component"], first["count"]) == ("it happened", "info", "part", 2)
    assert "ZeroDivisionError" in second["exception"]


def test_messages_of_libraries_have_the_same_format() -> None:
    """A collector that reads JSON must not stumble over asyncio."""
    library = "import logging; logging.getLogger('asyncio').error('a %s failed', 'task', exc_info=ValueError('x'))"
    _, err = output_of(f"set_up_logging('info', 'json'); {library}")
    record = json.loads(err.splitlines()[0])
    assert (record["event"], record["component"], record["level"]) == ("a task failed", "asyncio", "error")
    assert "ValueError: x" in record["exception"]
    _, err = output_of("set_up_logging('error', 'json'); import logging; logging.warning('too small')")
    assert "too small" not in err


def test_a_line_per_request_is_a_debug_message() -> None:
    library = "import logging; logging.getLogger('httpx2').info('GET /v1/config')"
    assert "/v1/config" not in output_of(f"set_up_logging('info', 'json'); {library}")[1]
    assert "/v1/config" in output_of(f"set_up_logging('debug', 'json'); {library}")[1]


def test_the_level_changes_while_the_process_runs() -> None:
    change = "from icestream.observability.log import change_log_level as change"
    _, err = output_of(f"{change}; set_up_logging('info', 'json'); change('debug', 'json')")
    assert [json.loads(line)["event"] for line in err.splitlines()] == ["too small", "it happened", "it failed"]
    _, err = output_of(f"{change}; set_up_logging('info', 'json'); change('error', 'json')")
    assert [json.loads(line)["event"] for line in err.splitlines()] == ["it failed"]


def test_inside_another_process_logging_is_left_to_python() -> None:
    out, err = output_of("")
    assert out == "", "stdout belongs to the program"
    assert "it happened" not in err, "Python shows warnings only, unless the program wants more"
    assert "it failed component=part\nTraceback" in err
    out, err = output_of("import logging; logging.basicConfig(level=logging.DEBUG)")
    assert "INFO:icestream:it happened component=part topic=/default/a count=2" in err
    assert "DEBUG:icestream:too small" in err
    output_of("import logging; assert logging.getLogger('icestream').level == logging.NOTSET")
