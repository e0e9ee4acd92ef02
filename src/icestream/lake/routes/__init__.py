"""The routes of the admin API, /api/v1. Each translates a request into a call of the broker or of the embedded catalog;
rules and state belong to those."""
