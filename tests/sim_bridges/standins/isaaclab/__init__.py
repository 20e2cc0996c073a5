"""Stands in for Isaac Lab 3.0 or 2.3 (STANDIN_ISAACLAB), without physics and GPU.

Constants of 3.0 are those of the wheel isaaclab 3.0.0, of 2.3 those of isaaclab 2.3.2.post1 (PyPI):
3.0 isaaclab/assets/rigid_object/rigid_object_data.py "Root link orientation (x, y, z, w) in
simulation world frame", 2.3 source/isaaclab/isaaclab/assets/rigid_object/rigid_object_data.py:408
"Root link orientation (w, x, y, z) in simulation world frame"; 3.0 isaaclab/app/sim_launcher.py:594
"@contextmanager def launch_simulation(".
"""

import os

__version__ = os.environ.get("STANDIN_ISAACLAB", "3.0.0")
