"""Learning side of rlinf: specs, interlock core, episodes, policies, algorithms, bridge, trainer. Never imports rclpy."""

__version__ = "0.1.0"
