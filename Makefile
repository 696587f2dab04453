# Shorthand for dev.py, which needs only Python.
COMMANDS := demo test slow lint types cover bench dist docs packages settings plugins heavy gpu lowest version ci
.PHONY: $(COMMANDS)
$(COMMANDS):
	@python3 dev.py $@ $(ARGS)
