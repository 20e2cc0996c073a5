"""The bridge: episodes up, policies down, over gRPC; acknowledged only once they are durable."""

PORT = 50551  # where a trainer listens, unless its recipe says otherwise
