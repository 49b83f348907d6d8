"""``hisparse-guard ramp``: the concurrency ramp that shows whether a fix holds."""
