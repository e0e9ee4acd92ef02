"""Compaction: small files of a topic's table become larger ones with the same rows (docs/adr/0065).

Owns the plan (compaction_plan.py), the task that rewrites a group of files (group_rewrite.py), its budget
(hourly_budget.py), and the job of the driver (compaction_job.py)."""
