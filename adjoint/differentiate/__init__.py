"""Reverse mode over functional graphs."""
