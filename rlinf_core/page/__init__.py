"""The operator's page: its server, access and controls, without ROS.

``rlinf_operator.page`` is its node.
"""

PORT = 8080
TOKEN_LENGTH = 22  # 128 bits in base64
