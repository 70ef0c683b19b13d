"""The door through which records enter: each is converted alone, to a declared form."""
