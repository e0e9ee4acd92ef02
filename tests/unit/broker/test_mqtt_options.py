"""Rules about wide filters (R16)."""

from __future__ import annotations

import pytest

from icestream.broker.mqtt.mqtt_options import MqttOptions, WideFilters
from icestream.processes.component_options import mqtt_options
from icestream.settings import Settings, load


@pytest.mark.parametrize("wide", ["plant/#", "+/#", "#"])
def test_a_rule_applies_to_filters_that_match_at_least_as_much(wide: str) -> None:
    assert WideFilters(("plant/#",)).applies_to(wide)


@pytest.mark.parametrize("narrow", ["plant/line-1/#", "plant/+", "plant", "other/#"])
def test_a_rule_does_not_apply_to_narrower_or_other_filters(narrow: str) -> None:
    assert not WideFilters(("plant/#",)).applies_to(narrow)


def test_no_filter_is_refused_or_downgraded_by_default() -> None:
    options = MqttOptions()
    assert not options.refused_filters.applies_to("#")
    assert not options.qos0_filters.applies_to("#")


def test_the_default_settings_are_the_default_options() -> None:
    assert mqtt_options(Settings.default()) == MqttOptions()


def test_settings_become_options() -> None:
    flags = ["mqtt.replay=a/# qos 1 -> /x/a,# -> /x/rest", "mqtt.refused_filters=#", "mqtt.session_expiry_default_s=1h"]
    options = mqtt_options(load(flags=flags).settings)
    assert [route.way for route in options.replay] == [("a/#", 1, "/x/a"), ("#", 0, "/x/rest")]
    assert options.refused_filters.applies_to("#")
    assert options.session_expiry_s_default == 3_600
