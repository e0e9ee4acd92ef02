"""MQTT on the broker: routes to topics, sessions and their deliveries, retained messages, wills and expiry.

It owns what happens between a decoded packet and the log. The wire is the front end's (frontends/mqtt), the state of a
session is that of `durable`, and the bytes of packets are those of `mqtt`.
"""
