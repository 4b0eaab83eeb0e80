"""Tests with real PostgreSQL servers."""
