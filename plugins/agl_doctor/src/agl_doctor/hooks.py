"""Hooks of the doctor: the command ``agl doctor``."""

from agl_core.plugins import CommandSpec, hookimpl


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="doctor",
        target="agl_doctor.doctor_command:doctor",
        summary="Check the environment, the plugins and a store",
        api=1,
    )
