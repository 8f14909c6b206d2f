"""The pages: parse (a form) → one query or one write → render."""
