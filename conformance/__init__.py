"""The embedded catalog judged by software that is not ours: Iceberg's REST compatibility kit."""
