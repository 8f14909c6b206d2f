"""States and what moves them, as pure code: no Django, no database."""
