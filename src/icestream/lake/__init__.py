"""The HTTP applications of the lake process: the admin API (`routes`) and the embedded catalog behind Iceberg's REST
protocol (`iceberg`). It owns guards, bounded connections, models of requests and responses, and operations on the
tables of topics; `processes.lake_process` puts them together."""
