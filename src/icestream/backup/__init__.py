"""Backups (ADR 70 to 72): their layout, a run that makes one, and what reads them: verification, inventory, deletion.

backup_layout, backup_root, object_list, tail_object, seed_manifest, encryption, table_view  names and bytes; pure
node_client, backup_target, object_upload, backup_run                                      the run
stored_backups, backup_verify, inventory_table                                             what a target has
"""
