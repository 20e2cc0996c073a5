"""The operator's page: what serves it and who may use it. Knows nothing of ROS; the station's side is ``rlinf.page``."""

PORT = 8080
TOKEN_LENGTH = 22  # 128 bits in base64
