"""The lake process: the HTTP admin API and the embedded catalog behind Iceberg's REST protocol, in one process beside
the broker. It owns routes, models of requests and responses, guards, and operations on the tables of topics."""
