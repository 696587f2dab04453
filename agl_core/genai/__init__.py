"""What model APIs speak: protocols, streams, translation, and the spans of model calls."""
