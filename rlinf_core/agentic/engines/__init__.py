"""Engines, which draw a language policy's tokens in this process or behind a server."""
