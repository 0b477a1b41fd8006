"""Where things shall be: plain rules, and plans that a person or a forecast made."""
