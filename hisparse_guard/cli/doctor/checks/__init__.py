"""What `doctor` looks at: one function each, from facts to findings."""
