"""What a broker prints: the greeting of `icestream serve`, its JSON for programs, the demo, and commands to try."""
