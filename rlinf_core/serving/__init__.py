"""A policy behind a socket: openpi's websocket protocol, batches of several clients, versions that change while it serves."""

PORT = 8000  # openpi's
