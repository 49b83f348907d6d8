from tests.support.bundles import installed, wheel

__all__ = ["installed", "wheel"]
