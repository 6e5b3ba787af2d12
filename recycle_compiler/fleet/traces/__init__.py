"""When machines fail and come back: read from files in three formats, or generated from a few words."""
