"""Tokens for the SASL mechanism OAUTHBEARER: one provider for each place that tokens come from."""
