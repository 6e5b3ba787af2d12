"""When machines fail and come back: read from files in five formats, or generated from a few words."""
