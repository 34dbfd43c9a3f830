//! Conformance, property and backend tests of the workspace. Never published.
