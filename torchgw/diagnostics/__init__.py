"""What a solve reports beside its plan: status, history, basins, certificate, confidence."""
