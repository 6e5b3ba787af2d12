"""Traces of failures and repairs: read from files in five formats, or generated from a few words."""
