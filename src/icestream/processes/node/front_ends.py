"""The registered front ends, in the order in which they are started and shown.

To add a front end, write its folder below `frontends` and register its class here (CONTRIBUTING.md).
"""

from __future__ import annotations

from typing import Final

from icestream.frontends.danube.danube_front_end import DanubeFrontEnd
from icestream.frontends.front_end import FrontEnd
from icestream.frontends.http.http_front_end import HttpFrontEnd
from icestream.frontends.mqtt.mqtt_front_end import MqttFrontEnd
from icestream.frontends.native.native_front_end import NativeFrontEnd

FRONT_ENDS: Final[tuple[type[FrontEnd], ...]] = (NativeFrontEnd, DanubeFrontEnd, MqttFrontEnd, HttpFrontEnd)
