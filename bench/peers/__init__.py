"""What the goals are measured against."""
