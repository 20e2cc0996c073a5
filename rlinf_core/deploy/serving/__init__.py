"""The policy server: openpi's websocket protocol, batched inference and updates of the weights."""

PORT = 8000  # openpi's default
