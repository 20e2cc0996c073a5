"""Simulated vendor drivers ("twins"), one per file.

A twin speaks a vendor driver's protocol around a simulator, and fails as the hardware does.
"""
