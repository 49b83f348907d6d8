"""``hisparse-guard probe``: does this server still generate tokens? Standard library only."""
