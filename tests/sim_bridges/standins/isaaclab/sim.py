class PinholeCameraCfg:
    pass
