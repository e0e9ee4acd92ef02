"""The parts of the broker process around the broker: checks before a start, the metadata store and the log as the
settings describe them, front ends, health checks, child processes, and what `icestream serve` prints."""
