"""The broker: its use cases (`service.Broker`) for topics, producers, subscriptions and schemas, and the delivery of
messages to consumers. It owns the storage facade of seed 000 (`storage.py`) with the readers of all tiers, and the
broker's records in the metadata store (`records.py`)."""
