"""Twins: processes that speak what a vendor's driver speaks, around a simulator, and fail as hardware does; a file each."""
