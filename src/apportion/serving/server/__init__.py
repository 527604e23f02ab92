"""`apportion serve`: terms, the policy, the engine, and the HTTP around them."""
