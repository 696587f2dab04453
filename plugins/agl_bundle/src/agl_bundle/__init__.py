"""The catalogue of agl's packages; installing this distribution installs what most people want."""
