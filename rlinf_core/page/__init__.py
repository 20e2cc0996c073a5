"""The operator's page: what serves it and who may use it. Knows nothing of ROS: ``rlinf_operator.page`` is its node."""

PORT = 8080
TOKEN_LENGTH = 22  # 128 bits in base64
