class AppLauncher:
    def __init__(self, headless, enable_cameras, device):
        self.app = object()
