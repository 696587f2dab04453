"""The catalogue of the packages of this repository, which the distribution ``agl`` ships."""
