"""The site of the documentation: what runs in an environment of its own, with MkDocs."""
