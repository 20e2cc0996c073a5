import cv2
import numpy as np
import pytest


@pytest.fixture
def video(tmp_path):
    """Write a video of eight images (48, 64) at 30 Hz, from red to green."""
    path = tmp_path / "wrist.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 30.0, (64, 48))
    for index in range(8):
        picture = np.zeros((48, 64, 3), np.uint8)
        picture[:] = (0, 25 * index, 200)  # blue first
        writer.write(picture)
    writer.release()
    return path
