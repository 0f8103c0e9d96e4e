"""The clouds whose object stores a lake can be in: what each library needs to reach them. Contract: ``base``."""
