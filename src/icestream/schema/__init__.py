"""Schemas of payloads: what is one, which version may follow another, and which payload fits. Pure rules."""
