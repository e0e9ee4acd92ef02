"""Backups (ADR 70 to 72): their layout, the run that makes one, verification, the inventory, deletion, what a restore
reads. It owns every byte in a target; names and bytes are decided in pure modules (backup_layout.py first).

The broker's part of a backup is `broker/backup_service.py`; `processes.restore_run` puts a restore together.
"""
