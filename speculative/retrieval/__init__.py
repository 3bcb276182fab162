"""Drafts from text: a datastore of token ids, its search, and draft trees."""
