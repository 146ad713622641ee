"""Record-level differential privacy: one mechanism that reads records, and a ledger of accesses."""
