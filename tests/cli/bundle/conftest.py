from tests.support.bundles import bare, bundle, bundles, installed, wheel

__all__ = ["bare", "bundle", "bundles", "installed", "wheel"]
