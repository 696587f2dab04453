"""Nothing but requirements: installing this distribution installs what most people want."""
