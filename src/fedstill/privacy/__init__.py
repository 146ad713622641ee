"""Record-level differential privacy: one door to the records, and a ledger of its openings."""
