"""Recordings that the pages show: read once in processes of their own, kept, and analysed when first asked."""
