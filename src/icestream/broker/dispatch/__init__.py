"""Decides which messages of a shard go to which consumer of a subscription, and what happens to failed ones.

It is pure: events and the time come in, instructions go out (shard_delivery.py applies them).
"""
