"""The bridge: episodes up, policies down, over gRPC; acknowledged only once they are durable."""

PORT = 50551  # where a trainer listens, unless its recipe says otherwise
VERSION = 2  # of the protocol: the number in bridge.proto's package
SERVICE = f"rlinf.bridge.v{VERSION}.Bridge"
PART_BYTES = 1 << 19
MAX_MESSAGE_BYTES = 1 << 20
LONGEST_FILE_S = 3600.0  # in which a policy, or the file that it stands on, must have come
SERVED_AS = "trainer.rlinf"  # whom a trainer's certificate is for, whatever its address
STATION, INSTANCE = "rlinf-station", "rlinf-instance"  # metadata of each call
