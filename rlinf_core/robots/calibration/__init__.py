"""Calibration: workspace by guiding, hand-eye, and a camera's alignment."""
