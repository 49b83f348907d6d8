"""Lines of logs, as triage judges and masking masks them: read, joined, taken out of wrappings."""
