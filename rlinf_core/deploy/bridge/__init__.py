"""The bridge: episodes up, policies down, over gRPC; acknowledged only once they are durable."""

PORT = 50551  # default port of a trainer
VERSION = 2  # version of the protocol: the number in bridge.proto's package
SERVICE = f"rlinf.bridge.v{VERSION}.Bridge"
PART_BYTES = 1 << 19
MAX_MESSAGE_BYTES = 1 << 20
MAX_DOWNLOAD_S = 3600.0  # deadline of the download of a policy, or of its base file
TRAINER_DNS_NAME = "trainer.rlinf"  # in a trainer's certificate, whatever its address
STATION_KEY, INSTANCE_KEY = "rlinf-station", "rlinf-instance"  # keys of each call's metadata
