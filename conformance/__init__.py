"""The broker judged by software that is not ours: Iceberg's kit, engines, and suites of MQTT and Danube."""
