"""The bridge: episodes up, policies down, over gRPC; acknowledged only once they are durable."""
