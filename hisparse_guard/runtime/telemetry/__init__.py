"""What the guard says of itself: log lines and evidence."""
