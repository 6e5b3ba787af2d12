"""Groups of options that several commands have, and what they mean."""
