"""`icestream lake`: the tables of topics, in any catalog, and the process that serves the embedded catalog."""

from __future__ import annotations

from icestream.cli import lake_lag, lake_operations, lake_serve, lake_tables
from icestream.cli.command import Commands

app = Commands("Inspect tables; bind, detach, adopt, rewind and recreate them.")
# In the order of the help.
app.command("namespaces")(lake_tables.namespaces)
app.command("tables")(lake_tables.tables)
app.command("describe")(lake_tables.describe)
app.command("snapshots")(lake_tables.snapshots)
app.command("history")(lake_tables.history)
app.command("files")(lake_tables.files)
app.command("lag")(lake_lag.lag)
app.command("commit-now")(lake_lag.commit_now)
app.command("bind")(lake_operations.bind)
app.command("detach")(lake_operations.detach)
app.command("adopt")(lake_operations.adopt)
app.command("rewind")(lake_operations.rewind)
app.command("recreate")(lake_operations.recreate)
app.command("drop")(lake_operations.drop)
app.command("serve")(lake_serve.serve)
