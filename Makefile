# Shorthand for dev.py, which needs nothing but Python.
COMMANDS := demo test slow lint types cover bench plugins ci
.PHONY: $(COMMANDS)
$(COMMANDS):
	@python3 dev.py $@ $(ARGS)
