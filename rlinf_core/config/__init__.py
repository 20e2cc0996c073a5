"""Shared parts of all YAML files: strict models, a reader with line numbers, overrides."""
