"""The policy of the draws; the arithmetic is in ops."""
