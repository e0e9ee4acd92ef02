"""Log messages: where they go in a process of ours, and where inside somebody else's."""

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


def said(set_up: str, **env: str) -> tuple[str, str]:
    code = SAY.format(set_up=set_up)
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True)
    return ran.stdout, ran.stderr


def test_a_process_of_ours_says_it_on_stderr() -> None:
    out, err = said("set_up_logging('info', 'console')")
    assert out == ""
    assert "it happened" in err
    assert "topic=/default/a" in err
    assert "ZeroDivisionError" in err
    assert ("too small" in err, "\x1b[" in err) == (False, False)


def test_a_collector_gets_one_object_per_line() -> None:
    out, err = said("set_up_logging('info', 'json')")
    first, second = map(json.loads, err.splitlines())
    assert out == ""
    assert (first["event"], first["level"], first["component"], first["count"]) == ("it happened", "info", "part", 2)
    assert "ZeroDivisionError" in second["exception"]


def test_what_libraries_say_has_the_same_form() -> None:
    """A collector that reads JSON must not stumble over asyncio."""
    library = "import logging; logging.getLogger('asyncio').error('a %s failed', 'task', exc_info=ValueError('x'))"
    _, err = said(f"set_up_logging('info', 'json'); {library}")
    found = json.loads(err.splitlines()[0])
    assert (found["event"], found["component"], found["level"]) == ("a task failed", "asyncio", "error")
    assert "ValueError: x" in found["exception"]
    _, err = said("set_up_logging('error', 'json'); import logging; logging.warning('too small')")
    assert "too small" not in err


def test_a_line_for_each_request_is_for_those_who_look_for_a_fault() -> None:
    library = "import logging; logging.getLogger('httpx2').info('GET /v1/config')"
    assert "/v1/config" not in said(f"set_up_logging('info', 'json'); {library}")[1]
    assert "/v1/config" in said(f"set_up_logging('debug', 'json'); {library}")[1]


def test_the_level_changes_while_the_process_runs() -> None:
    change = "from icestream.observability.log import change_log_level as change"
    _, err = said(f"{change}; set_up_logging('info', 'json'); change('debug', 'json')")
    assert [json.loads(line)["event"] for line in err.splitlines()] == ["too small", "it happened", "it failed"]
    _, err = said(f"{change}; set_up_logging('info', 'json'); change('error', 'json')")
    assert [json.loads(line)["event"] for line in err.splitlines()] == ["it failed"]


def test_inside_somebody_elses_process_it_is_left_to_python() -> None:
    out, err = said("")
    assert out == "", "stdout belongs to the program"
    assert "it happened" not in err, "Python shows warnings only, unless the program wants more"
    assert "it failed component=part\nTraceback" in err
    out, err = said("import logging; logging.basicConfig(level=logging.DEBUG)")
    assert "INFO:icestream:it happened component=part topic=/default/a count=2" in err
    assert "DEBUG:icestream:too small" in err
    said("import logging; assert logging.getLogger('icestream').level == logging.NOTSET")
