"""The trainer: Ray actors that turn episodes into a better policy."""
