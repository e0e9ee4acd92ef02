"""The processes of a node, with one composition root each: `broker_process`, `lake_process`, `pipeline_process`.

A root turns settings into components, runs until it is told to stop, and closes what it opened in reverse order; the
packages below get plain options (`component_options`) and do not read the settings tree."""
