"""Which drafts to keep: match, rejection and block verification, each with a slow twin in ``naive``."""
